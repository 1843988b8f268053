"""Symmetry reduction: one state stands for all that differ only in the numbering of readers and slots.

A slot is described by its *column*, everything that the state says about it; two slots with equal columns are
interchangeable. So for a given order of the readers, sorting the slots by column gives the one representative, with
no search over the orders of the slots. Only readers that a cheap key cannot tell apart are tried in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, permutations, product
from typing import Any

State = Any
Order = tuple[int, ...]  # order[new number] = old number


def orders(keys: list[Any]) -> list[Order]:
    """Every order of the indexes in which their keys ascend."""
    ascending = sorted(range(len(keys)), key=keys.__getitem__)
    groups = [tuple(group) for _, group in groupby(ascending, key=keys.__getitem__)]
    if len(groups) == len(keys):
        return [tuple(ascending)]
    return [tuple(n for part in parts for n in part) for parts in product(*map(permutations, groups))]


def canonicaliser(
    reader_keys: Callable[[State], list[Any]],
    columns: Callable[[State, Order], list[Any]],
    renumber: Callable[[State, Order, Order], State],
) -> Callable[[State], State]:
    """The function that maps a state to its representative.

    `reader_keys(state)` has one key per reader that no renumbering of slots changes; `columns(state, readers)` has per
    slot everything that the state says about it, the readers taken in the given order; the two together are all that
    the state says, up to numbering. `renumber(state, readers, slots)` renames both.
    """

    def canonical(state: State) -> State:
        best: tuple[list[Any], Order, Order] | None = None
        for readers in orders(reader_keys(state)):
            described = columns(state, readers)
            slots = tuple(sorted(range(len(described)), key=described.__getitem__))
            candidate = ([described[slot] for slot in slots], readers, slots)
            best = candidate if best is None else min(best, candidate)
        if best is None:
            return state
        _, readers, slots = best
        if readers == tuple(range(len(readers))) and slots == tuple(range(len(slots))):
            return state
        return renumber(state, readers, slots)

    return canonical
