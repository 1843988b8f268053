"""What the ends of the ring owe their callers beyond the model: outcomes, cursors that cannot be, deaths in a sleep.

One process and anonymous memory. Nothing here is timed: a sleep that does not end when it must is a test that hangs.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from lockstep_slots import AnonymousSegment

from arena.errors import CorruptError
from arena.protocol.ring import Outcome, RingReader, RingWriter, record_footprint
from arena.shm.layout import (
    EMPTY_WORD,
    HEADER_PUBLISHED,
    HEADER_WRITER_PARK,
    MEMBER_BYTES,
    MEMBER_CONSUMED,
    MEMBER_PARK,
    PAGE,
    Layout,
    MemberWord,
    State,
)  # fmt: skip
from arena.shm.native import ffi, lib

FOREVER_US = 3600 * 10**6


@pytest.fixture
def layout() -> Layout:
    return Layout(2, 1, PAGE, PAGE)


@pytest.fixture
def writer(segment: Any) -> RingWriter:
    return RingWriter(segment)


def joining(segment: Any, row: int) -> RingReader:
    entry = MemberWord(State.JOINING, row + 1, 1)
    assert lib.arena_member_claim(segment.mapping, row, EMPTY_WORD, entry.pack())
    return RingReader(segment, row, entry)


def admitted(segment: Any, writer: RingWriter, row: int) -> RingReader:
    reader = joining(segment, row)
    assert writer.admit(row, writer.entry(row))
    assert reader.wait_admission(0) is Outcome.OK
    return reader


def send(writer: RingWriter, nbytes: int = 8) -> Outcome:
    return writer.send([ffi.from_buffer(bytes(nbytes))], [nbytes])


def word(segment: AnonymousSegment, at: int, nbytes: int = 8, value: int | None = None) -> int:
    control = ffi.buffer(segment.mapping.control, segment.layout.control_bytes)
    if value is not None:
        control[at : at + nbytes] = value.to_bytes(nbytes, "little")
    return int.from_bytes(control[at : at + nbytes], "little")


def cursor(row: int) -> int:
    return PAGE + row * MEMBER_BYTES + MEMBER_CONSUMED


def park(row: int) -> int:
    return PAGE + row * MEMBER_BYTES + MEMBER_PARK


def members_changed(writer: RingWriter) -> bool:
    return bool(lib.arena_members_changed(writer._segment.mapping, writer._words))


# ---- members ----------------------------------------------------------------------------------------------------------


def test_admission_starts_at_the_next_record_and_changes_what_was_seen(segment: Any, writer: RingWriter) -> None:
    assert send(writer) is Outcome.OK
    reader = joining(segment, 1)
    assert reader.rank == 1
    assert not reader.admitted
    assert members_changed(writer)
    assert [entry.state for entry in writer.entries()] == [State.EMPTY, State.JOINING]
    assert not members_changed(writer)
    assert reader.wait_admission(0) is Outcome.EMPTY
    assert not reader.admitted
    assert writer.admit(1, writer.entry(1))
    assert not members_changed(writer)  # its own doing
    assert writer.members == 0b10
    assert reader.wait_admission(0) is Outcome.OK
    assert reader.admitted
    assert reader.read() is Outcome.EMPTY
    writer.clear_entry(1)
    assert not members_changed(writer)
    assert writer.entry(1).state is State.EMPTY


def test_an_admission_that_comes_too_late_is_none(segment: Any, writer: RingWriter) -> None:
    reader = joining(segment, 0)
    (seen, _) = writer.entries()
    reader.leave()
    assert not writer.admit(0, seen)
    assert writer.members == 0
    assert members_changed(writer)  # it must be looked at again


def test_a_look_is_due_when_an_entry_has_changed_or_after_a_while(segment: Any, writer: RingWriter) -> None:
    assert writer.look_due()  # for the first time
    writer._ring.look_us = 2**63
    assert not writer.look_due()
    joining(segment, 1)
    assert writer.look_due()
    assert writer._ring.look_us < 2**63  # the next one is so much later than this one
    writer.entries()
    writer._ring.look_us = 2**63
    assert not writer.begin()
    assert writer.begun == writer.position == 0
    writer._ring.look_us = 0
    assert writer.begin()
    assert writer._ring.look_us > 0


def test_lag_is_of_members(segment: Any, writer: RingWriter) -> None:
    readers = [admitted(segment, writer, row) for row in (0, 1)]
    assert send(writer) is Outcome.OK
    assert [writer.lag(row) for row in (0, 1)] == [16, 16]
    assert readers[1].read() is Outcome.OK
    readers[1].finish()
    assert [writer.lag(row) for row in (0, 1)] == [16, 0]
    writer.drop_reader(0)
    assert writer.members == 0b10
    assert [writer.lag(row) for row in (0, 1)] == [0, 0]


@pytest.mark.parametrize("cause", ["ahead", "behind"])
def test_a_cursor_that_cannot_be_is_told_and_gives_no_room(segment: Any, writer: RingWriter, cause: str) -> None:
    """Only a damaged word is ahead of the writer, or goes back: unread records stay."""
    reader = admitted(segment, writer, 0)
    for _ in range(2):
        assert send(writer, PAGE - 8) is Outcome.OK
        assert reader.read() is Outcome.OK
        reader.finish()
    assert send(writer, PAGE - 8) is Outcome.OK
    assert writer.impossible_rows == 0
    word(segment, cursor(0), value=writer.position + 8 if cause == "ahead" else 8)
    assert send(writer) is Outcome.NO_ROOM
    assert writer.impossible_rows == 0b1
    writer.impossible_rows = 0
    assert writer.impossible_rows == 0


# ---- step by step -----------------------------------------------------------------------------------------------------


def test_each_step_of_a_record_does_its_part(segment: Any, writer: RingWriter) -> None:
    """`send` and `finish` are these in one call; the lockstep and the crash tests take them one by one."""
    reader = admitted(segment, writer, 0)
    for payload in (b"12345678", b"abcdefghi"):
        reader.park()
        assert word(segment, park(0), 4) == 1
        assert writer.reserve(len(payload)) is Outcome.OK
        writer.write([ffi.from_buffer(payload)], [len(payload)])
        assert reader.read() is Outcome.EMPTY
        writer.publish(len(payload))
        assert reader.read() is Outcome.OK
        assert bytes(ffi.buffer(*reader.record)) == payload
        assert word(segment, park(0), 4) == 1
        writer.wake_readers()
        assert word(segment, park(0), 4) == 0
        writer.park()
        reader.advance()
        assert writer.lag(0) == 0
        assert word(segment, HEADER_WRITER_PARK, 4) == 1
        reader.wake_writer()
        assert word(segment, HEADER_WRITER_PARK, 4) == 0
    assert send(writer, PAGE // 2) is Outcome.OK
    assert writer.reserve(PAGE // 2) is Outcome.NO_ROOM


@pytest.mark.parametrize("whose", ["writer", "reader"])
def test_who_parks_sleeps_until_the_slice_is_over(segment: Any, writer: RingWriter, whose: str) -> None:
    reader = admitted(segment, writer, 0)
    end, at = (writer, HEADER_WRITER_PARK) if whose == "writer" else (reader, park(0))
    end.park()
    start = time.monotonic()
    end.sleep(40_000)
    assert time.monotonic() - start >= 0.04
    assert word(segment, at, 4) == 1
    end.unpark()
    assert word(segment, at, 4) == 0


def test_a_plain_record_is_a_pickle_and_nothing_else(segment: Any, writer: RingWriter) -> None:
    reader = admitted(segment, writer, 0)
    assert writer.send_plain(7, b"pickled") is Outcome.OK
    assert reader.wait(0, 0) is Outcome.OK
    assert bytes(reader.plain or b"") == b"pickled"
    reader.finish()
    assert send(writer, 8) is Outcome.OK
    assert reader.wait(0, 0) is Outcome.OK
    assert reader.plain is None
    assert writer.send_plain(8, bytes(PAGE)) is Outcome.NO_ROOM


def test_a_record_takes_its_length_and_itself_in_whole_words() -> None:
    assert [record_footprint(nbytes) for nbytes in (0, 1, 7, 8, 9)] == [8, 16, 16, 16, 24]


# ---- waiting for room -------------------------------------------------------------------------------------------------


def test_what_waiting_for_room_comes_to(segment: Any, writer: RingWriter) -> None:
    readers = [admitted(segment, writer, row) for row in (0, 1)]
    assert writer.wait_room(PAGE - 8, FOREVER_US) is Outcome.OK
    assert send(writer, PAGE - 8) is Outcome.OK
    assert writer.wait_room(8, 1) is Outcome.NO_ROOM
    assert word(segment, HEADER_WRITER_PARK, 4) == 0
    readers[1].leave()
    assert writer.wait_room(8, FOREVER_US) is Outcome.EMPTY  # nobody else will wake it for that
    writer.drop_reader(1)
    assert writer.wait_room(8, 1) is Outcome.NO_ROOM  # it left, and has been seen
    writer.shutdown()
    assert writer.wait_room(8, FOREVER_US) is Outcome.CLOSED
    assert writer.closed


def test_waiting_for_members_ends_when_one_joins_or_at_shutdown(segment: Any, writer: RingWriter) -> None:
    assert writer.wait_members(1) is Outcome.EMPTY
    joining(segment, 0)
    assert writer.wait_members(FOREVER_US) is Outcome.OK
    writer.entries()
    assert writer.wait_members(1) is Outcome.EMPTY
    writer.shutdown()
    assert writer.wait_members(FOREVER_US) is Outcome.CLOSED
    assert word(segment, HEADER_WRITER_PARK, 4) == 0


@pytest.mark.parametrize("others", [0, 3])
def test_a_death_ends_the_writers_sleep(writer: RingWriter, others: int) -> None:
    """A dead reader wakes nobody. The one that dies is the last of those that are watched."""
    pipe_out, pipe_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(pipe_in)
        os.read(pipe_out, 1)
        os._exit(0)
    living = [os.pidfd_open(os.getpid()) for _ in range(others)]
    pidfd = os.pidfd_open(pid)
    writer.watch([*living, pidfd])
    writer.park()
    writer.sleep(1)  # nobody has died: a slice
    os.close(pipe_in)
    os.close(pipe_out)
    os.waitpid(pid, 0)
    writer.sleep(FOREVER_US)
    writer.unpark()
    for fd in (*living, pidfd):
        os.close(fd)


def test_a_writer_that_is_not_parked_does_not_sleep(writer: RingWriter) -> None:
    writer.sleep(FOREVER_US)


def test_nobody_to_watch(writer: RingWriter) -> None:
    writer.watch([])
    writer.park()
    writer.sleep(1)
    writer.unpark()


# ---- the reader's end -------------------------------------------------------------------------------------------------


def test_what_waiting_for_a_record_comes_to(segment: Any, writer: RingWriter) -> None:
    reader = admitted(segment, writer, 0)
    assert reader.wait(0, 0) is Outcome.EMPTY
    assert reader.wait(0, 1) is Outcome.EMPTY
    assert reader.wait(1, 0) is Outcome.EMPTY
    assert word(segment, park(0), 4) == 0
    assert send(writer) is Outcome.OK
    assert reader.wait(0, 0) is Outcome.OK
    assert reader.wait(10**9, FOREVER_US) is Outcome.OK
    assert reader.record[1] == 8
    reader.finish()
    writer.close()
    assert reader.wait(0, FOREVER_US) is Outcome.EMPTY  # no record, and the caller sees why
    assert reader.writer_closed
    reader.shutdown()
    assert reader.wait(0, FOREVER_US) is Outcome.CLOSED
    assert reader.closed


def test_who_need_not_wait_leaves_its_park_word_alone(segment: Any, writer: RingWriter) -> None:
    reader = admitted(segment, writer, 0)
    word(segment, park(0), 4, value=7)
    assert reader.wait(0, 0) is Outcome.EMPTY
    assert word(segment, park(0), 4) == 7
    word(segment, park(0), 4, value=0)
    assert send(writer) is Outcome.OK
    word(segment, park(0), 4, value=7)
    assert reader.wait(0, FOREVER_US) is Outcome.OK
    assert word(segment, park(0), 4) == 7


def test_a_joiner_waits_for_its_admission_until_somebody_shuts_down(segment: Any, writer: RingWriter) -> None:
    reader, other = joining(segment, 0), joining(segment, 1)
    assert reader.wait_admission(1) is Outcome.EMPTY
    reader.shutdown()
    assert reader.wait_admission(FOREVER_US) is Outcome.CLOSED
    assert not reader.admitted
    writer.close()
    assert other.wait_admission(FOREVER_US) is Outcome.CLOSED


def test_a_joiner_that_is_admitted_while_it_parks_does_not_sleep(segment: Any, writer: RingWriter) -> None:
    reader = joining(segment, 0)
    reader.park()
    assert writer.admit(0, writer.entry(0))
    assert word(segment, park(0), 4) == 0
    assert reader.wait_admission(FOREVER_US) is Outcome.OK


def test_a_reader_that_is_not_parked_does_not_sleep(segment: Any, writer: RingWriter) -> None:
    admitted(segment, writer, 0).sleep(FOREVER_US)


def test_a_publication_wakes_the_members_that_are_parked_and_no_others(segment: Any, writer: RingWriter) -> None:
    reader = admitted(segment, writer, 0)
    word(segment, park(1), 4, 1)  # of nobody
    reader.park()
    assert reader.recheck() is Outcome.EMPTY
    assert send(writer) is Outcome.OK
    assert [word(segment, park(row), 4) for row in (0, 1)] == [0, 1]
    reader.sleep(FOREVER_US)
    assert reader.recheck() is Outcome.OK
    reader.unpark()
    writer.park()
    assert reader.read() is Outcome.OK
    reader.finish()
    assert word(segment, HEADER_WRITER_PARK, 4) == 0
    writer.sleep(FOREVER_US)


def test_the_writers_end_wakes_everybody(segment: Any, writer: RingWriter) -> None:
    readers = [admitted(segment, writer, row) for row in (0, 1)]
    writer.drop_reader(1)
    for reader in readers:
        reader.park()
    writer.close()
    for row, reader in enumerate(readers):
        assert word(segment, park(row), 4) == 0
        reader.sleep(FOREVER_US)
        assert reader.recheck() is Outcome.OK  # look around


@pytest.mark.parametrize("damage", ["published", "length", "overlong", "only padding"])
def test_a_record_that_cannot_be_is_corrupt(segment: Any, writer: RingWriter, damage: str) -> None:
    reader = admitted(segment, writer, 0)
    assert send(writer, 24) is Outcome.OK
    if damage == "published":
        word(segment, HEADER_PUBLISHED, value=writer.position + PAGE)
    else:
        length = {"length": 32, "overlong": PAGE, "only padding": 2**64 - 1}[damage]
        word(segment, segment.layout.ring_offset, value=length)
    with pytest.raises(CorruptError, match="no possible record at 0"):
        reader.read()


def test_a_record_that_does_not_fit_before_the_end_starts_at_the_beginning(segment: Any, writer: RingWriter) -> None:
    """What it leaves free is padding, which the reader skips and which counts as read with the record."""
    reader = admitted(segment, writer, 0)
    for nbytes in (2000, 1500, 1000, 8, 3000, 600, 2000, 1500, 1000):
        payload = nbytes.to_bytes(2, "little") * (nbytes // 2)
        assert writer.send([ffi.from_buffer(payload)], [nbytes]) is Outcome.OK
        assert reader.read() is Outcome.OK
        assert bytes(ffi.buffer(*reader.record)) == payload
        reader.finish()
        assert writer.lag(0) == 0
    assert reader.read() is Outcome.EMPTY


def test_a_record_may_fill_what_is_left_to_the_byte(segment: Any, writer: RingWriter) -> None:
    reader = admitted(segment, writer, 0)
    for nbytes in (PAGE - 8 - 64, 64 - 8, PAGE - 8, 100, PAGE - 8 - record_footprint(100), 8):
        assert send(writer, nbytes) is Outcome.OK
        assert reader.read() is Outcome.OK
        assert reader.record[1] == nbytes
        reader.finish()
    assert writer.lag(0) == 0
