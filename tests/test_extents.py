"""The extents of the data area against the simplest thing that could be right: a list of pages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from arena.protocol.extents import Extents
from arena.shm.layout import PAGE

PAGES = 24


class AgainstAListOfPages(RuleBasedStateMachine):
    """First fit at the lowest address, joined with its neighbours when given back."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.extents = Extents(PAGES * PAGE)
        self.busy = [False] * PAGES
        self.lengths: dict[int, int] = {}

    def first_fit(self, n_pages: int) -> int | None:
        return next((i for i in range(PAGES - n_pages + 1) if not any(self.busy[i : i + n_pages])), None)

    @rule(target=taken, nbytes=st.integers(1, 10 * PAGE))
    def take(self, nbytes: int) -> object:
        n_pages = -(-nbytes // PAGE)
        page = self.first_fit(n_pages)
        offset = self.extents.take(nbytes)
        assert offset == (None if page is None else page * PAGE)
        if page is None or offset is None:
            return multiple()
        self.busy[page : page + n_pages] = [True] * n_pages
        self.lengths[offset] = n_pages
        return offset

    @rule(offset=consumes(taken))
    def give(self, offset: int) -> None:
        n_pages = self.lengths.pop(offset)
        page = offset // PAGE
        assert self.extents.length(offset) == n_pages * PAGE
        self.extents.give(offset)
        self.busy[page : page + n_pages] = [False] * n_pages
        with pytest.raises(ValueError, match=f"offset={offset}"):
            self.extents.give(offset)

    @invariant()
    def the_same_pages_are_free(self) -> None:
        free = self.extents.free_ranges()
        pages = {page for start, end in free for page in range(start // PAGE, end // PAGE)}
        assert pages == {page for page in range(PAGES) if not self.busy[page]}
        assert all(a[1] < b[0] for a, b in pairwise(free))  # in order, and never two that touch
        assert all(start < end for start, end in free)
        assert self.extents.used_bytes == sum(self.busy) * PAGE


TestAgainstAListOfPages = AgainstAListOfPages.TestCase
TestAgainstAListOfPages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 6 * PAGE), max_size=20), st.randoms())
def test_all_given_back_is_one_range(sizes: list[int], random: object) -> None:
    extents = Extents(64 * PAGE)
    offsets = [offset for size in sizes if (offset := extents.take(size)) is not None]
    random.shuffle(offsets)  # type: ignore[attr-defined]
    for offset in offsets:
        extents.give(offset)
    assert extents.free_ranges() == [(0, 64 * PAGE)]
    assert extents.used_bytes == 0


def test_no_bytes_at_all() -> None:
    extents = Extents(0)
    assert extents.take(1) is None
    assert extents.free_ranges() == []


@pytest.mark.parametrize("capacity_bytes", [-PAGE, 1, PAGE + 1])
def test_a_capacity_of_whole_pages(capacity_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"capacity_bytes={capacity_bytes}"):
        Extents(capacity_bytes)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_extent_has_bytes(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"nbytes={nbytes}"):
        Extents(PAGE).take(nbytes)
