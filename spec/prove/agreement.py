"""Proof and explicit model speak of the same protocol: every conjunct holds on every reachable explicit state.

The explicit models do not number generations: a reference only says whether it names the current one (and, for object
slots, the one just evicted).  `agreement_messages` and `agreement_objects` give each generation that a state speaks of a
thing of its own, so that the conjuncts can be evaluated as they stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spec.prove.finite import Structure, Thing, evaluator
from spec.prove.logic import Theory


@dataclass(frozen=True)
class Disagreement:
    """An explicit state on which conjuncts fail."""

    state: Any
    conjuncts: tuple[str, ...]


@dataclass(frozen=True)
class Agreement:
    """What the comparison found: how many states it looked at, and the first disagreement."""

    states: int
    disagreement: Disagreement | None


class Facts:
    """Collects things and facts of one structure."""

    def __init__(self, theory: Theory[Any]) -> None:
        self.things: dict[str, dict[Thing, None]] = {name: {} for name in theory.sort_names}
        self.relations: dict[str, set[tuple[Thing, ...]]] = {name: set() for name in theory.relation_names}
        self.functions: dict[str, dict[tuple[Thing, ...], Thing]] = defaultdict(dict)

    def thing(self, sort: str, thing: Thing, **belongs_to: Thing) -> Thing:
        """There is this thing, and this is what the functions make of it."""
        self.things[sort][thing] = None
        for function, owner in belongs_to.items():
            self.functions[function][(thing,)] = owner
        return thing

    def say(self, relation: str, *things: Thing) -> None:
        """The relation holds of these things."""
        self.relations[relation].add(things)

    def structure(self) -> Structure:
        """Everything that was said."""
        return Structure(
            {sort: tuple(things) for sort, things in self.things.items()},
            {name: frozenset(held) for name, held in self.relations.items()},
            self.functions,
        )


def compare(theory: Theory[Any], states: Iterable[Any], structure_of: Callable[[Any], Structure]) -> Agreement:
    """Evaluates every conjunct on the structure of every state, up to the first that fails."""
    conjuncts = evaluator(theory)
    count = 0
    for state in states:
        count += 1
        violated = conjuncts.violated(structure_of(state))
        if violated:
            return Agreement(count, Disagreement(state, tuple(violated)))
    return Agreement(count, None)
