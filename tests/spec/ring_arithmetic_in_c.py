"""Runs of the ring, in C and in the Python of `ring_arithmetic`, to be compared."""

from __future__ import annotations

from contextlib import closing

from lockstep_slots import AnonymousSegment
from ring_arithmetic import PAD, find, footprint, reserve

from arena.errors import CorruptError
from arena.protocol.ring import Outcome, RingReader, RingWriter
from arena.shm.layout import EMPTY_WORD, HEADER_PUBLISHED, PAGE, Layout, MemberWord, State
from arena.shm.native import ffi, lib

Decision = tuple[bool, int, tuple[int, int] | None]
"""Whether there was room, the position after the record, and the first record that a reader then took."""


def run_in_python(records: list[tuple[int, int]], capacity: int) -> list[Decision]:
    """Each record is sent if there is room; then the reader takes some."""
    position = consumed = 0
    words: dict[int, int] = {}
    decisions: list[Decision] = []
    for nbytes, reads in records:
        place = reserve(position, consumed, capacity, nbytes)
        if place is not None:
            if place.padding:
                words[position % capacity] = PAD
            words[place.start % capacity] = nbytes
            position = place.end
        first = None
        for _ in range(reads):
            found = find(consumed, position, capacity, words.__getitem__)
            if found is None:
                break
            first = first or found
            consumed = found[0] + footprint(found[1])
        decisions.append((place is not None, position, first))
    return decisions


def run_in_c(records: list[tuple[int, int]], capacity: int) -> list[Decision]:
    """The same with the code."""
    with closing(AnonymousSegment(Layout(1, 1, capacity, PAGE))) as segment:
        writer, reader = ends(segment)
        decisions: list[Decision] = []
        for nbytes, reads in records:
            sent = writer.send([ffi.from_buffer(bytes(nbytes))], [nbytes]) is Outcome.OK
            first = None
            for _ in range(reads):
                if reader.read() is not Outcome.OK:
                    break
                first = first or found_by(reader)
                reader.finish()
            decisions.append((sent, writer.position, first))
        return decisions


def find_in_c(position: int, published: int, capacity: int, words: dict[int, int]) -> tuple[int, int] | None:
    """What a reader makes of any words in the ring."""
    with closing(AnonymousSegment(Layout(1, 1, capacity, PAGE))) as segment:
        _, reader = ends(segment)
        control = ffi.cast("uint64_t *", segment.mapping.control)
        for offset, word in words.items():
            control[(segment.layout.ring_offset + offset) // 8] = word
        control[HEADER_PUBLISHED // 8] = published
        reader._ring.position = position
        try:
            return found_by(reader) if reader.read() is Outcome.OK else None
        except CorruptError:
            return None


def ends(segment: AnonymousSegment) -> tuple[RingWriter, RingReader]:
    """A writer and the reader that it has admitted."""
    entry = MemberWord(State.JOINING, 1, 1)
    writer, reader = RingWriter(segment), RingReader(segment, 0, entry)  # type: ignore[arg-type]
    lib.arena_member_claim(segment.mapping, 0, EMPTY_WORD, entry.pack())
    writer.admit(0, entry)
    reader.wait_admission(0)
    return writer, reader


def found_by(reader: RingReader) -> tuple[int, int]:
    """The position and the length of the record that a reader has found."""
    _, nbytes = reader.record
    return int(reader._ring.end) - int(lib.arena_record_footprint(nbytes)), nbytes
