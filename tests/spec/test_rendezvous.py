"""The rendezvous: exact numbers of states and transitions, and what each rejected design breaks."""

from __future__ import annotations

import pytest
from checked import breaks_as_said, holds

from spec.models.rendezvous import LEFTOVERS, VARIANTS, Config, model

# (instances, leftover): (states, transitions)
COUNTS = {
    ("AA", "none"): (328, 822),
    ("AA", "other"): (339, 842),
    ("AA", "same"): (339, 842),
    ("AA", "torn"): (326, 818),
    ("AA", "empty"): (328, 822),
    ("AAA", "none"): (5619, 19962),
    ("AAA", "other"): (5695, 20202),
    ("AAA", "same"): (5695, 20202),
    ("AAA", "torn"): (5616, 19950),
    ("AAA", "empty"): (5619, 19962),
    ("AAB", "none"): (3703, 12708),
    ("AAB", "other"): (3779, 12948),
    ("AAB", "same"): (3779, 12948),
    ("AAB", "torn"): (3700, 12696),
    ("AAB", "empty"): (3703, 12708),
}
DEEP_COUNTS = {("AABB", "none"): (59936, 268744), ("AABB", "same"): (60301, 270352)}
FAILURE_COUNTS = {"AA": (344, 858), "AAA": (5856, 20751), "AAB": (4057, 13793)}
BARRIER_COUNTS = {"AA": (561, 1404), "AAA": (6331, 21855)}
DEEP_VARIANTS = {"unlink-at-three-of-four"}


def test_every_leftover_is_counted() -> None:
    assert {leftover for _, leftover in COUNTS} == set(LEFTOVERS)


@pytest.mark.parametrize(("instances", "leftover"), COUNTS)
def test_counts(instances: str, leftover: str) -> None:
    assert holds(model(Config(instances, leftover))) == COUNTS[instances, leftover]


@pytest.mark.deep
@pytest.mark.parametrize(("instances", "leftover"), DEEP_COUNTS)
def test_two_instances_of_two(instances: str, leftover: str) -> None:
    assert holds(model(Config(instances, leftover))) == DEEP_COUNTS[instances, leftover]


@pytest.mark.parametrize("instances", FAILURE_COUNTS)
def test_the_creator_may_fail(instances: str) -> None:
    assert holds(model(Config(instances, may_fail=True))) == FAILURE_COUNTS[instances]


@pytest.mark.parametrize("instances", BARRIER_COUNTS)
def test_the_creator_populates_before_a_barrier(instances: str) -> None:
    assert holds(model(Config(instances, barrier=True, may_fail=True))) == BARRIER_COUNTS[instances]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name in DEEP_VARIANTS else ()) for name in VARIANTS]
)
def test_variants(name: str) -> None:
    variant = VARIANTS[name]
    breaks_as_said(model(variant.config), variant)


def test_an_unknown_leftover_is_refused() -> None:
    with pytest.raises(ValueError, match="leftover is one of none, other"):
        model(Config(leftover="half"))
