"""The production slot code does what the model of the message slots does: in every state of a small instance, and at
random in larger ones."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from lockstep_faults import FAULTS, Fault
from lockstep_slots import SlotCode
from lockstep_walks import Mismatch, run_at_random, walk

from spec.models import message_slots
from spec.models.message_slots_state import Config

LIVING = Config(without=("writer_death",))


@pytest.mark.parametrize(
    ("config", "states", "transitions"),
    [
        (replace(LIVING, slots=1, readers=1, tensors=1, leave=True), 68, 174),
        (replace(LIVING, slots=1, tensors=1), 292, 885),
        (replace(LIVING, readers=1), 277, 832),
        (replace(LIVING, readers=1, leave=True, skip=True), 673, 2302),
        (replace(LIVING, slots=1, readers=1, tensors=1, leave=True, loans=True), 176, 479),
        (replace(LIVING, slots=1, tensors=1, loans=True), 840, 2_754),
        (replace(LIVING, readers=1, loans=True), 1_965, 6_820),
        (LIVING, 11_977, 51_410),
        (replace(LIVING, slots=1, tensors=1, leave=True), 1_796, 7_097),
    ],
    ids=lambda value: f"{value.slots}x{value.readers}" if isinstance(value, Config) else None,
)
def test_every_step_from_every_state(config: Config, states: int, transitions: int) -> None:
    with closing(SlotCode(config)) as code:
        assert walk(message_slots.model(config), code) == (states, transitions)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_code_is_noticed(fault: Fault) -> None:
    with closing(SlotCode(LIVING)) as code:
        fault(code)
        with pytest.raises((Mismatch, ValueError)):
            walk(message_slots.model(LIVING), code)


# ---- larger sizes, at random -----------------------------------------------------------------------------------------


LARGE = replace(LIVING, slots=4, readers=4, tensors=3, queue=4, leave=True, skip=True, loans=True)


@pytest.mark.parametrize("examples", [15, pytest.param(500, marks=pytest.mark.deep)])
def test_random_steps_at_a_larger_size(examples: int) -> None:
    run_at_random(message_slots.model(LARGE), lambda: SlotCode(LARGE), examples)


def test_the_random_walk_notices_a_fault_too() -> None:
    def faulty() -> SlotCode:
        code = SlotCode(LARGE)
        FAULTS[7](code)
        return code

    with pytest.raises((Mismatch, ValueError)):
        run_at_random(message_slots.model(LARGE), faulty, 200)
