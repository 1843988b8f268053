"""The rendezvous: exact numbers of states and transitions, and what each rejected design breaks."""

from __future__ import annotations

import pytest
from checked import breaks_as_said, holds

from spec.models.rendezvous import LEFTOVERS, VARIANTS, Config, model

# (instances, leftover): (states, transitions)
COUNTS = {
    ("AA", "none"): (330, 826),
    ("AA", "other"): (341, 846),
    ("AA", "same"): (341, 846),
    ("AA", "torn"): (328, 822),
    ("AA", "empty"): (330, 826),
    ("AAA", "none"): (5655, 20064),
    ("AAA", "other"): (5731, 20304),
    ("AAA", "same"): (5731, 20304),
    ("AAA", "torn"): (5652, 20052),
    ("AAA", "empty"): (5655, 20064),
    ("AAB", "none"): (3715, 12742),
    ("AAB", "other"): (3791, 12982),
    ("AAB", "same"): (3791, 12982),
    ("AAB", "torn"): (3712, 12730),
    ("AAB", "empty"): (3715, 12742),
}
DEEP_COUNTS = {("AABB", "none"): (60156, 269592), ("AABB", "same"): (60521, 271200)}
FAILURE_COUNTS = {"AA": (346, 862), "AAA": (5892, 20853), "AAB": (4069, 13827)}
BARRIER_COUNTS = {"AA": (585, 1444), "AAA": (6916, 23319)}
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
