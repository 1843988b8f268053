"""The allocator of extents against a naive oracle that keeps one flag per page."""

from __future__ import annotations

from random import Random

from arena.protocol.extents import Extents
from arena.shm.layout import PAGE
from fuzz.session import Session, expect


class Oracle:
    """Pages of the area: free or taken.  Slow, and too simple to be wrong."""

    def __init__(self, n_pages: int, chunk_pages: int | None) -> None:
        self.taken = bytearray(n_pages)
        self.chunk_pages = chunk_pages or max(n_pages, 1)
        self.lengths: dict[int, int] = {}

    def place(self, n_pages: int) -> int | None:
        """The lowest page from which so many are free and no chunk's end is crossed that need not be."""
        page = 0
        while True:
            page = self.taken.find(bytes(n_pages), page)
            if page < 0:
                return None
            left = self.chunk_pages - page % self.chunk_pages
            if left >= n_pages or n_pages > self.chunk_pages:
                return page
            page += 1

    def take(self, page: int, n_pages: int) -> None:
        self.taken[page : page + n_pages] = b"\1" * n_pages
        self.lengths[page] = n_pages

    def give(self, page: int) -> None:
        n_pages = self.lengths.pop(page)
        self.taken[page : page + n_pages] = bytes(n_pages)

    def free_ranges(self) -> list[tuple[int, int]]:
        """Maximal runs of free pages, in bytes."""
        ranges, start = [], self.taken.find(0)
        while start >= 0:
            end = self.taken.find(1, start)
            end = len(self.taken) if end < 0 else end
            ranges.append((start * PAGE, end * PAGE))
            start = self.taken.find(0, end)
        return ranges


def extents(session: Session) -> None:
    """Allocator sequences against a naive oracle: place, overlap, alignment, coalescing, chunks, no drift."""
    for case in session.cases(20):
        sequence(session, session.rng(case), 2000)
    if session.runs is None and not session.over():
        drift(session, 1_000_000)


def sequence(session: Session, rng: Random, n_operations: int) -> None:
    """Takes and gives at random, compared after each; at the end everything is given back and one range is left."""
    n_pages = rng.choice([0, 1, 7, 64, 500])
    chunk_pages = rng.choice([None, 1, 8, 50])
    area = Extents(n_pages * PAGE, chunk_pages * PAGE if chunk_pages else None)
    oracle = Oracle(n_pages, chunk_pages)
    largest = rng.choice([2, 10, max(1, n_pages)])
    for _ in range(n_operations):
        if oracle.lengths and rng.random() < rng.choice([0.3, 0.5, 0.7]):
            _give(area, oracle, rng)
        elif rng.random() < 0.02:
            area.restore({page * PAGE: n * PAGE - rng.randrange(PAGE) for page, n in oracle.lengths.items()})
        else:
            _take(area, oracle, rng.randint(1, largest * PAGE))
        _compare(area, oracle)
        session.count("operations")
    for page in [*oracle.lengths]:
        area.give(page * PAGE)
        oracle.give(page)
    _compare(area, oracle)
    expect(area.free_ranges() == ([(0, n_pages * PAGE)] if n_pages else []), "free ranges did not join again")


def drift(session: Session, n_operations: int) -> None:
    """A million operations in one area: its private lists must not grow, and the last take must fit where the first did."""
    area, rng = Extents(4096 * PAGE), session.rng("drift")
    taken: list[int] = []
    for _ in range(n_operations):
        if len(taken) > 200 or (taken and rng.random() < 0.5):
            area.give(taken.pop(rng.randrange(len(taken))))
        else:
            offset = area.take(rng.randint(1, 16 * PAGE))
            expect(offset is not None, "an area that is never half full had no room")
            taken.append(offset or 0)
        expect(len(area.free_ranges()) <= len(taken) + 1, "two free ranges stand side by side")
    session.count("operations", n_operations)
    for offset in taken:
        area.give(offset)
    expect(area.free_ranges() == [(0, 4096 * PAGE)] and area.used_bytes == 0, f"drifted: {area.free_ranges()}")


def _take(area: Extents, oracle: Oracle, nbytes: int) -> None:
    n_pages = -(-nbytes // PAGE)
    expected = oracle.place(n_pages) if n_pages <= len(oracle.taken) else None
    offset = area.take(nbytes)
    expect(offset == (None if expected is None else expected * PAGE), f"take({nbytes}) gave {offset}, not page {expected}")
    if expected is not None:
        oracle.take(expected, n_pages)


def _give(area: Extents, oracle: Oracle, rng: Random) -> None:
    page = rng.choice([*oracle.lengths])
    area.give(page * PAGE)
    oracle.give(page)
    try:
        area.give(page * PAGE)
    except ValueError:
        return
    expect(False, f"page {page} was given back twice")


def _compare(area: Extents, oracle: Oracle) -> None:
    expect(area.free_ranges() == oracle.free_ranges(), f"free: {area.free_ranges()}, not {oracle.free_ranges()}")
    used = sum(oracle.lengths.values()) * PAGE
    expect(area.used_bytes == used, f"used_bytes is {area.used_bytes}, not {used}")
    for page, n_pages in oracle.lengths.items():
        expect(area.length(page * PAGE) == n_pages * PAGE, f"page {page} has another length")
