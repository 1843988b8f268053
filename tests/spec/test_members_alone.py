"""What the writer does about each thing that may become of a reader: one process, anonymous memory, processes that are told
when to die."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from lockstep_slots import AnonymousSegment

from arena.errors import CapacityError
from arena.protocol import members
from arena.protocol.members import Members
from arena.protocol.ring import Outcome, RingReader, RingWriter
from arena.protocol.slots import SlotWriter
from arena.shm.layout import EMPTY_WORD, PAGE, Layout, MemberWord, State
from arena.shm.native import ffi, lib
from arena.statistics import ReaderStatistics

RANKS = (10, 20, 30)


@dataclass
class Process:
    """Stands for a watched process."""

    pid: int
    start: int
    pidfd: int
    dead: bool = False
    suspect: bool = False
    closed: bool = False

    def is_dead(self) -> bool:
        return self.dead

    def is_suspect(self) -> bool:
        return self.suspect

    def how_it_ended(self) -> str:
        return "signal 9"

    def close(self) -> None:
        self.closed = True


class Processes:
    """In place of ``Peer``: what is watched, by row."""

    def __init__(self) -> None:
        self.watched: dict[int, Process] = {}
        self.dead_from_the_start = False
        self.is_short = False

    def watch(self, pid: int, start: int) -> Process:
        row = pid - 100
        if self.is_short:
            raise CapacityError(f"process {pid} cannot be watched")
        self.watched[row] = Process(pid, start, row, dead=self.dead_from_the_start)  # the first pidfd is 0
        return self.watched[row]


class Writer:
    """A ring, slots and members."""

    def __init__(self, segment: Any, processes: Processes) -> None:
        self.segment = segment
        self.ring = RingWriter(segment)
        self.slots = SlotWriter(segment)
        self.members = Members(self.ring, self.slots, RANKS)
        self.processes = processes
        self.watched_fds: list[int] = []
        self.ring.watch = self._watch  # type: ignore[method-assign]

    def _watch(self, pidfds: Any) -> None:
        self.watched_fds = list(pidfds)

    def join(self, row: int) -> RingReader:
        entry = MemberWord(State.JOINING, 100 + row, 1)
        assert lib.arena_member_claim(self.segment.mapping, row, EMPTY_WORD, entry.pack())
        return RingReader(self.segment, row, entry)

    def joined(self, row: int) -> RingReader:
        reader = self.join(row)
        self.members.admit_joiners()
        assert reader.wait_admission(0) is Outcome.OK
        return reader

    def state(self, row: int) -> State:
        return self.ring.entry(row).state

    def send(self, members: int) -> int:
        """A message that carries a slot."""
        slot = self.slots.claim(PAGE)
        assert isinstance(slot, int)
        self.slots.publish([slot], members)
        position = self.ring.position
        assert self.ring.send([ffi.from_buffer(bytes(8))], [8]) is Outcome.OK
        self.slots.enqueue([slot], position)
        return slot


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    processes = Processes()
    monkeypatch.setattr(members, "Peer", processes)
    with closing(AnonymousSegment(Layout(3, 4, PAGE, 4 * PAGE))) as segment:
        yield Writer(segment, processes)


def read(reader: RingReader) -> None:
    assert reader.read() is Outcome.OK
    reader.finish()


def test_joiners_become_members_and_are_watched(writer: Writer) -> None:
    assert writer.members.missing() == [10, 20, 30]
    assert writer.members.rows() == []
    reader = writer.join(1)
    assert writer.state(1) is State.JOINING
    writer.members.admit_joiners()
    assert reader.wait_admission(0) is Outcome.OK
    assert writer.state(1) is State.JOINED
    assert writer.members.rows() == [1]
    assert writer.members.missing() == [10, 30]
    assert writer.members.entry(1).pid == 101
    assert writer.watched_fds == [1]
    writer.joined(0)
    assert writer.members.rows() == [0, 1]
    assert sorted(writer.watched_fds) == [0, 1]
    writer.members.admit_joiners()  # again: nothing to do
    assert writer.members.rows() == [0, 1]
    assert writer.members.deaths_total == 0
    assert writer.members.unreported == []


def test_a_joiner_that_is_dead_already_is_no_member_and_its_rank_is_free(writer: Writer) -> None:
    writer.processes.dead_from_the_start = True
    writer.join(2)
    writer.members.admit_joiners()
    assert writer.state(2) is State.EMPTY
    assert writer.members.rows() == []
    assert writer.members.deaths_total == 1
    assert writer.processes.watched[2].closed
    assert writer.watched_fds == []


def test_a_joiner_that_dies_before_anybody_admits_it_is_seen_by_a_look_for_deaths(writer: Writer) -> None:
    writer.processes.dead_from_the_start = True
    writer.join(2)
    writer.members.look_after()
    assert writer.state(2) is State.EMPTY
    assert writer.members.deaths_total == 1


def test_a_death_frees_room_slots_and_rank_and_is_told(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    for row in (0, 1):
        writer.joined(row)
    slot = writer.send(0b11)
    writer.slots.impossible_rows = writer.ring.impossible_rows = 0b111
    writer.processes.watched[1].dead = True
    assert writer.members.is_gone(1)
    assert not writer.members.is_gone(0)
    assert writer.state(1) is State.JOINED  # asking changes nothing
    with caplog.at_level(logging.WARNING, "arena.members"):
        writer.members.look_after()
    assert "rank 20 (pid 101) has died: signal 9" in caplog.text
    assert writer.members.unreported == ["rank 20 (pid 101): signal 9"]
    assert writer.members.deaths_total == 1
    assert writer.members.rows() == [0]
    assert writer.state(1) is State.EMPTY
    assert writer.slots.required[slot] == 0b01
    assert (writer.slots.impossible_rows, writer.ring.impossible_rows) == (0b101, 0b101)
    assert writer.processes.watched[1].closed
    assert not writer.processes.watched[0].closed
    assert writer.watched_fds == [0]
    writer.members.look_after()
    assert writer.members.deaths_total == 1
    writer.processes.watched[0].dead = True
    writer.members.look_after()
    assert writer.members.deaths_total == 2
    writer.joined(1)
    assert writer.members.rows() == [1]
    assert writer.members.statistics()[1].alive


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_reader_that_leaves_owes_what_it_leased_and_nothing_else(writer: Writer, row: int) -> None:
    reader = writer.joined(row)
    read_slot = writer.send(1 << row)
    read(reader)
    unread_slot = writer.send(1 << row)
    reader.leave()
    assert writer.members.is_gone(row)
    writer.members.look_after()
    assert writer.members.rows() == []
    assert [writer.slots.required[slot] for slot in (read_slot, unread_slot)] == [1 << row, 0]
    assert writer.state(row) is State.LEFT
    assert writer.watched_fds == [row]  # it may still die
    lib.arena_slot_release(writer.segment.mapping, row, read_slot, writer.slots.generations[read_slot])
    writer.members.look_after()
    assert writer.state(row) is State.EMPTY
    assert writer.members.deaths_total == 0
    assert writer.watched_fds == []


def test_a_reader_that_left_before_it_was_admitted_frees_its_rank(writer: Writer) -> None:
    reader = writer.join(0)
    reader.leave()
    writer.members.admit_joiners()
    assert writer.members.rows() == []
    assert writer.state(0) is State.EMPTY
    assert writer.members.deaths_total == 0


def test_a_suspect_is_warned_of_once_in_a_while_and_nothing_is_reclaimed(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    for row in (0, 1):
        writer.joined(row)
    slot = writer.send(0b11)
    writer.processes.watched[1].suspect = True
    with caplog.at_level(logging.WARNING, "arena.members"):
        writer.members.look_after()
        writer.members.look_after()
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["rank 20 (pid 101) seems dead"]
    assert writer.members.rows() == [0, 1]
    assert writer.slots.required[slot] == 0b11
    assert writer.members.deaths_total == 0


def test_a_joiner_that_cannot_be_watched_waits_and_is_told_once_in_a_while(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    writer.joined(0)
    writer.processes.is_short = True
    reader = writer.join(1)
    with caplog.at_level(logging.WARNING, "arena.members"):
        writer.members.admit_joiners()
        writer.members.admit_joiners()
    why = "rank 20 waits: process 101 cannot be watched"
    assert [record.getMessage() for record in caplog.records] == [why]
    assert writer.members.unwatched() == [why]
    assert writer.members.rows() == [0]
    assert writer.state(1) is State.JOINING
    assert writer.watched_fds == [0]
    writer.processes.is_short = False
    writer.members.admit_joiners()
    assert reader.wait_admission(0) is Outcome.OK
    assert writer.members.rows() == [0, 1]
    assert writer.members.unwatched() == []


def test_one_that_left_and_cannot_be_watched_frees_its_rank(writer: Writer) -> None:
    writer.processes.is_short = True
    reader = writer.join(1)
    writer.members.admit_joiners()
    reader.leave()
    writer.members.look_after()
    assert writer.state(1) is State.EMPTY
    assert writer.members.unwatched() == []
    assert writer.members.deaths_total == 0


@pytest.mark.parametrize("whose", ["slots", "ring"])
def test_impossible_words_are_told_once_in_a_while(
    writer: Writer, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    for row in (0, 1):
        writer.joined(row)
    getattr(writer, whose).impossible_rows = 6
    with caplog.at_level(logging.ERROR, "arena.members"):
        writer.members.look_after()
        writer.members.look_after()
    told = [record.getMessage().split(" in shared")[0] for record in caplog.records]
    assert told == ["the words of rank 20 (pid 101)", "the words of rank 30 (pid unknown)"]
    assert writer.members.rows() == [0, 1]


def test_the_pid_of_a_dead_reader_is_not_told_as_its_successors(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    writer.joined(1)
    writer.processes.watched[1].dead = True
    writer.members.look_after()
    writer.ring.impossible_rows = 0b010
    with caplog.at_level(logging.ERROR, "arena.members"):
        writer.members.look_after()
    assert "rank 20 (pid unknown)" in caplog.text


def test_who_is_behind_and_by_how_much(writer: Writer) -> None:
    readers = [writer.joined(row) for row in (0, 2)]
    assert writer.members.who_is_behind() == "no reader is behind"
    writer.send(0b101)
    read(readers[0])
    assert writer.members.who_is_behind() == "behind are rank 30 (pid 102) by 16 bytes"
    assert writer.members.statistics() == (
        ReaderStatistics(10, 100, True, 0), ReaderStatistics(20, 0, False, 0), ReaderStatistics(30, 102, True, 16),
    )  # fmt: skip
    writer.processes.watched[2].dead = True
    assert writer.members.statistics()[2] == ReaderStatistics(30, 102, False, 16)


def test_the_end_of_the_writer_ends_all_watching(writer: Writer) -> None:
    for row in (0, 1):
        writer.joined(row)
    writer.members.close()
    assert [process.closed for process in writer.processes.watched.values()] == [True, True]
