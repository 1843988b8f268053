"""Walks of code and model side by side: all steps from all states of a small instance, or random ones of a larger."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from spec.model import Model, Step

State = Any
Possible = Callable[[Model, State], Iterable[tuple[Step, State]]]
"""The steps to be taken from a state, each with the state that the code must then mean."""


class Mismatch(AssertionError):
    """Code and model differ."""


class Code(Protocol):
    """The code under test, as the lockstep modules put it together."""

    def take(self, step: Step) -> None:
        """Performs a step of the model."""

    def check(self, expected: Any) -> None:
        """Raises Mismatch unless code and model agree on everything that can be seen."""

    def snapshot(self) -> Any:
        """Everything there is, to come back to."""

    def restore(self, snapshot: Any) -> None:
        """Back to a snapshot."""

    def close(self) -> None:
        """Gives everything back."""


def walk(model: Model, code: Code, possible: Possible = Model.successors) -> tuple[int, int]:
    """Every step from every state, in the code too: depth first, from snapshots.

    Returns:
        The numbers of states and transitions.
    """
    (start,) = model.initial
    code.check(start)
    seen, stack, transitions = {start}, [(start, code.snapshot())], 0
    while stack:
        state, snapshot = stack.pop()
        for step, after in possible(model, state):
            code.restore(snapshot)
            try:
                code.take(step)
                code.check(after)
            except Mismatch as wrong:
                raise Mismatch(f"after {step} by the {step.actor}: {wrong}") from None
            transitions += 1
            if after not in seen:
                seen.add(after)
                stack.append((after, code.snapshot()))
    return len(seen), transitions


def run_at_random(
    model: Model,
    make: Callable[[], Code],
    examples: int,
    *,
    steps: int = 60,
    possible: Possible = Model.successors,
) -> None:
    """Takes `examples` random runs of `steps` steps each; first the kind of a step is drawn, so that rare ones are taken.

    Raises:
        Mismatch: code and model differ. Not shrunk: a run of that length is readable, and its seed is printed.
    """

    class RandomWalk(RuleBasedStateMachine):
        """One rule. The machine's state is the model's and the code's at once."""

        def __init__(self) -> None:
            super().__init__()
            self.code = make()
            (self.state,) = model.initial

        @rule(data=st.data())
        def step(self, data: st.DataObject) -> None:
            allowed = list(possible(model, self.state))
            kinds = sorted({step.action.name for step, _ in allowed})
            if not kinds:
                return
            kind = data.draw(st.sampled_from(kinds), "action")
            step, self.state = data.draw(st.sampled_from([each for each in allowed if each[0].action.name == kind]), "step")
            self.code.take(step)

        @invariant()
        def agree(self) -> None:
            self.code.check(self.state)

        def teardown(self) -> None:
            self.code.close()

    run_state_machine_as_test(
        RandomWalk,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None, print_blob=True,
            phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
