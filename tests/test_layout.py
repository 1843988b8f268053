"""Where the parts of a segment lie, and what a member's word holds: pure arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.shm import native
from arena.shm.layout import (
    EMPTY_WORD,
    HEADER_BYTES,
    LINE,
    MEMBER_BYTES,
    PAGE,
    PID_LIMIT,
    READERS_MAX,
    SLOT_BYTES,
    START_LIMIT,
    WORD_BYTES,
    Layout,
    MemberWord,
    State,
    align,
)

PAGES = st.integers(0, 1 << 40).map(lambda n: n * PAGE)
LAYOUTS = st.builds(Layout, st.integers(0, READERS_MAX), st.integers(0, 1 << 20), PAGES, PAGES)


@given(LAYOUTS)
def test_the_parts_follow_one_another(of: Layout) -> None:
    """No two parts overlap, each has the room it needs, and what is mapped starts at a page."""
    rows_bytes = of.n_rows * of.row_bytes
    parts = [
        (0, HEADER_BYTES),
        (PAGE, of.n_readers * MEMBER_BYTES),
        (of.slots_offset, of.n_slots * SLOT_BYTES),
        (of.done_offset, rows_bytes),
        (of.hold_offset, rows_bytes),
        (of.ring_offset, of.ring_bytes),
        (of.control_bytes, of.data_bytes),
    ]
    for (start, nbytes), (following, _) in pairwise(parts):
        assert start + nbytes <= following
        assert start % LINE == 0
    assert of.ring_offset % PAGE == of.control_bytes % PAGE == 0
    assert parts[-1][0] + parts[-1][1] == of.total_bytes


@given(LAYOUTS)
def test_readers_share_no_cache_line(of: Layout) -> None:
    assert of.row_bytes % LINE == 0
    assert of.row_bytes >= of.n_slots * WORD_BYTES
    assert of.n_rows == of.n_readers + 1


@given(LAYOUTS)
def test_c_is_given_the_same_numbers(of: Layout) -> None:
    geometry = native.geometry(of)
    assert (geometry.slots_offset, geometry.done_offset, geometry.hold_offset) == (
        of.slots_offset, of.done_offset, of.hold_offset,
    )  # fmt: skip
    assert (geometry.ring_offset, geometry.control_bytes) == (of.ring_offset, of.control_bytes)


@given(st.integers(0, 1 << 60), st.sampled_from([8, LINE, PAGE]))
def test_align(value: int, to: int) -> None:
    aligned = align(value, to)
    assert aligned % to == 0
    assert 0 <= aligned - value < to


@given(st.sampled_from(State), st.integers(0, PID_LIMIT - 1), st.integers(0, START_LIMIT - 1))
def test_a_member_word_holds_all_of_it(state: State, pid: int, start: int) -> None:
    word = MemberWord(state, pid, start)
    packed = word.pack()
    assert 0 <= packed < 1 << 64
    assert MemberWord.unpack(packed) == word
    assert MemberWord.unpack(word.with_state(State.LEFT).pack()) == MemberWord(State.LEFT, pid, start)


@given(st.integers(0, (1 << 64) - 1))
def test_every_word_is_a_members(word: int) -> None:
    """Whatever stands in shared memory, reading it fails nowhere and loses no bit."""
    assert MemberWord.unpack(word).pack() == word


def test_zeroed_memory_is_an_empty_entry() -> None:
    assert EMPTY_WORD == 0


def test_a_module_built_from_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.layout, "C_CONSTANTS", (1, *native.layout.C_CONSTANTS[1:]))
    with pytest.raises(ImportError, match="build it again"):
        native.check_layout()
