"""Extents that are made anew from what is taken are the same extents: what a signal handler's exception cut short.

And a few placings, one by one, that the searches of the other tests find at random.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.protocol.extents import PAGE, Extents

PAGES = 16


def taken_and_given(sizes: list[int], gives: list[int]) -> tuple[Extents, dict[int, int]]:
    extents = Extents(PAGES * PAGE)
    taken = {offset: nbytes for nbytes in sizes if (offset := extents.take(nbytes)) is not None}
    for index in gives:
        if taken:
            offset = sorted(taken)[index % len(taken)]
            extents.give(offset)
            del taken[offset]
    return extents, taken


@given(st.lists(st.integers(1, 5 * PAGE), max_size=12), st.lists(st.integers(0, 20), max_size=12))
def test_what_is_restored_is_what_was(sizes: list[int], gives: list[int]) -> None:
    """The lengths are those that were asked for, not rounded up: the writer's lists know no others."""
    extents, taken = taken_and_given(sizes, gives)
    restored = Extents(PAGES * PAGE)
    restored.take(3 * PAGE)  # whatever it says before
    restored.restore(taken)
    assert restored.free_ranges() == extents.free_ranges()
    assert restored.used_bytes == extents.used_bytes
    assert [restored.length(offset) for offset in taken] == [extents.length(offset) for offset in taken]
    for offset in taken:
        restored.give(offset)
    assert restored.free_ranges() == [(0, PAGES * PAGE)]
    assert restored.used_bytes == 0


def test_nothing_is_taken_beside_what_is_said() -> None:
    extents = Extents(PAGES * PAGE)
    extents.take(PAGE)
    extents.restore({2 * PAGE: 1})
    assert extents.length(0) == 0
    with pytest.raises(ValueError, match="offset=0"):
        extents.give(0)
    assert extents.take(2 * PAGE) == 0
    assert extents.take(PAGE) == 3 * PAGE


def test_a_full_area_has_no_free_range() -> None:
    extents = Extents(2 * PAGE)
    extents.restore({0: PAGE, PAGE: PAGE})
    assert extents.free_ranges() == []
    assert extents.take(1) is None


def test_an_extent_keeps_within_a_chunk_and_what_it_skips_stays_free() -> None:
    extents = Extents(8 * PAGE, 4 * PAGE)
    assert extents.take(3 * PAGE) == 0
    assert extents.take(2 * PAGE) == 4 * PAGE
    assert extents.free_ranges() == [(3 * PAGE, 4 * PAGE), (6 * PAGE, 8 * PAGE)]
    assert extents.take(1) == 3 * PAGE
    assert extents.take(2 * PAGE) == 6 * PAGE
    assert extents.free_ranges() == []
    extents.give(4 * PAGE)
    assert extents.take(PAGE) == 4 * PAGE
    assert extents.free_ranges() == [(5 * PAGE, 6 * PAGE)]


def test_a_chunk_may_be_a_page_and_an_extent_longer_than_it() -> None:
    extents = Extents(4 * PAGE, PAGE)
    assert extents.take(PAGE) == 0
    assert extents.take(3 * PAGE) == PAGE


def test_a_free_range_between_others_that_is_taken_whole_is_gone() -> None:
    extents = Extents(6 * PAGE)
    for _ in range(6):
        extents.take(PAGE)
    for page in (0, 2, 3, 5):
        extents.give(page * PAGE)
    assert extents.free_ranges() == [(0, PAGE), (2 * PAGE, 4 * PAGE), (5 * PAGE, 6 * PAGE)]
    assert extents.take(2 * PAGE) == 2 * PAGE
    assert extents.free_ranges() == [(0, PAGE), (5 * PAGE, 6 * PAGE)]
