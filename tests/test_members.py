"""Readers that join, leave, die and come back, as the writer sees them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from cache_support import CacheProcess
from support import SMALL, Reader, queue_of

from arena import MessageQueue, ObjectCache
from arena.queue import WriterEnd
from arena.reader import ReaderEnd
from arena.shm.layout import MemberWord, State
from arena.shm.native import lib


def word(queue: Any, row: int) -> MemberWord:
    return MemberWord.unpack(lib.arena_member_read(queue._end.segment.mapping, row))


def test_a_joiner_that_gives_up_while_it_is_admitted_is_no_member() -> None:
    """The admission is a swap of the word that the writer saw: stored over LEFT it would leave a member that never reads."""
    with MessageQueue(1, 1) as writer:
        end = writer._end
        assert isinstance(end, WriterEnd)
        reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
        (seen,) = end.ring.entries()
        assert seen.state is State.JOINING
        reader.shutdown()
        assert not end.ring.admit(0, seen)
        assert end.ring.members == 0
        assert word(writer, 0).state is State.LEFT
        end.members.admit_joiners()
        assert word(writer, 0).state is State.EMPTY
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as successor:
            writer.wait_until_ready(5)
            writer.enqueue("next", timeout=5)
            assert isinstance(successor._end, ReaderEnd)
            assert successor.dequeue(timeout=5) == "next"


@pytest.mark.parametrize("kind", ["queue", "cache"])
def test_a_reader_that_dies_before_it_is_admitted_is_seen_and_its_rank_is_free(kind: str) -> None:
    """The writer looks for deaths only, as in ``reap`` or while it waits for room: it admits nobody."""
    owner: Any = MessageQueue(1, 1) if kind == "queue" else ObjectCache(1 << 16, 1)
    with owner:
        reader: Any = (Reader if kind == "queue" else CacheProcess)(owner.export_handle(), 0)
        try:
            reader.run(here)
        finally:
            assert word(owner, 0).state is State.JOINING
            os.kill(reader.pid, signal.SIGKILL)
            reader.end()
        assert owner.reap() == 1
        assert word(owner, 0).state is State.EMPTY
        assert owner.reap() == 0


def test_a_living_joiner_is_not_admitted_by_a_look_for_deaths() -> None:
    with MessageQueue(1, 1) as writer, MessageQueue.create_from_handle(writer.export_handle(), 0):
        assert writer.reap() == 0
        assert word(writer, 0).state is State.JOINING
        assert writer._end.members.rows() == []  # type: ignore[union-attr]
        writer.wait_until_ready(5)
        assert word(writer, 0).state is State.JOINED


def test_a_reader_that_left_and_released_all_frees_its_rank_whatever_others_hold() -> None:
    with queue_of(2) as (writer, [leaves, holds]):
        writer.enqueue(torch.ones(SMALL.divert_bytes))
        held = leaves.dequeue(5), holds.dequeue(5)
        leaves.shutdown()
        writer.reap()
        assert word(writer, 0).state is State.LEFT, "what it leased it still owes"
        held = None, held[1]
        writer.reap()
        assert word(writer, 0).state is State.EMPTY
        assert writer.statistics().slots_free == SMALL.slots - 1


def test_a_reader_that_left_and_ended_while_nobody_looked_is_no_death() -> None:
    with MessageQueue(1, 1, on_reader_death="raise") as writer:
        reader = Reader(writer.export_handle(), 0)
        try:
            reader.run(leave)
        finally:
            reader.end()
        assert word(writer, 0).state is State.LEFT
        assert writer.reap() == 0
        assert word(writer, 0).state is State.EMPTY


def leave(side: Any) -> None:
    side.queue.shutdown()


def test_a_clearing_that_is_cut_short_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal handler's exception: the next holder of the rank is never taken for the dead one."""
    with MessageQueue(1, 1) as writer:
        end = writer._end
        assert isinstance(end, WriterEnd)
        reader = Reader(writer.export_handle(), 0)
        reader.run(here)
        reader.end()
        clear_entry = end.ring.clear_entry

        def cut_short(row: int) -> None:
            clear_entry(row)
            raise KeyboardInterrupt

        monkeypatch.setattr(end.ring, "clear_entry", cut_short)
        with pytest.raises(KeyboardInterrupt):
            writer.reap()
        monkeypatch.undo()
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as successor:
            assert writer.reap() == 0
            writer.wait_until_ready(5)
            writer.enqueue("next", timeout=5)
            assert successor.dequeue(5) == "next"


def here(side: Any) -> None:
    """Says that the reader's process has come as far as this."""


def reap_cut_short(writer: MessageQueue, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception ends a reap at a step of it, and another reap follows."""
    part, name = step.split(".")

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(getattr(writer._end, part), name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.reap()
    writer.reap()


@pytest.mark.parametrize("step", ["ring.drop_reader", "ring.watch", "slots.reclaim", "ring.clear_entry"])
def test_a_burial_that_an_exception_cuts_short_is_begun_again_and_counted_once(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageQueue(1, 1, arena=SMALL) as writer:
        reader = Reader(writer.export_handle(), 0)
        try:
            writer.wait_until_ready(60)
            writer.enqueue(torch.ones(4096))
        finally:
            os.kill(reader.pid, signal.SIGKILL)
            reader.end()
        reap_cut_short(writer, step, monkeypatch)
        assert writer.statistics().deaths_total == 1
        assert writer.statistics().slots_free == SMALL.slots
        assert word(writer, 0).state is State.EMPTY


@pytest.mark.parametrize(
    "step", ["ring.consumed", "slots.excuse_unread", "ring.drop_reader", "slots.owes", "ring.clear_entry"]
)
def test_a_leave_whose_dealing_with_an_exception_cuts_short_is_dealt_with_again(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has not read the last message, and owes nothing for it."""
    with queue_of(1) as (writer, (reader,)):
        writer.enqueue([torch.ones(4096), torch.ones(4096)])
        reader.shutdown()
        reap_cut_short(writer, step, monkeypatch)
        assert writer.statistics().slots_free == SMALL.slots
        assert word(writer, 0).state is State.EMPTY
