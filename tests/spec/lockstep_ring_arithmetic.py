"""The arithmetic of `arena_ring_reserve` in Python, which exists to be compared with the C and reasoned about."""

from __future__ import annotations

from contextlib import closing

from lockstep_slots import AnonymousSegment

from arena.protocol.ring import Outcome, RingReader, RingWriter, record_footprint
from arena.shm.layout import EMPTY_WORD, PAGE, Layout, MemberWord, State
from arena.shm.native import ffi, lib

Decision = tuple[bool, int]
"""Whether there was room, and the position after the record."""


def place_of_record(position: int, capacity: int, nbytes: int) -> tuple[int, int]:
    """The padding before a record, and where in the ring it starts (rings below the rewind limit)."""
    to_end = capacity - position % capacity
    padding = to_end if record_footprint(nbytes) > to_end else 0
    return padding, (position + padding) % capacity


def run_in_python(records: list[tuple[int, int]]) -> list[Decision]:
    """Each record is sent if there is room; then the reader takes some."""
    position, unread, decisions = 0, [], []
    consumed = 0
    for nbytes, reads in records:
        padding, _ = place_of_record(position, PAGE, nbytes)
        end = position + padding + record_footprint(nbytes)
        fits = end - consumed <= PAGE
        if fits:
            position = end
            unread.append(end)
        decisions.append((fits, position))
        for _ in range(min(reads, len(unread))):
            consumed = unread.pop(0)
    return decisions


def run_in_c(records: list[tuple[int, int]]) -> list[Decision]:
    """The same with the code."""
    with closing(AnonymousSegment(Layout(1, 1, PAGE, PAGE))) as segment:
        writer = RingWriter(segment)  # type: ignore[arg-type]
        entry = MemberWord(State.JOINING, 1, 1)
        reader = RingReader(segment, 0, entry)  # type: ignore[arg-type]
        lib.arena_member_claim(segment.mapping, 0, EMPTY_WORD, entry.pack())
        writer.admit(0, entry)
        reader.wait_admission(0)
        decisions = []
        for nbytes, reads in records:
            sent = writer.send([ffi.from_buffer(bytes(nbytes))], [nbytes]) is Outcome.OK
            decisions.append((sent, writer.position))
            for _ in range(reads):
                if reader.read() is Outcome.OK:
                    reader.finish()
        return decisions
