"""Turns a theory into conditions, has z3 decide each, and finds a small counterexample where one fails.

Conditions, all of the form "premises and not goal has no model":

- init:    the initial state satisfies each conjunct;
- step:    if every conjunct holds now and an action takes place, each conjunct holds afterwards;
- safety:  every conjunct together implies each safety property.

Besides, each action must be possible in some state that satisfies every conjunct: a guard that can never
hold would make its conditions empty words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeVar

import z3

from spec.prove.counterexample import Counterexample, smallest_model
from spec.prove.counterexample import explain as _explain
from spec.prove.logic import Action, Conjunct, Formula, State, Theory, no

TIMEOUT_MS = 30_000
"""For one condition; the slowest takes well under a second."""

Kind = Literal["init", "step", "safety"]
Verdict = Literal["holds", "fails", "unknown"]
S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Condition:
    """One decided condition.  `action` is None for init and safety."""

    kind: Kind
    action: str | None
    goal: str
    words: str
    verdict: Verdict
    seconds: float
    counterexample: Counterexample | None = None


@dataclass(frozen=True)
class Proof:
    """The outcome for one theory."""

    theory: str
    conjuncts: int
    actions: int
    conditions: tuple[Condition, ...]
    impossible: tuple[str, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Condition, ...]:
        """Conditions that do not hold or could not be decided."""
        return tuple(each for each in self.conditions if each.verdict != "holds")

    @property
    def proved(self) -> bool:
        """Every condition holds and every action is possible."""
        return not self.failed and not self.impossible


def prove(theory: Theory[S], only: Collection[str] | None = None, explain: bool = True) -> Proof:
    """Decides every condition of the theory; `only` restricts it to the step conditions of some actions."""
    started = time.perf_counter()
    conditions: list[Condition] = []
    impossible: list[str] = []
    if only is None:
        conditions += _initial_conditions(theory, explain)
    for action in theory.actions.values():
        if only is None or action.name in only:
            conditions += _step_conditions(theory, action, explain)
            if not _is_possible(theory, action):
                impossible.append(action.name)
    if only is None:
        conditions += _safety_conditions(theory, explain)
    return Proof(
        theory=theory.name,
        conjuncts=len(theory.conjuncts),
        actions=len(theory.actions),
        conditions=tuple(conditions),
        impossible=tuple(impossible),
        seconds=time.perf_counter() - started,
    )


def first_failure(theory: Theory[S]) -> Condition | None:
    """Some condition that does not hold, or None."""
    steps = (_step_conditions(theory, action, explain=False) for action in theory.actions.values())
    before = _initial_conditions(theory, explain=False)
    after = _safety_conditions(theory, explain=False)
    every = chain(before, chain.from_iterable(steps), after)
    return next((each for each in every if each.verdict != "holds"), None)


# ---- the three kinds of conditions ---------------------------------------------------------------


def _initial_conditions(theory: Theory[S], explain: bool) -> Iterator[Condition]:
    now = theory.state()
    question = _Question([theory.initial(now)], _explainer(theory, now) if explain else None)
    for goal in theory.conjuncts.values():
        yield question.decide("init", None, goal, goal.formula(now))


def _step_conditions(theory: Theory[S], action: Action[S], explain: bool) -> Iterator[Condition]:
    now, after = theory.state(), theory.state("'")
    step = action.step(now).formula(now, after)
    question = _Question([*_premises(theory, now), step], _explainer(theory, now, after, action) if explain else None)
    for goal in theory.conjuncts.values():
        own = [goal.formula(now)] if goal.existential else []
        yield question.decide("step", action.name, goal, goal.formula(after), own)


def _safety_conditions(theory: Theory[S], explain: bool) -> Iterator[Condition]:
    now = theory.state()
    question = _Question(_premises(theory, now), _explainer(theory, now) if explain else None)
    existential = [each.formula(now) for each in theory.conjuncts.values() if each.existential]
    for goal in theory.safety.values():
        yield question.decide("safety", None, goal, goal.formula(now), existential if goal.existential else [])


def _premises(theory: Theory[S], now: S) -> list[Formula]:
    return [each.formula(now) for each in theory.conjuncts.values() if not each.existential]


def _is_possible(theory: Theory[S], action: Action[S]) -> bool:
    """Some small state satisfies every conjunct, the existential ones too, and lets the action happen."""
    now, after = theory.state(), theory.state("'")
    solver = z3.Solver()
    solver.add(*[each.formula(now) for each in theory.conjuncts.values()], action.step(now).formula(now, after))
    return smallest_model(solver, theory.sorts) is not None


def _explainer(
    theory: Theory[S], now: S, after: S | None = None, action: Action[S] | None = None
) -> Callable[[z3.Solver], Counterexample]:
    return lambda solver: _explain(solver, theory.sorts, now, after, action)


# ---- one question to the solver ------------------------------------------------------------------


class _Question:
    """Fixed premises, many goals: the premises are handed to the solver once."""

    def __init__(self, premises: list[Formula], explain: Callable[[z3.Solver], Counterexample] | None) -> None:
        self._explain = explain
        self._solver = z3.Solver()
        self._solver.set("timeout", TIMEOUT_MS)
        self._solver.add(*premises)

    def decide(
        self, kind: Kind, action: str | None, goal: Conjunct[Any], formula: Formula, more: Sequence[Formula] = ()
    ) -> Condition:
        started = time.perf_counter()
        self._solver.push()
        self._solver.add(*more, no(formula))
        verdict = _VERDICTS[str(self._solver.check())]
        seconds = time.perf_counter() - started
        shown = self._explain(self._solver) if verdict == "fails" and self._explain else None
        self._solver.pop()
        return Condition(kind, action, goal.name, goal.words, verdict, seconds, shown)


_VERDICTS: dict[str, Verdict] = {"unsat": "holds", "sat": "fails", "unknown": "unknown"}
