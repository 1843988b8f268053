"""The bytes of a record: what is written is read, and whatever else is read is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arena.errors import CorruptError
from arena.message import codec
from arena.message.codec import OUT_OF_BAND, Buffer, Kind, Record
from arena.protocol.ring import Outcome, RingReader, RingWriter
from arena.protocol.slots import Grant
from arena.shm import segment
from arena.shm.layout import EMPTY_WORD, PAGE, RECORD_BYTES, Layout, MemberWord, State
from arena.shm.native import ffi, lib

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
GRANTS = st.lists(st.builds(Grant, U32, U64), max_size=5)
INLINE = st.lists(st.binary(max_size=40), max_size=4)


@st.composite
def messages(draw: st.DrawFn) -> tuple[int, list[Grant], list[Buffer], bytes, list[bytes]]:
    """A number, grants, a buffer table that fits them, a pickle, and the inline buffers."""
    grants, inline = draw(GRANTS), draw(INLINE)
    table = [Buffer(draw(st.sampled_from([Kind.INLINE_TENSOR, Kind.INLINE_BYTES])), 0, 0, len(data)) for data in inline]
    for grant in range(len(grants)):
        kind = draw(st.sampled_from([Kind.SLOT_TENSOR, Kind.SLOT_BYTES]))
        table.insert(draw(st.integers(0, len(table))), Buffer(kind, grant, draw(U64), draw(U64)))
    return draw(U64), grants, table, draw(st.binary(max_size=60)), inline


Message = tuple[int, list[Grant], list[Buffer], bytes, list[bytes]]


def packed(message: Message, flags: int = 0) -> bytes:
    number, grants, table, pickled, inline = message
    header, packed_table = codec.pack(flags, number, in_parts(pickled), grants, table, len(inline))
    return header if flags else b"".join([header, packed_table, pickled, *inline])


def in_parts(pickled: bytes) -> list[bytes]:
    return [pickled[:7], pickled[7:]]


def read(record: bytes) -> tuple[Record, list[Grant], list[Buffer], list[bytes]]:
    """Everything a reader looks at."""
    found = Record(memoryview(record))
    plain = found.plain_pickle()
    if plain is not None:
        return found, [], [], [bytes(plain)]
    grants = found.grants()
    if found.flags & OUT_OF_BAND:
        return found, grants, [], []
    buffers = found.buffers(found.table())
    sizes = [buffer.nbytes for buffer in buffers if buffer.kind < Kind.SLOT_TENSOR]
    payload = [bytes(part) for part in found.payload(sizes)]
    found.check_body(found.table(), payload[0])
    return found, grants, buffers, payload


@given(messages())
def test_round_trip(message: Message) -> None:
    number, grants, table, pickled, inline = message
    record, found_grants, found_table, payload = read(packed(message))
    assert (record.number, record.flags) == (number, 0)
    assert (found_grants, found_table, payload) == (grants, table, [pickled, *inline])


@given(messages())
def test_out_of_band_round_trip(message: Message) -> None:
    """The record has the grants alone; the table comes with the other frames."""
    number, grants, table, pickled, inline = message
    record, found_grants, _, _ = read(packed(message, OUT_OF_BAND))
    assert (record.number, record.n_inline, record.pickle_bytes) == (number, len(inline), len(pickled))
    assert found_grants == grants
    packed_table = codec.pack(0, 0, [], grants, table, 0)[1]
    record.check_body(packed_table, pickled)
    assert record.buffers(memoryview(packed_table)) == table


def sent_plain(number: int, pickled: bytes, flip: int | None = None) -> tuple[bytes, bytes | None]:
    """A plain record as it lies in the ring, after one of its bytes was changed, and the pickle that C finds in it."""
    made = segment.create(Layout(1, 0, PAGE, 0))
    try:
        entry = MemberWord(State.JOINING, 1, 1)
        writer, reader = RingWriter(made), RingReader(made, 0, entry)
        assert lib.arena_member_claim(made.mapping, 0, EMPTY_WORD, entry.pack())
        assert writer.admit(0, entry)
        assert reader.wait_admission(0) is Outcome.OK
        assert writer.send_plain(number, pickled) is Outcome.OK
        if flip is not None:
            assert reader.read() is Outcome.OK
            bytes_of = ffi.buffer(*reader.record)
            bytes_of[flip] = bytes([bytes_of[flip][0] ^ 1])
        assert reader.wait(0, 0) is Outcome.OK
        plain = reader.plain
        return bytes(ffi.buffer(*reader.record)), None if plain is None else bytes(plain)
    finally:
        segment.unlink(made.handle)
        made.close()


@given(U64, st.binary(min_size=1, max_size=200))
def test_plain_round_trip(number: int, pickled: bytes) -> None:
    """What C makes is what Python would have made, and each reads the other's."""
    record, plain = sent_plain(number, pickled)
    assert record == b"".join([*codec.pack(0, number, in_parts(pickled), [], [], 0), pickled])
    assert plain == pickled
    assert len(record) == RECORD_BYTES + len(pickled)
    assert read(record)[3] == [pickled]


