"""What z3 proves for any size holds on every explicit state of small instances, and fails on faulty ones."""

from __future__ import annotations

import pytest

from spec.checker import check
from spec.models import message_slots
from spec.models.message_slots_state import Config
from spec.prove.agreement import compare, message_slots_agree, message_structure
from spec.prove.finite import Structure, evaluator
from spec.prove.message_slots import MESSAGE_SLOTS

EVERYTHING = {"leave": True, "skip": True, "quarantine": True}


@pytest.mark.parametrize(
    ("config", "states"),
    [
        (Config(1, 1, 1), 54),
        (Config(1, 2, 1), 317),
        (Config(2, 1), 278),
        (Config(2, 1, **EVERYTHING), 975),
        (Config(1, 2, 1, **EVERYTHING), 3179),
        pytest.param(Config(2, 2), 6208, marks=pytest.mark.deep),
        pytest.param(Config(2, 2, leave=True), None, marks=pytest.mark.deep),
        pytest.param(Config(2, 2, quarantine=True), None, marks=pytest.mark.deep),
    ],
    ids=str,
)
def test_message_slots_agree(config: Config, states: int | None) -> None:
    agreement = message_slots_agree(config)
    assert agreement.disagreement is None
    if states is not None:
        assert agreement.states == states


# For each fault of the explicit model: the conjuncts that fail first on its shortest counterexample.
FIRST_BROKEN = {
    "release-before-dma": {"reference_is_owed"},
    "death-by-lock": {"reference_is_a_members"},
    "reclaim-on-timeout": {"reference_is_a_members"},
    "reclaim-on-timeout-flags": {"reference_is_a_members"},
    "inherited-queue-unchecked": {"reference_is_a_members"},
    "inherited-queue": {"reference_is_a_members"},
    "join-any-time": {"pending_requires_the_counted"},
    "free-when-pending": {"stage_pending_or_sent", "open_is_current"},
    "abort-forgets": {"owed_has_a_reference"},
    "abort-between-rings": {"reference_is_sent"},
    "forget-after-raise": {"owed_has_a_reference"},
    "forked-child": {"only_the_living_hold"},
    "reattached-writer": {"owed_has_a_reference"},
    "flags-sent-before-reset": {"owed_has_a_reference"},
    "flags-set-before-copy": {"published_is_complete", "owed_has_a_reference"},
    "left-owes-nothing": {"reference_is_owed"},
    "left-owes-unread": {"owed_has_a_reference"},
    "left-seen-mid-message": {"owed_has_a_reference"},
    "quarantine-too-short": {"reference_is_a_members"},
}
# Its free test is wrong, not its states: no conjunct speaks of the free test, the safety properties do.
INVISIBLE = {"free-for-members"}


@pytest.mark.parametrize("name", FIRST_BROKEN)
def test_a_faulty_run_breaks_a_conjunct(name: str) -> None:
    violation = check(message_slots.model(message_slots.VARIANTS[name].config), drain=False).violation
    assert violation is not None
    agreement = compare(MESSAGE_SLOTS, [moment.state for moment in violation.run], message_structure)
    assert agreement.disagreement is not None
    assert set(agreement.disagreement.conjuncts) == FIRST_BROKEN[name]


def test_every_fault_of_the_model_is_listed() -> None:
    faults = {name for name, variant in message_slots.VARIANTS.items() if variant.breaks is not None}
    assert faults == set(FIRST_BROKEN) | INVISIBLE


def test_evaluator_tells_true_from_false() -> None:
    empty = {each.name: frozenset() for each in MESSAGE_SLOTS.state()}
    things = {"Slot": (0,), "Rank": (0,), "Reader": (0,), "Grant": ("g", "h")}
    functions = {"slot_of": {("g",): 0, ("h",): 0}, "rank_of": {(0,): 0}}
    conjuncts = evaluator(MESSAGE_SLOTS)
    assert conjuncts.violated(Structure(things, empty, functions)) == []
    both_current = {**empty, "current": frozenset({(0, "g"), (0, "h")}), "used": frozenset({("g",), ("h",)})}
    broken = conjuncts.violated(Structure(things, both_current, functions))
    assert broken == ["one_current_grant", "used_has_a_stage"]
