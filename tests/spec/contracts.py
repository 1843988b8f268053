"""Contracts for CrossHair: it looks for arguments that satisfy the first assertions and break a later one."""

from __future__ import annotations

import struct
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from crosshair.core import deep_realize
from crosshair.tracers import NoTracing

HERE = Path(__file__).parent


class Grant(NamedTuple):
    """As in `arena.protocol.slots`."""

    slot: int
    generation: int


def stand_in(name: str, **contents: Any) -> None:
    """CrossHair traces what it imports: of the package the pure modules only, without torch, zmq and the C code."""
    sys.modules.setdefault(name, ModuleType(name)).__dict__.update(contents)


stand_in("arena", __path__=[str(HERE.parent.parent / "arena")])
stand_in("arena.protocol", __path__=[str(HERE.parent.parent / "arena" / "protocol")])
stand_in("arena.protocol.slots", Grant=Grant)
# A checksum that anybody can forge: what the codec refuses here it refuses for its numbers.
stand_in(
    "arena.shm.native",
    ffi=SimpleNamespace(from_buffer=lambda part: part),
    lib=SimpleNamespace(arena_checksum=lambda parts, lengths, count: sum(lengths)),
)
sys.path.insert(0, str(HERE))

from ring_arithmetic import LENGTH_BYTES, PAD, find, footprint, reserve  # noqa: E402

from arena.errors import CorruptError  # noqa: E402
from arena.message import codec  # noqa: E402
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


def member_words_come_back(state: int, pid: int, start: int, serial: int) -> None:
    assert 0 <= state <= 3
    assert 0 <= pid < 2**22
    assert 0 <= start < 2**36
    assert 0 <= serial < 2**4
    word = MemberWord(State(state), pid, start, serial)
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


# ---- the ring -------------------------------------------------------------------------------------------------------


def a_record_lies_in_the_ring_and_overwrites_nothing(turn: int, offset: int, unread: int, nbytes: int) -> None:
    assert 0 <= turn <= 3
    assert 0 <= offset < PAGE
    assert 0 <= unread <= PAGE
    assert offset % 8 == unread % 8 == 0
    assert 0 <= nbytes <= 2 * PAGE
    position = turn * PAGE + offset
    place = reserve(position, position - unread, PAGE, nbytes)
    if place is not None:
        assert place.start % PAGE + footprint(nbytes) <= PAGE
        assert place.start in (position, (turn + 1) * PAGE)
        assert place.end - (position - unread) <= PAGE


def a_reader_finds_the_record_where_the_writer_put_it(turn: int, offset: int, nbytes: int) -> None:
    assert 0 <= turn <= 3
    assert 0 <= offset < PAGE
    assert offset % 8 == 0
    assert 0 <= nbytes <= 2 * PAGE
    position = turn * PAGE + offset
    place = reserve(position, position, PAGE, nbytes)
    if place is not None:
        words = {position % PAGE: PAD} if place.padding else {}
        words[place.start % PAGE] = nbytes
        assert find(position, place.end, PAGE, words.__getitem__) == (place.start, nbytes)


def a_reader_stays_in_what_was_published(offset: int, ahead: int, here: int, at_the_start: int) -> None:
    assert 0 <= offset < PAGE
    assert 0 <= ahead < 2 * PAGE
    assert 0 <= here < 2**64
    assert 0 <= at_the_start < 2**64
    position, published = PAGE + offset, PAGE + offset + ahead
    found = find(position, published, PAGE, lambda at: at_the_start if at == 0 else here)
    if found is not None:
        start, nbytes = found
        assert position <= start
        assert start + footprint(nbytes) <= published
        assert start % PAGE + LENGTH_BYTES + nbytes <= PAGE


# ---- records --------------------------------------------------------------------------------------------------------


def in_memory(data: bytes) -> memoryview:
    """Bytes as `struct` takes them: they are decided upon here, the numbers in them are what CrossHair has chosen."""
    decided = deep_realize(data)
    with NoTracing():
        return memoryview(decided)


def a_record_says_what_was_packed(number: int, slot: int, generation: int, kind: int, offset: int, pickled: bytes) -> None:
    assert 0 <= number < 2**64
    assert 0 <= slot < 2**32
    assert 0 <= generation < 2**64
    assert 0 <= kind <= 3
    assert 0 <= offset < 2**64
    assert len(pickled) <= 4
    grants, buffers = [Grant(slot, generation)], [codec.Buffer(codec.Kind(kind), 0, offset, 3)]
    n_inline = int(kind < 2)
    head, table = codec.pack(0, number, [pickled], grants, buffers, n_inline)
    record = codec.Record(in_memory(head + table + pickled + bytes(3 * n_inline)))
    assert len(head) + len(table) == codec.header_bytes(1, 1)
    assert (record.number, record.n_inline, record.grants()) == (number, n_inline, grants)
    assert record.buffers(record.table()) == buffers
    assert [bytes(part) for part in record.payload([3] * n_inline)] == [pickled, *[bytes(3)] * n_inline]


def forged(flags: int, n_grants: int, n_buffers: int, n_inline: int, pickle_bytes: int, length: int) -> memoryview:
    """A record of that length which states these numbers, under the checksum that the stand-in makes of them."""
    head_sum = (40 + 16 * n_grants) % 2**64
    head = struct.pack("<IIIIQQQQ", flags, n_grants, n_buffers, n_inline, 7, pickle_bytes, 0, head_sum)
    return in_memory((head + bytes(length))[:length])


def a_record_gives_out_its_own_bytes_only(n_grants: int, n_buffers: int, pickle_bytes: int, spare: int) -> None:
    assert 0 <= n_grants <= 3
    assert 0 <= n_buffers <= 3
    assert 0 <= pickle_bytes <= 16
    assert -3 <= spare <= 3
    length = codec.header_bytes(n_grants, n_buffers) + pickle_bytes + spare
    try:
        record = codec.Record(forged(0, n_grants, n_buffers, 0, pickle_bytes, length))
        (pickled,) = record.payload([])
    except CorruptError:
        assert spare != 0
        return
    assert spare == 0
    assert (len(record.grants()), len(pickled)) == (n_grants, pickle_bytes)


def a_record_that_states_more_than_it_has_is_refused(flags: int, n_grants: int, n_buffers: int, length: int) -> None:
    assert 0 <= flags < 4
    assert 0 <= n_grants < 2**32
    assert 0 <= n_buffers < 2**32
    assert 0 <= length <= 200
    here = codec.header_bytes(n_grants, 0 if flags & codec.OUT_OF_BAND else n_buffers)
    try:
        codec.Record(forged(flags, n_grants, n_buffers, 0, 0, length))
    except CorruptError:
        return
    assert length >= here
    assert flags <= codec.OUT_OF_BAND


def a_table_names_its_own_grants_only(kind: int, grant: int, n_grants: int) -> None:
    assert 0 <= kind <= 5
    assert 0 <= grant <= 4
    assert 0 <= n_grants <= 3
    head, _ = codec.pack(codec.OUT_OF_BAND, 7, [], [Grant(0, 1)] * n_grants, [codec.Buffer(codec.Kind(0), 0, 0, 0)], 0)
    try:
        (buffer,) = codec.Record(in_memory(head)).buffers(in_memory(struct.pack("<IIQQ", kind, grant, 64, 3)))
    except CorruptError:
        return
    assert kind <= codec.Kind.SLOT_BYTES
    assert buffer == (kind, grant, 64, 3)
    assert kind < codec.Kind.SLOT_TENSOR or grant < n_grants
