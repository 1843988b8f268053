"""Which states cannot reach a good one? A backward search over the numbers of the states."""

from __future__ import annotations

from array import array
from itertools import accumulate


def undrainable(sources: array[int], targets: array[int], good: bytearray, demanded: bytearray) -> list[int]:
    """The states that must drain and cannot, in ascending order.

    There is an edge from `sources[i]` to `targets[i]` for every i; `good` and `demanded` have a byte for every state.
    """
    firsts, before = _backwards(sources, targets, len(good))
    drains = bytearray(good)
    todo = [number for number, is_good in enumerate(good) if is_good]
    while todo:
        number = todo.pop()
        for source in before[firsts[number] : firsts[number + 1]]:
            if not drains[source]:
                drains[source] = 1
                todo.append(source)
    return [number for number, must in enumerate(demanded) if must and not drains[number]]


def _backwards(sources: array[int], targets: array[int], states: int) -> tuple[array[int], array[int]]:
    """The edges sorted by target: those into state n come from `before[firsts[n]:firsts[n + 1]]`."""
    counts = array("q", bytes(8 * (states + 1)))
    for target in targets:
        counts[target + 1] += 1
    firsts = array("q", accumulate(counts))
    free = firsts[:]
    before = array("q", bytes(8 * len(sources)))
    for source, target in zip(sources, targets, strict=True):
        before[free[target]] = source
        free[target] += 1
    return firsts, before
