"""Which objects to evict for room: pure arithmetic over byte ranges.

An extent needs one free range, so evicting the oldest objects one after another may empty half a cache before two
neighbours happen to go.  Here the fewest ages are given up: the youngest victim is as old as it can be, and only the
victims of one range go, so nothing is evicted that evicting in order of age would have kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Victim(NamedTuple):
    """An object that may be evicted: its range, and its place in order of last use (0 is the oldest)."""

    start: int
    end: int
    age: int


def choose(
    free: Sequence[tuple[int, int]], victims: Sequence[Victim], nbytes: int, chunk_bytes: int | None = None
) -> list[Victim] | None:
    """The victims that make one free range of ``nbytes``; None if even all of them would not.

    Args:
        free: the free ranges.
        victims: what may be evicted; what has several ranges is a victim for each, of one age.  No two ranges overlap.
        nbytes: how much is needed.
        chunk_bytes: a range that is not longer may not cross a multiple of this; None for no such thing.
    """
    if chunk_bytes is not None and nbytes > chunk_bytes:
        chunk_bytes = None
    places = [Victim(start, end, -1) for start, end in free] + list(victims)
    runs = list(_runs(sorted(places), chunk_bytes))
    least, most = 0, max((victim.age for victim in victims), default=-1) + 1  # how many of the oldest are considered
    window = _window(runs, most, nbytes)
    while window is not None and least < most:
        middle = (least + most) // 2
        older = _window(runs, middle, nbytes)
        if older is None:
            least = middle + 1
        else:
            most, window = middle, older
    return None if window is None else [place for place in window if place.age >= 0]


def _window(runs: Sequence[Sequence[_Piece]], oldest: int, nbytes: int) -> list[Victim] | None:
    """Neighbours that are free or among the ``oldest`` victims and make up ``nbytes``; what costs the fewest bytes."""
    best: tuple[int, Sequence[_Piece], int, int] | None = None
    for run in runs:
        first = length = cost = 0
        for count, piece in enumerate(run, 1):
            if piece.of.age >= oldest:
                first, length, cost = count, 0, 0
                continue
            length += piece.nbytes
            cost += piece.cost
            while length - run[first].nbytes >= nbytes:
                length -= run[first].nbytes
                cost -= run[first].cost
                first += 1
            if length >= nbytes and (best is None or cost < best[0]):
                best = cost, run, first, count
    if best is None:
        return None
    _, run, first, end = best
    return [piece.of for piece in run[first:end]]


class _Piece(NamedTuple):
    """Of a place, what lies in one chunk."""

    of: Victim
    end: int
    nbytes: int
    cost: int


def _runs(places: Sequence[Victim], chunk_bytes: int | None) -> Iterator[list[_Piece]]:
    """The pieces of places that lie end to end, within a chunk."""
    run: list[_Piece] = []
    for place in places:
        for start, stop in _cut(place.start, place.end, chunk_bytes):
            if run and (start != run[-1].end or (chunk_bytes and start % chunk_bytes == 0)):
                yield run
                run = []
            run.append(_Piece(place, stop, stop - start, place.end - place.start if place.age >= 0 else 0))
    if run:
        yield run


def _cut(start: int, end: int, chunk_bytes: int | None) -> Iterator[tuple[int, int]]:
    """A range in pieces that cross no multiple of ``chunk_bytes``."""
    while chunk_bytes and start // chunk_bytes != (end - 1) // chunk_bytes:
        stop = (start // chunk_bytes + 1) * chunk_bytes
        yield start, stop
        start = stop
    yield start, end
