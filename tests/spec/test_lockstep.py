"""The production slot code does what the model of the message slots does: in every state of a small instance, and at
random in larger ones."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from lockstep_faults import FAULTS, Fault
from lockstep_slots import Mismatch, SlotCode, walk

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


class RandomSlots(RuleBasedStateMachine):
    """One rule: any step that the model allows. Its state is the model's and the code's at once."""

    config = replace(LIVING, slots=4, readers=4, tensors=3, queue=4, leave=True, skip=True)

    def __init__(self) -> None:
        super().__init__()
        self.code = SlotCode(self.config)
        self.model = message_slots.model(self.config)
        (self.state,) = self.model.initial

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        possible = list(self.model.successors(self.state))
        kinds = sorted({step.action.name for step, _ in possible})
        kind = data.draw(st.sampled_from(kinds), "action")
        step, self.state = data.draw(st.sampled_from([each for each in possible if each[0].action.name == kind]), "step")
        self.code.take(step)

    @invariant()
    def agree(self) -> None:
        self.code.check(self.state)

    def teardown(self) -> None:
        self.code.close()


def settings_of(examples: int) -> settings:
    """No shrinking beyond what a minute allows: a failing run of 50 steps is readable, and its seed is printed."""
    return settings(
        max_examples=examples,
        stateful_step_count=60,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("examples", [15, pytest.param(2_000, marks=pytest.mark.deep)])
def test_random_steps_at_a_larger_size(examples: int) -> None:
    run_state_machine_as_test(RandomSlots, settings=settings_of(examples))


def test_the_random_walk_notices_a_fault_too() -> None:
    class Faulty(RandomSlots):
        def __init__(self) -> None:
            super().__init__()
            FAULTS[7](self.code)

    with pytest.raises((Mismatch, ValueError)):
        run_state_machine_as_test(Faulty, settings=settings_of(200))
