"""Contracts for CrossHair: it looks for arguments that satisfy the first assertions and break a later one."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

# The pure modules without the package's own __init__, which brings torch and zmq: CrossHair traces what it imports.
_package = ModuleType("arena")
_package.__path__ = [str(Path(__file__).parent.parent.parent / "arena")]
sys.modules.setdefault("arena", _package)

from arena.protocol.extents import PAGE, Extents  # noqa: E402
from arena.shm.layout import LINE, MEMBER_BYTES, Layout, MemberWord, State, align  # noqa: E402


def align_is_the_least_multiple(value: int, to: int) -> None:
    assert 0 <= value < 2**40
    assert to in (8, LINE, PAGE)
    assert align(value, to) % to == 0
    assert value <= align(value, to) < value + to


def parts_do_not_overlap(n_readers: int, n_slots: int, ring_pages: int, data_pages: int) -> None:
    assert 0 <= n_readers <= 63
    assert 0 <= n_slots <= 2**20
    assert 1 <= ring_pages <= 2**20
    assert 0 <= data_pages <= 2**28
    of = Layout(n_readers, n_slots, ring_pages * PAGE, data_pages * PAGE)
    assert PAGE + n_readers * MEMBER_BYTES <= of.slots_offset
    assert of.slots_offset + n_slots * 32 <= of.done_offset
    assert of.done_offset + (n_readers + 1) * n_slots * 8 <= of.hold_offset
    assert of.hold_offset + (n_readers + 1) * n_slots * 8 <= of.ring_offset
    assert of.ring_offset % PAGE == of.control_bytes % PAGE == of.total_bytes % PAGE == 0
    assert of.row_bytes % LINE == of.done_offset % LINE == of.hold_offset % LINE == 0


def member_words_come_back(state: int, pid: int, start: int) -> None:
    assert 0 <= state <= 3
    assert 0 <= pid < 2**22
    assert 0 <= start < 2**40
    word = MemberWord(State(state), pid, start)
    assert MemberWord.unpack(word.pack()) == word


def extents_do_not_overlap(sizes: list[int], given: int) -> None:
    assert len(sizes) <= 4
    assert all(0 < size <= 3 * PAGE for size in sizes)
    extents = Extents(6 * PAGE)
    taken = [(offset, size) for size in sizes if (offset := extents.take(size)) is not None]
    if taken and 0 <= given < len(taken):
        extents.give(taken.pop(given)[0])
    ranges = sorted([(offset, offset + extents.length(offset)) for offset, _ in taken] + extents.free_ranges())
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert sum(end - start for start, end in ranges) == 6 * PAGE
    assert extents.used_bytes == sum(extents.length(offset) for offset, _ in taken)
