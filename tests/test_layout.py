"""Where the parts of a segment lie, and what a member's word holds: pure arithmetic."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import WATCHDOG_S

from arena.shm import layout, native
from arena.shm.layout import (
    EMPTY_WORD,
    HEADER_BYTES,
    LINE,
    MEMBER_BYTES,
    MEMBERS_OFFSET,
    PAGE,
    PID_LIMIT,
    READERS_MAX,
    SERIAL_LIMIT,
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
        (MEMBERS_OFFSET, of.n_readers * MEMBER_BYTES),
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


@given(
    st.sampled_from(State), st.integers(0, PID_LIMIT - 1), st.integers(0, START_LIMIT - 1), st.integers(0, SERIAL_LIMIT - 1)
)
def test_a_member_word_holds_all_of_it(state: State, pid: int, start: int, serial: int) -> None:
    word = MemberWord(state, pid, start, serial)
    packed = word.pack()
    assert 0 <= packed < 1 << 64
    assert MemberWord.unpack(packed) == word
    assert MemberWord.unpack(word.with_state(State.LEFT).pack()) == MemberWord(State.LEFT, pid, start, serial)


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


PAGE_SIZES = [4096, 16384, 65536]

LIFE_WITH_PAGES = """
import mmap, sys
page = mmap.PAGESIZE = int(sys.argv[1])  # before anything of ours asks for it
from pathlib import Path
import torch
from arena import ArenaConfig, MessageQueue, ObjectCache, SharedOffloadRegion
config = ArenaConfig(capacity_bytes=10 * page + 1, slots=3, divert_bytes=1024, prefault=sys.argv[2], reader_access="private")
queue = MessageQueue(1, 1, max_chunk_bytes=1024, max_chunks=1, arena=config)
reader = MessageQueue.create_from_handle(queue.export_handle(), 0)
for number in range(20):
    queue.enqueue([torch.full((n,), number, dtype=torch.uint8) for n in (page // 2 + 1, 2 * page)])
    received = reader.dequeue(60)
    assert all((tensor == number).all() for tensor in received), number
    received[0].fill_(0)  # this reader's own pages, which the next generation must not show
    first = queue._end.slots.offsets[0]
    assert first % page == 0, first
    del received
assert queue.statistics().diverted_total == 40, queue.statistics()
cache = ObjectCache(4 * page, 0, max_objects=2)
assert (cache.get(cache.put("key", torch.full((page,), 7, dtype=torch.uint8))) == 7).all()
region = SharedOffloadRegion(f"pages-{page}", 3, 1, 2 * page, page)
region.create_next_worker_view(100).fill_(5)
mapped = 0
for line in Path("/proc/self/maps").read_text().splitlines():
    where, _, offset, _, _, *path = line.split()
    if path and path[0].startswith("/memfd:arena"):
        start, end = (int(word, 16) for word in where.split("-"))
        assert (end - start) % page == int(offset, 16) % page == 0, line
        mapped += 1
print(mapped, queue._end.segment.layout.total_bytes // page)
for end in (reader, queue):
    end.shutdown()
cache.shutdown()
region.cleanup()
"""


@pytest.mark.parametrize("page", PAGE_SIZES)
def test_every_kernels_page(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mapped by itself begins and ends at one."""
    monkeypatch.setattr(layout, "PAGE", page)
    for n_readers, n_slots in [(0, 0), (1, 1), (8, 1024), (READERS_MAX, 4096)]:
        of = Layout(n_readers, n_slots, page, 7 * page)
        assert of.ring_offset % page == of.control_bytes % page == of.total_bytes % page == 0
        assert of.ring_offset - of.hold_offset - of.n_rows * of.row_bytes < page, "no more than the rest of a page is lost"
        assert of.slots_offset == MEMBERS_OFFSET + n_readers * MEMBER_BYTES, "the same on every kernel"


@pytest.mark.parametrize(("page", "prefault"), [(16384, "lazy"), (65536, "eager")])
def test_a_queue_a_cache_and_a_region_with_pages_of_another_size(page: int, prefault: str) -> None:
    """All that asks for the page is told another one, of which the kernel's is a part."""
    command = [sys.executable, "-W", "error", "-c", LIFE_WITH_PAGES, str(page), prefault]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    mapped, pages = map(int, done.stdout.split())
    assert mapped == 7  # control and data of both ends and of the cache, and the region
    assert pages <= 14, "a small arena stays small"
