"""Extents keep within a chunk where they fit into one, are first fit, and lose nothing; what is warm is known by chunk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.protocol.extents import PAGE, Extents
from arena.protocol.warmth import Part, Warmth

TOTAL = 24  # pages


def first_fit(taken: set[int], pages: int, chunk: int) -> int | None:
    """The lowest page where a range of this length may lie, by trying all of them."""
    for start in range(TOTAL - pages + 1):
        in_one = start // chunk == (start + pages - 1) // chunk
        if (in_one or pages > chunk) and taken.isdisjoint(range(start, start + pages)):
            return start
    return None


@given(st.integers(1, TOTAL), st.lists(st.tuples(st.integers(1, TOTAL), st.booleans()), max_size=30))
def test_first_fit_without_crossing(chunk: int, steps: list[tuple[int, bool]]) -> None:
    extents = Extents(TOTAL * PAGE, chunk * PAGE)
    held: dict[int, int] = {}
    for pages, gives in steps:
        if gives and held:
            offset = sorted(held)[pages % len(held)]
            extents.give(offset * PAGE)
            del held[offset]
        else:
            taken = {page for start, length in held.items() for page in range(start, start + length)}
            expected, got = first_fit(taken, pages, chunk), extents.take(pages * PAGE)
            assert got == (None if expected is None else expected * PAGE)
            if expected is not None:
                held[expected] = pages
        assert extents.used_bytes == sum(held.values()) * PAGE
        assert sum(end - start for start, end in extents.free_ranges()) == (TOTAL - sum(held.values())) * PAGE
    for offset in held:
        extents.give(offset * PAGE)
    assert extents.free_ranges() == [(0, TOTAL * PAGE)]


@pytest.mark.parametrize("chunk_bytes", [0, 1, PAGE + 1, -PAGE])
def test_a_chunk_is_whole_pages(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="chunk_bytes"):
        Extents(TOTAL * PAGE, chunk_bytes)


@given(st.integers(1, 8), st.integers(0, 200), st.integers(1, 200))
def test_parts_cover_a_range_chunk_by_chunk(pages: int, offset: int, nbytes: int) -> None:
    size = pages * 16
    parts = list(Warmth(size).parts(offset, nbytes))
    assert [byte for part in parts for byte in range(part.offset, part.offset + part.nbytes)] == list(
        range(offset, offset + nbytes)
    )
    assert all(part.offset // size == (part.offset + part.nbytes - 1) // size for part in parts)
    assert all(part.warm_bytes == 0 for part in parts)


def test_each_chunk_has_its_own_mark() -> None:
    warmth = Warmth(4 * PAGE)
    for part in warmth.parts(4 * PAGE, 2 * PAGE):
        warmth.mark(part)
    assert list(warmth.parts(2 * PAGE, 5 * PAGE)) == [Part(2 * PAGE, 2 * PAGE, 0), Part(4 * PAGE, 3 * PAGE, 2 * PAGE)]
    warmth.mark(Part(7 * PAGE, PAGE, 0))  # beyond a gap that was never filled
    assert list(warmth.parts(4 * PAGE, 4 * PAGE)) == [Part(4 * PAGE, 4 * PAGE, 2 * PAGE)]
