"""Exhaustive breadth-first search of a model.

Every reachable state is visited once, in a fixed order, so the numbers of states and transitions are exact and the
first violation met is one with the fewest steps. The search keeps per state only the number of its parent; a
counterexample is replayed from that.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from spec.drain import undrainable
from spec.model import Model, State, Step

Progress = Callable[[int, int], None]  # states so far, states still to expand
REPORT_EVERY = 2048  # states between two calls of the progress function


class Moment(NamedTuple):
    """One line of a run: the step that was taken (None at the start) and the state after it."""

    step: Step | None
    state: State


@dataclass(frozen=True)
class Violation:
    """A property that fails, what is wrong, and the shortest run that shows it."""

    name: str
    complaint: str
    run: tuple[Moment, ...]

    @property
    def steps(self) -> int:
        """The length of the run."""
        return len(self.run) - 1


@dataclass
class Result:
    """What a search found. The counts are exact unless `complete` is False (stopped at a violation or a limit)."""

    model: Model
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    violation: Violation | None = None
    undrainable: int | None = None
    fired: Counter[str] = field(default_factory=Counter)
    never_seen: tuple[str, ...] = ()

    @property
    def dead_actions(self) -> tuple[str, ...]:
        """Actions that were possible in no state: their guards say too much, or the model too little."""
        return tuple(each.name for each in self.model.actions if not self.fired[each.name] and not each.defensive)

    @property
    def ok(self) -> bool:
        """Complete, nothing violated, no dead action, and everything that must happen sometimes does."""
        return self.complete and self.violation is None and not self.dead_actions and not self.never_seen


class Graph:
    """The states in the order of their discovery, each with the number of its parent."""

    def __init__(self) -> None:
        self.numbers: dict[State, int] = {}
        self.states: list[State] = []
        self.parents = array("q")

    def add(self, state: State, parent: int) -> int:
        """Number a new state."""
        number = len(self.states)
        self.numbers[state] = number
        self.states.append(state)
        self.parents.append(parent)
        return number

    def path(self, number: int) -> list[State]:
        """The states from an initial one to state `number`."""
        path = []
        while number >= 0:
            path.append(self.states[number])
            number = self.parents[number]
        return path[::-1]


def replay(model: Model, path: list[State], canonical: Callable[[State], State] | None) -> tuple[Moment, ...]:
    """Turn a path of states (or of their representatives) into a genuine run of the model."""
    same = canonical or (lambda state: state)
    state = next(each for each in model.initial if same(each) == path[0])
    run = [Moment(None, state)]
    for target in path[1:]:
        step, state = next((step, after) for step, after in model.successors(state) if same(after) == target)
        run.append(Moment(step, state))
    return tuple(run)


def check(
    model: Model,
    *,
    symmetry: bool = False,
    drain: bool = True,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Search every reachable state of `model`; stop at the first violation, or beyond `limit` states.

    With `symmetry`, states that differ only in the numbering of equal things count as one.
    """
    search = _Search(model, symmetry, drain, limit, progress)
    search.run()
    return search.result


def reachable(model: Model, *, symmetry: bool = False, limit: int | None = None) -> list[State]:
    """All reachable states, in the order of their discovery, whether or not they violate anything; or more than `limit`."""
    bare = Model(model.name, model.config, model.initial, model.actions, model.domains, canonical=model.canonical)
    search = _Search(bare, symmetry, False, limit, None)
    search.run()
    return search.graph.states


class _Search:
    def __init__(self, model: Model, symmetry: bool, drain: bool, limit: int | None, progress: Progress | None) -> None:
        if symmetry and model.canonical is None:
            raise ValueError(f"the model {model.name} declares no symmetry")
        self.model = model
        self.canonical = model.canonical if symmetry else None
        self.drain = model.drain if drain else None
        self.limit = limit
        self.progress = progress
        self.graph = Graph()
        self.result = Result(model)
        self.unseen = list(model.sometimes)
        self.sources, self.targets = array("q"), array("q")  # progress transitions, for the drain check
        self.steps = [(each.action.effect, each.args, each.action.name, each.action.progress) for each in model.steps()]

    def run(self) -> None:
        started = time.perf_counter()
        self.result.complete = self._expand_all()
        self.result.states = len(self.graph.states)
        if self.result.complete:
            self.result.never_seen = tuple(each.name for each in self.unseen)
            if self.drain is not None:
                self._check_drain()
        self.result.seconds = time.perf_counter() - started

    def _violated(self, number: int, name: str, complaint: str) -> None:
        run = replay(self.model, self.graph.path(number), self.canonical)
        self.result.violation = Violation(name, complaint, run)

    def _discover(self, state: State, parent: int) -> int:
        """Number a new state and look at it; a complaint ends up in the result."""
        number = self.graph.add(state, parent)
        found = self.model.complaint(state)
        if found is not None:
            self._violated(number, *found)
        if self.unseen:
            self.unseen = [each for each in self.unseen if not each.holds(self.model.config, state)]
        return number

    def _expand_all(self) -> bool:
        """Breadth first; True if every reachable state was visited and none is bad."""
        numbers, states, result = self.graph.numbers, self.graph.states, self.result
        for state in self.model.initial:
            state = state if self.canonical is None else self.canonical(state)
            if state not in numbers:
                self._discover(state, -1)
        number, level_end = 0, len(states)
        while number < len(states) and result.violation is None:
            if number == level_end:
                result.depth, level_end = result.depth + 1, len(states)
            if self.limit is not None and len(states) > self.limit:
                return False
            self._expand(number)
            number += 1
            if self.progress is not None and number % REPORT_EVERY == 0:
                self.progress(len(states), len(states) - number)
        return result.violation is None

    def _expand(self, number: int) -> None:
        """Take every possible step from one state."""
        config, canonical, known, result = self.model.config, self.canonical, self.graph.numbers, self.result
        state, fired, can_progress = self.graph.states[number], result.fired, False
        for effect, args, name, is_progress in self.steps:
            after = effect(config, state, *args)
            if after is None:
                continue
            result.transitions += 1
            fired[name] += 1
            target = known.get(after)
            if target is None and canonical is not None:
                after = canonical(after)
                target = known.get(after)
            if target is None:
                target = self._discover(after, number)
                if result.violation is not None:
                    return
            if is_progress:
                can_progress = True
                if self.drain is not None:
                    self.sources.append(number)
                    self.targets.append(target)
        if not can_progress:
            for each in self.model.deadlocks:
                complaint = each.complaint(config, state)
                if complaint is not None:
                    self._violated(number, each.name, complaint)
                    return

    def _check_drain(self) -> None:
        """Walk backwards from the good states; whoever must drain and is not met cannot."""
        if self.drain is None:
            return
        config, states = self.model.config, self.graph.states
        good = bytearray(self.drain.good(config, state) for state in states)
        demanded = bytearray(self.drain.demanded(config, state) for state in states)
        stuck = undrainable(self.sources, self.targets, good, demanded)
        self.result.undrainable = len(stuck)
        if stuck:
            self._violated(stuck[0], self.drain.name, f"{len(stuck)} states, this one among them, cannot drain")