@given(st.binary(min_size=1, max_size=80), st.data())
def test_one_changed_byte_of_a_plain_record_is_seen(pickled: bytes, data: st.DataObject) -> None:
    flip = data.draw(st.integers(0, codec.header_bytes(0, 0) + len(pickled) - 1))
    record, plain = sent_plain(7, pickled, flip)
    assert plain is None
    with pytest.raises(CorruptError):
        read(record)


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, 0xEF46DB3751D8E999), (1, 0xE934A84ADB052768), (3, 0xE5C7BB4533BC65DD), (4, 0xFFCED8604453CC1E),
        (8, 0x884A173614B81B8D), (31, 0xC346D2B59B4D8EE1), (32, 0xCBF59C5116FF32B4), (33, 0x0C535D1ACAFB8EAD),
        (63, 0xE26AA9E2A95F8E4F), (64, 0xF7C67301DB6713F0), (100, 0x6AC1E58032166597), (1000, 0xF306F04AA88B54D3),
    ],
)  # fmt: skip
def test_the_checksum_is_xxh64(nbytes: int, expected: int) -> None:
    """Figures of the reference implementation, for bytes that count up to 250."""
    assert codec.checksum(bytes(i % 251 for i in range(nbytes))) == expected


@given(st.lists(st.binary(max_size=70), max_size=5))
def test_a_checksum_does_not_depend_on_the_pieces(parts: list[bytes]) -> None:
    assert codec.checksum(*parts) == codec.checksum(b"".join(parts))


@given(messages(), st.data())
def test_a_record_that_is_cut_short(message: Message, data: st.DataObject) -> None:
    whole = packed(message)
    with pytest.raises(CorruptError):
        read(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(messages(), st.binary(min_size=1, max_size=50))
def test_a_record_with_more_behind_it(message: Message, more: bytes) -> None:
    with pytest.raises(CorruptError):
        read(packed(message) + more)


@given(messages(), st.data())
def test_one_changed_byte_is_seen(message: Message, data: st.DataObject) -> None:
    """In the header, the grants, the table or the pickle; the bytes of inline buffers carry no sum."""
    whole = bytearray(packed(message))
    checked = len(whole) - sum(map(len, message[4]))
    whole[data.draw(st.integers(0, checked - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptError):
        read(bytes(whole))


@given(st.binary(max_size=300))
@example(b"")
@example(bytes(32))
@example(b"\xff" * 64)
def test_garbage(record: bytes) -> None:
    with contextlib.suppress(CorruptError):
        found, _, _, payload = read(record)
        assert sum(map(len, payload)) <= len(record)
        assert found.flags in (0, OUT_OF_BAND)


@pytest.mark.parametrize(
    "buffer", [Buffer(Kind.UNKNOWN, 0, 0, 0), Buffer(Kind.SLOT_TENSOR, 1, 0, 8), Buffer(Kind.SLOT_BYTES, 1 << 31, 0, 8)]
)
def test_a_buffer_that_cannot_be(buffer: Buffer) -> None:
    header, table = codec.pack(0, 7, [], [Grant(3, 5)], [buffer], 0)
    with pytest.raises(CorruptError, match="1 grants"):
        read(header + table)


@given(messages(), st.integers(1, 40))
def test_a_table_of_another_length(message: Message, more: int) -> None:
    record = Record(memoryview(packed(message, OUT_OF_BAND)))
    table = codec.pack(0, 0, [], message[1], message[2], 0)[1]
    for other in (table + bytes(more), table[:-more]):
        if other != table:
            with pytest.raises(CorruptError, match="a table of"):
                record.buffers(memoryview(other))
