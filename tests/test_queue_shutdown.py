"""The end of a queue, of either of its ends, whoever is in a call."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import torch
from support import SMALL, WATCHDOG_S, Reader, in_thread, is_in_call, python, queue_of, readers_of, shutdown, wait_until
from traffic import read_all, read_from, read_numbers

from arena import MessageQueue
from arena.errors import Cancelled

COUNT = 2048


@pytest.mark.parametrize("spin_us", [0, 20_000], ids=["parked", "spinning"])
def test_shutdown_ends_a_blocked_dequeue_200_times(spin_us: int) -> None:
    """From another thread, early or late in the call: always Cancelled, never an abort."""
    for i in range(200):
        with queue_of(1, arena=None, spin_us=spin_us) as (_, (reader,)):
            blocked = in_thread(lambda reader=reader: reader.dequeue(WATCHDOG_S))  # type: ignore[misc]
            if i % 2:
                wait_until(lambda reader=reader: is_in_call(reader._end), "inside dequeue")  # type: ignore[misc]
            reader.shutdown()
            with pytest.raises(Cancelled):
                blocked()


@pytest.mark.parametrize("size", [1500, 4000], ids=["in_the_ring", "out_of_band"])
def test_shutdown_ends_a_blocked_enqueue_200_times(size: int) -> None:
    """Whatever it waits for: a connection, room in the ring, or in the budget of what goes out of band."""
    for i in range(200):
        with queue_of(1, arena=None, max_chunk_bytes=2048, max_chunks=2) as (writer, _):

            def fill(writer: MessageQueue = writer) -> None:
                while True:
                    writer.enqueue(bytes(size))

            blocked = in_thread(fill)
            if i % 2:
                wait_until(lambda writer=writer: writer.statistics().readers[0].lag > 0, "something is in the ring")  # type: ignore[misc]
            writer.shutdown()
            with pytest.raises(Cancelled):
                blocked()


def test_shutdown_ends_waiting_for_readers_200_times() -> None:
    for i in range(200):
        with MessageQueue(1, 1, arena=None) as writer:
            blocked = in_thread(writer.wait_until_ready)
            if i % 2:
                wait_until(lambda writer=writer: is_in_call(writer._end), "inside wait_until_ready")  # type: ignore[misc]
            writer.shutdown()
            with pytest.raises(Cancelled):
                blocked()


@pytest.mark.parametrize("where", ["ring", "_out_of_band", "members"])
def test_an_exception_inside_shutdown_keeps_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of Ctrl-C in the second that messages under way are given: readers hear of the end all the same."""
    with queue_of(1) as (writer, (reader,)):
        part = getattr(writer._end, where)
        close = part.close

        def interrupted() -> None:
            close()
            raise KeyboardInterrupt

        monkeypatch.setattr(part, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.shutdown()
        writer.shutdown()
        assert not writer._end.segment.alive
        with pytest.raises(Cancelled):
            reader.dequeue(WATCHDOG_S)


def test_the_writers_shutdown_ends_its_readers_after_the_last_message() -> None:
    with MessageQueue(2, 2, arena=SMALL) as writer, readers_of(writer, 2) as readers:
        for i in range(5):
            writer.enqueue([i, torch.full((COUNT,), i)])
        writer.shutdown()
        for reader in readers:
            assert reader.run(read_all, 5, 0, 0.0) == "ok"
            with pytest.raises(Cancelled, match=r"writer \d+ shut the queue down"):
                reader.run(read_all, 1, 0, 0.0)


def test_a_reader_that_leaves_is_waited_for_no_more() -> None:
    with MessageQueue(2, 2, arena=SMALL, max_chunk_bytes=2048, max_chunks=1) as writer, readers_of(writer, 2) as readers:
        writer.enqueue(torch.rand(COUNT))
        readers[0].run(shutdown)
        readers[1].start(read_numbers, 101)
        for i in range(100):
            writer.enqueue([i, bytes(500)], timeout=WATCHDOG_S)
        assert readers[1].result() == 101
        assert writer.statistics().slots_free == SMALL.slots


@pytest.mark.parametrize("end", [0, 1])
def test_shutdown_again_and_at_once_from_two_threads(end: int) -> None:
    for _ in range(20):
        with queue_of(1, arena=None) as (writer, (reader,)):
            queue = (writer, reader)[end]
            barrier = threading.Barrier(2)
            joins = [in_thread(lambda q=queue, b=barrier: (b.wait(), q.shutdown())) for _ in range(2)]  # type: ignore[misc]
            for join in joins:
                join()
            queue.shutdown()


@pytest.mark.parametrize("call", ["dequeue", "enqueue", "wait_until_ready"])
def test_shutdown_from_a_signal_handler(call: str) -> None:
    """The handler runs in the thread that is blocked in the call, and ends it."""
    with MessageQueue(1, 1, arena=None, max_chunk_bytes=1024, max_chunks=2) as writer:
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as reader:
            if call != "wait_until_ready":
                writer.wait_until_ready(10)
            else:
                reader.shutdown()
            queue = reader if call == "dequeue" else writer
            before = signal.signal(signal.SIGALRM, lambda *_: queue.shutdown())
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            try:
                with pytest.raises(Cancelled):
                    block(queue, call)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)


def block(queue: MessageQueue, call: str) -> None:
    if call == "dequeue":
        queue.dequeue(WATCHDOG_S)
    elif call == "enqueue":
        while True:  # until the ring is full
            queue.enqueue(bytes(600), WATCHDOG_S)
    else:
        queue.wait_until_ready(WATCHDOG_S)


def test_an_exception_in_the_block_is_what_the_caller_sees() -> None:
    def work() -> None:
        with queue_of(1) as (writer, (reader,)):
            writer.enqueue(torch.rand(COUNT))
            held: Any = reader.dequeue(10)
            raise KeyError(held.numel())

    with pytest.raises(KeyError, match="2048"):
        work()


def test_dropped_in_a_cycle_with_unread_messages() -> None:
    """Ten messages nobody reads, the queue in a cycle, no shutdown: collected, and the interpreter ends (watchdog)."""
    done = python(
        """
import gc, torch
from arena import MessageQueue
def lose():
    writer = MessageQueue(1, 1, max_chunk_bytes=1 << 16)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    for i in range(10):
        writer.enqueue([i, bytes(60_000 + 10_000 * (i % 2)), torch.rand(100_000)], timeout=60)
    loop = [writer, reader]
    loop.append(loop)
lose()
gc.collect()
from arena.shm.native import lib
print(lib.arena_maps_live(), lib.arena_grants_live())
kept = MessageQueue(1, 1)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0\n", "")


def test_a_late_reader_takes_the_rank_of_one_that_left() -> None:
    with MessageQueue(1, 1, arena=SMALL) as writer:
        for i in range(3):
            reader = Reader(writer.export_handle(), 0)
            try:
                writer.wait_until_ready(WATCHDOG_S)
                writer.enqueue([i, None])
                assert reader.run(read_from, i) == "ok"
                reader.run(shutdown)
                with pytest.raises(TimeoutError, match=r"readers \[0\]"):
                    writer.wait_until_ready(0)
            finally:
                reader.end()


def test_a_cache_of_a_queue_that_was_shut_down() -> None:
    with queue_of(1) as (writer, _):
        writer.shutdown()
        with pytest.raises(Cancelled):
            writer.object_cache()
