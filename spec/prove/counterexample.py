"""A failing condition, shown in words: the smallest state in which the step goes wrong, and what the step changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import z3

from spec.prove.logic import Action, Formula, Sort, State

UNIVERSE_MAX = 4
"""Models are sought with at most this many things of each sort; the known faults need two."""


@dataclass(frozen=True)
class Counterexample:
    """A state that satisfies every conjunct, what the action is about, and what it changes for the worse."""

    parameters: tuple[str, ...]
    before: tuple[str, ...]
    became_true: tuple[str, ...]
    became_false: tuple[str, ...]

    def lines(self) -> list[str]:
        """The counterexample as text, one fact a line."""
        text = []
        if self.parameters:
            text.append("where " + ", ".join(self.parameters))
        text += [f"before: {fact}" for fact in self.before]
        text += [f"after:  {fact}" for fact in self.became_true]
        text += [f"after:  no longer: {fact}" for fact in self.became_false]
        return text


def smallest_model(solver: z3.Solver, sorts: Sequence[Sort]) -> z3.ModelRef | None:
    """A model of the solver's formulas with as few things of each sort as will do, up to `UNIVERSE_MAX`."""
    for size in range(1, UNIVERSE_MAX + 1):
        solver.push()
        solver.add(*[_at_most(size, sort) for sort in sorts])
        found = solver.model() if solver.check() == z3.sat else None
        solver.pop()
        if found is not None:
            return found
    return None


def _at_most(size: int, sort: Sort) -> Formula:
    things = [z3.Const(f"{sort}#{number}", sort) for number in range(size)]
    any_thing = z3.FreshConst(sort)
    return z3.ForAll(any_thing, z3.Or(*[any_thing == thing for thing in things]))


def explain(
    solver: z3.Solver, sorts: Sequence[Sort], now: State, after: State | None, action: Action[Any] | None
) -> Counterexample:
    """Words for a small model of the solver's formulas, or for any model if there is no small one."""
    model = smallest_model(solver, sorts) or solver.model()
    names = _names(model)
    before = _facts(model, now, names)
    afterwards = _facts(model, after, names) if after is not None else before
    parameters = []
    if action is not None:
        for constant in action.constants():
            thing = str(model.eval(constant, model_completion=True))
            parameters.append(f"{constant} is {names.get(thing, thing)}")
    return Counterexample(
        parameters=tuple(parameters),
        before=tuple(before),
        became_true=tuple(fact for fact in afterwards if fact not in before),
        became_false=tuple(fact for fact in before if fact not in afterwards),
    )


def _names(model: z3.ModelRef) -> dict[str, str]:
    """What the model's things are called: "slot 0", "reader 1", and so on."""
    names = {}
    for sort in model.sorts():
        for number, thing in enumerate(model.get_universe(sort)):
            names[str(thing)] = f"{str(sort).lower()} {number}"
    return names


def _facts(model: z3.ModelRef, state: State, names: dict[str, str]) -> list[str]:
    """Every true statement of the state, in words."""
    facts = []
    for each in state:
        universes = [model.get_universe(sort) or [] for sort in each.sorts]
        for things in product(*universes):
            if z3.is_true(model.eval(each(*things), model_completion=True)):
                facts.append(each.says.format(*[names[str(thing)] for thing in things]))
    return facts
