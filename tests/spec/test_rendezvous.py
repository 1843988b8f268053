"""The rendezvous: exact numbers of states and transitions, and what each rejected design breaks."""

from __future__ import annotations

import pytest
from checked import breaks_as_said, holds

from spec.checker import check
from spec.model import action
from spec.models.rendezvous import LEFTOVERS, VARIANTS, Config, model
from spec.models.rendezvous_state import State
from spec.models.rendezvous_steps import append_record, record_in_place_of

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
# The same where a record is always appended, and those of the dead stay.
APPENDED_COUNTS = {
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
    ("AABB", "none"): (59936, 268744),
    ("AABB", "same"): (60301, 270352),
}
APPENDED_QUICK = {*[each for each in APPENDED_COUNTS if each[0] == "AA"], ("AAA", "none"), ("AAB", "same")}
APPENDED_FAILURE_COUNTS = {"AA": 344, "AAA": 5856, "AAB": 4057}
APPENDED_BARRIER_COUNTS = {"AA": 561, "AAA": 6331}
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


@action("process {process}", over=("process",), name="append_record")
def append_behind_all(config: Config, state: State, process: int) -> State | None:
    """Write my own record at the end, whoever else has one: an entry grows with every death."""
    return record_in_place_of(state, process, ())


APPENDING = ((append_record, append_behind_all),)


@pytest.mark.parametrize(
    ("instances", "leftover"),
    [pytest.param(*each, marks=() if each in APPENDED_QUICK else pytest.mark.deep) for each in APPENDED_COUNTS],
)
def test_records_that_are_only_appended_make_the_few_states_less(instances: str, leftover: str) -> None:
    """So a dead member's record that makes room is all that the numbers above have more."""
    assert holds(model(Config(instances, leftover, changed=APPENDING))) == APPENDED_COUNTS[instances, leftover]


@pytest.mark.parametrize("instances", APPENDED_FAILURE_COUNTS)
def test_records_that_are_only_appended_and_failures(instances: str) -> None:
    result = check(model(Config(instances, may_fail=True, changed=APPENDING)))
    assert (result.violation, result.states) == (None, APPENDED_FAILURE_COUNTS[instances])
    if instances in APPENDED_BARRIER_COUNTS:
        result = check(model(Config(instances, barrier=True, may_fail=True, changed=APPENDING)))
        assert (result.violation, result.states) == (None, APPENDED_BARRIER_COUNTS[instances])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name in DEEP_VARIANTS else ()) for name in VARIANTS]
)
def test_variants(name: str) -> None:
    variant = VARIANTS[name]
    breaks_as_said(model(variant.config), variant)


def test_an_unknown_leftover_is_refused() -> None:
    with pytest.raises(ValueError, match="leftover is one of none, other"):
        model(Config(leftover="half"))
