"""`spec/README.md` lists every fault of every model, with what it breaks and how soon, and the numbers that tests pin."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import test_membership
import test_message_slots
import test_object_slots
import test_rendezvous
import test_rendezvous_meeting
import test_ring

import spec

TEXT = Path(spec.__file__).with_name("README.md").read_text()


@pytest.mark.parametrize("name", ["object_slots", "one_word", "ring", "membership", "rendezvous", "rendezvous_meeting"])
def test_the_faults_are_listed(name: str) -> None:
    variants = import_module(f"spec.models.{name}").VARIANTS
    for key, each in variants.items():
        if each.breaks:
            assert f"| `{key}`: {each.summary} | {each.breaks} | {each.steps} |" in TEXT
        else:
            assert f"`{key}`" in TEXT or "right" in each.summary


PINNED = {
    "message_slots": [*test_message_slots.COUNTS.values(), *test_message_slots.LARGE_COUNTS.values()],
    "object_slots": [*test_object_slots.COUNTS.values(), test_object_slots.TWO_OF_EACH],
    "ring": [
        numbers
        for instances in (test_ring.INSTANCES, test_ring.TWO_READERS, test_ring.DEEP_INSTANCES)
        for _, *numbers in instances.values()
    ],
    "membership": [
        numbers
        for instances in (test_membership.INSTANCES, test_membership.DEEP_INSTANCES)
        for _, *numbers in instances.values()
    ],
    "rendezvous": [
        numbers
        for counts in (test_rendezvous.COUNTS, test_rendezvous.DEEP_COUNTS)
        for (_, leftover), numbers in counts.items()
        if leftover == "none"
    ],
}
IN_SENTENCES = {
    "meeting": [number for counts in test_rendezvous_meeting.COUNTS.values() for number in counts],
    "leave": test_message_slots.LEAVE_COUNTS.values(),
    "loans": test_message_slots.LOAN_COUNTS.values(),
    "harmless changes of the ring": [states for states, _ in test_ring.HARMLESS.values()],
    "records that are only appended": [
        *[counts[0] for (_, leftover), counts in test_rendezvous.APPENDED_COUNTS.items() if leftover in ("none", "same")],
        *test_rendezvous.APPENDED_FAILURE_COUNTS.values(),
        *test_rendezvous.APPENDED_BARRIER_COUNTS.values(),
    ],
    "options": [states for pairs in test_message_slots.HARMLESS.values() for states, _ in pairs[1:]][:4],
    "quarantine": [
        states
        for counts in (test_object_slots.QUARANTINE_COUNTS, test_object_slots.DEEP_QUARANTINE_COUNTS)
        for states, _ in counts.values()
    ],
}


@pytest.mark.parametrize("name", PINNED)
def test_the_tables_have_the_pinned_numbers_of_states_and_transitions(name: str) -> None:
    for states, transitions in PINNED[name]:
        assert f" {states:,} | {transitions:,} |" in TEXT


@pytest.mark.parametrize("name", IN_SENTENCES)
def test_the_sentences_have_the_pinned_numbers_of_states(name: str) -> None:
    for states in IN_SENTENCES[name]:
        assert re.search(rf"(?<![\d,]){states:,}(?!,?\d)", TEXT), states
