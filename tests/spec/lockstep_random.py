"""Random steps of code and model together, for sizes whose states are too many to visit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from spec.model import Model, Step

State = Any


class Code(Protocol):
    """The code under test, as the lockstep modules put it together."""

    def take(self, step: Step) -> None: ...
    def check(self, expected: Any) -> None: ...
    def close(self) -> None: ...


def run_at_random(
    model: Model,
    make: Callable[[], Code],
    examples: int,
    *,
    steps: int = 60,
    possible: Callable[[Model, State], Iterable[tuple[Step, State]]] = Model.successors,
    after: Callable[[Model, State], State] = lambda model, state: state,
) -> None:
    """Takes `examples` random runs of `steps` steps each; first the kind of a step is drawn, so that rare ones are taken.

    Args:
        possible: the steps that the model allows in a state, each with the state that it leads to.
        after: from that state to the one that the code must mean.

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
            step, state = data.draw(st.sampled_from([each for each in allowed if each[0].action.name == kind]), "step")
            self.code.take(step)
            self.state = after(model, state)

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
