"""The arithmetic of `arena_ring_reserve` and `arena_ring_read` once more, in Python: to be compared with the C by
Hypothesis (`ring_arithmetic_in_c.py`) and searched by CrossHair (`contracts.py`). Pure: it imports nothing of arena."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

LENGTH_BYTES = 8
REWIND_BYTES = 256 << 10
PAD = 2**64 - 1  # the length of a record that only fills the rest of the ring


class Place(NamedTuple):
    """Where a record goes: positions grow for ever, a byte's place is its position modulo the capacity."""

    padding: int  # bytes up to the end of the ring that are skipped
    start: int  # its position
    end: int  # the position behind it


def footprint(nbytes: int) -> int:
    """What a record takes: its length, its bytes, rounded up."""
    return (LENGTH_BYTES + nbytes + 7) // 8 * 8


def reserve(position: int, consumed: int, capacity: int, nbytes: int) -> Place | None:
    """Room for a record, where the slowest reader has come to `consumed`; None if there is none."""
    offset, takes = position % capacity, footprint(nbytes)
    to_end = capacity - offset
    is_rewound = offset >= REWIND_BYTES and takes <= offset and consumed == position  # empty: back to the warm pages
    padding = to_end if takes > to_end or is_rewound else 0
    start = position + padding
    return Place(padding, start, start + takes) if start + takes - consumed <= capacity else None


def find(position: int, published: int, capacity: int, word_at: Callable[[int], int]) -> tuple[int, int] | None:
    """A reader's next record, as its position and length; None where the words that it finds cannot be."""
    available, start = published - position, position
    if not 0 < available <= capacity or position % LENGTH_BYTES:
        return None
    to_end, nbytes = capacity - start % capacity, word_at(start % capacity)
    if nbytes == PAD:
        if to_end >= available:
            return None
        start, available, to_end = start + to_end, available - to_end, capacity
        nbytes = word_at(start % capacity)
    if nbytes > to_end - LENGTH_BYTES or footprint(nbytes) > available:
        return None
    return start, nbytes
