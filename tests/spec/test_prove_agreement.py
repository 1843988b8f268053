"""What z3 proves for any size holds on every explicit state of small instances, and fails on faulty ones."""

from __future__ import annotations

from typing import Any

import pytest

from spec.checker import check
from spec.models import message_slots, object_slots
from spec.models.message_slots_state import Config
from spec.models.object_slots_state import Config as ObjectConfig
from spec.prove.agreement import compare
from spec.prove.agreement_messages import message_slots_agree, message_structure
from spec.prove.agreement_objects import object_slots_agree, object_structure
from spec.prove.finite import Structure, evaluator
from spec.prove.message_slots import MESSAGE_SLOTS
from spec.prove.object_slots import OBJECT_SLOTS

EVERYTHING: dict[str, Any] = {"leave": True, "skip": True, "quarantine": True}


def size(value: object) -> str | None:
    """A short test id: the instance's size and options."""
    if not isinstance(value, Config | ObjectConfig):
        return None
    options = [name for name in EVERYTHING if getattr(value, name, False)]
    return " ".join([f"{value.slots},{value.readers}", *options])


@pytest.mark.parametrize(
    ("config", "states"),
    [
        (Config(1, 1, 1), 54),
        (Config(1, 2, 1), 317),
        (Config(2, 1), 278),
        (Config(2, 1, **EVERYTHING), 975),
        (Config(1, 2, 1, **EVERYTHING), 3179),
        pytest.param(Config(2, 2), 6208, marks=pytest.mark.deep),
        pytest.param(Config(2, 2, leave=True), 36491, marks=pytest.mark.deep),
        pytest.param(Config(2, 2, quarantine=True), 16750, marks=pytest.mark.deep),
    ],
    ids=size,
)
def test_message_slots_agree(config: Config, states: int) -> None:
    agreement = message_slots_agree(config)
    assert agreement.disagreement is None
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
# The proof has no loans.
WITH_LOANS = {"loan-not-held", "abort-frees-loans", "abort-forgets-loans"}


@pytest.mark.parametrize("name", FIRST_BROKEN)
def test_a_faulty_run_breaks_a_conjunct(name: str) -> None:
    violation = check(message_slots.model(message_slots.VARIANTS[name].config), drain=False).violation
    assert violation is not None
    agreement = compare(MESSAGE_SLOTS, [moment.state for moment in violation.run], message_structure)
    assert agreement.disagreement is not None
    assert set(agreement.disagreement.conjuncts) == FIRST_BROKEN[name]


def test_every_fault_of_the_model_is_listed() -> None:
    faults = {name for name, variant in message_slots.VARIANTS.items() if variant.breaks is not None}
    assert faults == set(FIRST_BROKEN) | INVISIBLE | WITH_LOANS


@pytest.mark.parametrize(
    ("config", "states"),
    [
        (ObjectConfig(1, 1, 1), 176),
        (ObjectConfig(1, 1, 2), 248),
        (ObjectConfig(1, 2, 1), 2288),
        (ObjectConfig(1, 1, 2, quarantine=True), 688),
        pytest.param(ObjectConfig(1, 2, 2), 5132, marks=pytest.mark.deep),
        pytest.param(ObjectConfig(2, 1, 2), 13856, marks=pytest.mark.deep),
        pytest.param(ObjectConfig(1, 2, 1, quarantine=True), 22544, marks=pytest.mark.deep),
        pytest.param(ObjectConfig(2, 2, 1), 512_700, marks=[pytest.mark.deep, pytest.mark.timeout(3600)]),
    ],
    ids=size,
)
def test_object_slots_agree(config: ObjectConfig, states: int) -> None:
    agreement = object_slots_agree(config)
    assert agreement.disagreement is None
    assert agreement.states == states


FIRST_BROKEN_OBJECTS = {
    "no-recheck": {"held_is_not_reused"},
    "hold-delayed": {"lease_has_its_word"},
    "generation-delayed": {"open_is_live"},
    "scan-first": {"held_is_not_reused"},
    "no-drain": {"held_is_not_reused"},
    "release-before-dma": {"lease_has_its_word"},
    "death-by-lock": {"lease_is_a_members"},
    "reclaim-on-timeout": {"alive_is_member"},
    "row-kept": {"row_is_a_members"},
    "row-kept-members-scanned": {"row_is_a_members"},
    "word-overwritten": {"lease_has_its_word", "get_is_alone"},
    "no-lock": {"get_is_alone", "held_is_not_reused"},
    "count-not-atomic": {"get_is_alone"},
    "refilled-word-overwritten": {"used_has_a_stage", "lease_has_begun", "held_is_not_reused"},
    "refilled-word-kept": {"used_has_a_stage", "lease_has_begun", "held_is_not_reused"},
    "early-start-members-scanned": {"alive_is_member"},
    "early-start-members-reclaimed": {"alive_is_member"},
    "no-quarantine": {"lease_is_a_members"},
    "quarantine-forgets": {"lease_is_a_members"},
}


@pytest.mark.parametrize("name", FIRST_BROKEN_OBJECTS)
def test_a_faulty_object_run_breaks_a_conjunct(name: str) -> None:
    violation = check(object_slots.model(object_slots.VARIANTS[name].config), drain=False).violation
    assert violation is not None
    agreement = compare(OBJECT_SLOTS, [moment.state for moment in violation.run], object_structure)
    assert agreement.disagreement is not None
    assert set(agreement.disagreement.conjuncts) == FIRST_BROKEN_OBJECTS[name]


def test_every_fault_of_the_object_model_is_listed() -> None:
    faults = {name for name, variant in object_slots.VARIANTS.items() if variant.breaks is not None}
    assert faults == set(FIRST_BROKEN_OBJECTS)


def test_evaluator_tells_true_from_false() -> None:
    empty: dict[str, frozenset[tuple[Any, ...]]] = {each.name: frozenset() for each in MESSAGE_SLOTS.state()}
    things = {"Slot": (0,), "Rank": (0,), "Reader": (0,), "Grant": ("g", "h")}
    functions: dict[str, dict[tuple[Any, ...], Any]] = {"slot_of": {("g",): 0, ("h",): 0}, "rank_of": {(0,): 0}}
    conjuncts = evaluator(MESSAGE_SLOTS)
    assert conjuncts.violated(Structure(things, empty, functions)) == []
    both_current = {**empty, "current": frozenset({(0, "g"), (0, "h")}), "used": frozenset({("g",), ("h",)})}
    broken = conjuncts.violated(Structure(things, both_current, functions))
    assert broken == ["one_current_grant", "used_has_a_stage"]
