"""What a message's decoding owes the slots that it names, whatever is wrong with it: one process, anonymous memory."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from arena.errors import CorruptError, StaleSlotError
from arena.message import codec
from arena.message.codec import OUT_OF_BAND, Buffer, Kind
from arena.message.leases import Decoder, PayloadLate
from arena.protocol.slots import Grant, SlotReader, SlotWriter
from arena.shm.layout import PAGE, Layout
from arena.shm.native import ffi

BYTES = bytes(range(100))


@pytest.fixture
def layout() -> Layout:
    return Layout(1, 3, PAGE, 4 * PAGE)


@pytest.fixture
def decoder(segment: Any) -> Decoder:
    return Decoder(SlotReader(segment, 0), private=False, readonly=False)


def sent(writer: SlotWriter, payload: bytes = BYTES) -> Grant:
    slot = writer.claim(len(payload))
    assert isinstance(slot, int)
    writer.copy(slot, ffi.from_buffer(payload), 1)
    writer.publish([slot], 0b1)
    writer.enqueue([slot], 0)
    return writer.grant(slot)


def pickled(buffers: int) -> bytes:
    return pickle.dumps([pickle.PickleBuffer(b"") for _ in range(buffers)], 5, buffer_callback=lambda each: None)


def parts_of(grants: Sequence[Grant], table: list[Buffer], inline: Sequence[bytes] = (), flags: int = 0) -> list[bytes]:
    """A message in frames: its head, its table, its pickle, each inline buffer."""
    payload = pickled(len(table))
    head, packed_table = codec.pack(flags, 7, [payload], list(grants), table, len(inline))
    return [head, packed_table, payload, *inline]


def nothing(number: int, n_frames: int) -> Sequence[memoryview]:
    raise AssertionError("nothing travels beside this message")


def decode(decoder: Decoder, record: bytes, receive: Any = nothing) -> Any:
    return decoder.decode(ffi.from_buffer(record), len(record), receive)


def is_free(writer: SlotWriter) -> bool:
    writer.collect()
    return writer.usage() == (3, 0)


def test_views_show_their_bytes_and_hold_their_slots(writer: SlotWriter, decoder: Decoder) -> None:
    grants = [sent(writer), sent(writer, BYTES[::-1])]
    table = [Buffer(Kind.SLOT_BYTES, 1, 10, 90), Buffer(Kind.INLINE_BYTES, 0, 0, 3), Buffer(Kind.SLOT_BYTES, 0, 0, 100)]
    views = decode(decoder, b"".join(parts_of(grants, table, [b"abc"])))
    assert [bytes(view) for view in views] == [BYTES[::-1][10:], b"abc", BYTES]
    assert writer.collect() == 0
    del views[0]
    assert writer.collect() == 1
    del views
    assert is_free(writer)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 101), (1, 100), (100, 1)])
def test_a_buffer_outside_its_extent_is_corrupt(
    writer: SlotWriter, decoder: Decoder, offset: int, nbytes: int
) -> None:
    record = b"".join(parts_of([sent(writer)], [Buffer(Kind.SLOT_BYTES, 0, offset, nbytes)]))
    with pytest.raises(CorruptError, match="extent of 100"):
        decode(decoder, record)
    assert is_free(writer)


@pytest.mark.parametrize("wrong", [0, 1])
def test_one_slot_that_is_stale_keeps_none_of_the_others(writer: SlotWriter, decoder: Decoder, wrong: int) -> None:
    grants = [sent(writer), sent(writer)]
    told = [Grant(slot, generation + (index == wrong)) for index, (slot, generation) in enumerate(grants)]
    table = [Buffer(Kind.SLOT_BYTES, index, 0, 100) for index in range(2)]
    with pytest.raises(StaleSlotError):
        decode(decoder, b"".join(parts_of(told, table)))
    assert writer.collect() == 1  # the other one


def test_a_damaged_body_is_not_unpickled_and_releases(writer: SlotWriter, decoder: Decoder) -> None:
    record = bytearray(b"".join(parts_of([sent(writer)], [Buffer(Kind.SLOT_BYTES, 0, 0, 100)])))
    record[-1] ^= 1
    with pytest.raises(CorruptError):
        decode(decoder, bytes(record))
    assert is_free(writer)


def test_what_travels_beside_a_message_is_fetched_whole(writer: SlotWriter, decoder: Decoder) -> None:
    asked: list[tuple[int, int]] = []
    head, *frames = parts_of(
        [sent(writer)], [Buffer(Kind.INLINE_BYTES, 0, 0, 3), Buffer(Kind.SLOT_BYTES, 0, 0, 100)], [b"abc"], OUT_OF_BAND
    )

    def receive(number: int, n_frames: int) -> Sequence[memoryview]:
        asked.append((number, n_frames))
        return [memoryview(frame) for frame in frames]

    first, second = decode(decoder, head, receive)
    assert (bytes(first), bytes(second)) == (b"abc", BYTES)
    assert asked == [(7, 3)]
    frames[-1] = b"abcd"
    with pytest.raises(CorruptError, match="other lengths"):
        decode(decoder, head, receive)


@pytest.mark.parametrize(("error", "is_kept"), [(PayloadLate, True), (KeyboardInterrupt, False)])
def test_a_payload_that_is_late_leaves_the_record_and_a_failure_releases(
    writer: SlotWriter, decoder: Decoder, error: type[BaseException], is_kept: bool
) -> None:
    head, *_ = parts_of([sent(writer)], [Buffer(Kind.SLOT_BYTES, 0, 0, 100)], (), OUT_OF_BAND)

    def receive(number: int, n_frames: int) -> Sequence[memoryview]:
        raise error

    with pytest.raises(error):
        decode(decoder, head, receive)
    assert writer.collect() == (0 if is_kept else 1)
    assert decoder.is_spent is not is_kept


def test_a_record_that_was_decoded_is_spent(writer: SlotWriter, decoder: Decoder) -> None:
    assert not decoder.is_spent
    assert decode(decoder, b"".join(parts_of([], []))) == []  # a pickle and nothing else
    assert decoder.is_spent
    decoder.is_spent = False
    head, *frames = parts_of([sent(writer)], [Buffer(Kind.SLOT_BYTES, 0, 0, 100)], (), OUT_OF_BAND)

    def receive(number: int, n_frames: int) -> Sequence[memoryview]:
        assert not decoder.is_spent  # it may still be late
        return [memoryview(frame) for frame in frames]

    decode(decoder, head, receive)
    assert decoder.is_spent
