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


def choose(free: Sequence[tuple[int, int]], victims: Sequence[Victim], nbytes: int) -> list[Victim] | None:
    """The victims that make one free range of ``nbytes``; None if even all of them would not.

    Args:
        free: the free ranges.
        victims: what may be evicted; what has several ranges is a victim for each, of one age.  No two ranges overlap.
    """
    places = sorted([Victim(start, end, -1) for start, end in free] + list(victims))
    least, most = 0, max((victim.age for victim in victims), default=-1) + 1  # how many of the oldest are considered
    if _window(places, most, nbytes) is None:
        return None
    while least < most:
        middle = (least + most) // 2
        if _window(places, middle, nbytes) is None:
            least = middle + 1
        else:
            most = middle
    window = _window(places, least, nbytes)
    return None if window is None else [place for place in window if place.age >= 0]


def _window(places: Sequence[Victim], oldest: int, nbytes: int) -> list[Victim] | None:
    """Neighbours that are free or among the ``oldest`` victims and make up ``nbytes``; what costs the fewest bytes."""
    best: list[Victim] | None = None
    for run in _runs(place for place in places if place.age < oldest):
        first = length = 0
        for count, place in enumerate(run, 1):
            length += _size(place)
            while length - _size(run[first]) >= nbytes:
                length -= _size(run[first])
                first += 1
            if length >= nbytes and (best is None or _cost(run[first:count]) < _cost(best)):
                best = run[first:count]
    return best


def _size(place: Victim) -> int:
    return place.end - place.start


def _cost(window: Sequence[Victim]) -> int:
    return sum(_size(place) for place in window if place.age >= 0)


def _runs(places: Iterator[Victim]) -> Iterator[list[Victim]]:
    """The places that lie end to end."""
    run: list[Victim] = []
    for place in places:
        if run and run[-1].end != place.start:
            yield run
            run = []
        run.append(place)
    if run:
        yield run
