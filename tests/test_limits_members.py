"""A writer that has no descriptor to watch a joiner with serves the others, says why, and admits the joiner when it can."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from cache_support import CacheProcess
from support import SMALL, Reader, dequeue, readers_of, shutdown, wait_until

from arena import Handle, MessageQueue, ObjectCache
from arena.errors import CapacityError
from arena.shm import process
from arena.shm.layout import MemberWord, State
from arena.shm.native import lib
from arena.shm.process import Peer


@contextmanager
def no_descriptor() -> Iterator[int]:
    """This process can open nothing; the limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = os.dup(0)  # the lowest free one
    os.close(most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def joiner(writer: MessageQueue, rank: int) -> Iterator[Reader]:
    """A reader that waits to join."""
    reader = Reader(writer.export_handle(), rank)
    try:
        reader.run(here)
        yield reader
    finally:
        reader.end()


def here(side: Any) -> None:
    """Says that the reader's process has come as far as this."""


def state(owner: Any, row: int) -> State:
    return MemberWord.unpack(lib.arena_member_read(owner._end.segment.mapping, row)).state


def kill(reader: Reader) -> None:
    os.kill(reader.pid, signal.SIGKILL)
    reader.process.join()


@contextmanager
def one_of_two() -> Iterator[tuple[MessageQueue, Reader, Reader]]:
    """A writer that was ready, a reader of it, and one that waits to join in the place of a dead one."""
    with MessageQueue(2, 2, arena=SMALL) as writer, joiner(writer, 0) as serves:
        with joiner(writer, 1) as dies:
            writer.wait_until_ready(60)
            kill(dies)
            assert writer.reap() == 1
        with joiner(writer, 1) as waits:
            yield writer, serves, waits


def send(writer: MessageQueue, reader: Reader, values: range) -> None:
    for value in values:
        writer.enqueue([value, torch.full((5000,), value)], timeout=60)
        assert reader.run(value_of_next) == value


def value_of_next(side: Any) -> int | None:
    """What its tensor is full of."""
    value, tensor = side.queue.dequeue(60)
    return int(value) if bool((tensor == value).all()) else None


def test_the_others_are_served_and_the_joiner_is_admitted_when_it_can_be_watched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with one_of_two() as (writer, serves, waits):
        with no_descriptor() as limit:
            send(writer, serves, range(30))
            assert writer.reap() == 0
            assert state(writer, 1) is State.JOINING
            assert [reader.alive for reader in writer.statistics().readers] == [True, False]
        lines = [record.getMessage() for record in caplog.records if "watched" in record.getMessage()]
        assert 0 < len(lines) < 5, "one in ten seconds"
        (line,) = set(lines)
        assert line.startswith(f"rank 1 waits: process {waits.pid} cannot be watched for its death: Too many open files")
        assert f"RLIMIT_NOFILE {limit}): close descriptors, or raise ulimit -n" in line
        writer.wait_until_ready(60)
        writer.enqueue("both")
        assert serves.run(dequeue) == waits.run(dequeue) == "both"
        assert writer.statistics().deaths_total == 1


def make_writer(side: Any) -> Handle:
    """In a process of its own: libzmq would end it."""
    writer = side.kept["writer"] = MessageQueue(1, 1, arena=None, max_chunk_bytes=1024)
    handle: Handle = writer.export_handle()
    return handle


def use_up(side: Any) -> None:
    side.kept["nothing left"] = no_descriptor()
    side.kept["nothing left"].__enter__()


def give_back(side: Any) -> None:
    side.kept["nothing left"].__exit__(None, None, None)


def why_not_ready(side: Any) -> str:
    with pytest.raises(TimeoutError) as caught:
        side.kept["writer"].wait_until_ready(0.5)
    return str(caught.value)


def send_from(side: Any, *messages: object) -> None:
    for message in messages:
        side.kept["writer"].enqueue(message, timeout=60)


def why_not_sent(side: Any, message: object) -> str:
    with pytest.raises(CapacityError) as caught:
        side.kept["writer"].enqueue(message, timeout=60)
    return str(caught.value)


def test_a_writer_that_has_no_descriptor_lives_when_a_reader_connects() -> None:
    """libzmq ends a process that has none for a connection: it is not asked before there is a message for it."""
    with MessageQueue(1, 1, arena=None) as outer, readers_of(outer, 1) as [process]:
        handle = process.run(make_writer)
        process.run(use_up)
        with MessageQueue.create_from_handle(handle, 0) as reader:
            assert "cannot be watched for its death: Too many open files" in process.run(why_not_ready)
            process.run(give_back)
            process.run(send_from, "by the ring")
            process.run(use_up)
            assert "takes 17 descriptors, and 0 are left" in process.run(why_not_sent, bytes(5000))
            process.run(send_from, "nothing was sent")
            process.run(give_back)
            process.run(send_from, bytes(5001))
            assert [reader.dequeue(60) for _ in range(3)] == ["by the ring", "nothing was sent", bytes(5001)]


def test_an_enqueue_admits_it_too() -> None:
    with one_of_two() as (writer, serves, waits):
        with no_descriptor():
            send(writer, serves, range(3))
        value = 3
        while state(writer, 1) is not State.JOINED:
            send(writer, serves, range(value, value + 1))
            value += 1
        send(writer, serves, range(value, value + 1))
        assert waits.run(value_of_next) in (value - 1, value)  # admitted between two messages


def test_the_time_out_of_wait_until_ready_says_why_a_reader_is_missing() -> None:
    with MessageQueue(2, 2, arena=SMALL) as writer, joiner(writer, 0) as reader:
        with pytest.raises(TimeoutError, match=r"readers \[1\] of 2 have not joined within 0 s$"):
            writer.wait_until_ready(0)
        with joiner(writer, 1) as waits:
            with no_descriptor() as limit:
                why = rf"readers \[1\] of 2 .*; rank 1 waits: process {waits.pid} .*RLIMIT_NOFILE {limit}.*ulimit -n$"
                for timeout in (0, 0.1):
                    with pytest.raises(TimeoutError, match=why):
                        writer.wait_until_ready(timeout)
                    with pytest.raises(TimeoutError, match=why):
                        writer.enqueue("nobody gets it", timeout=timeout)
            writer.wait_until_ready(60)
            send(writer, reader, range(3))


def test_one_that_leaves_unwatched_frees_its_rank_and_is_no_death() -> None:
    with one_of_two() as (writer, serves, waits):
        with no_descriptor():
            send(writer, serves, range(3))
            waits.run(shutdown)
            assert state(writer, 1) is State.LEFT
            writer.reap()
            assert state(writer, 1) is State.EMPTY
            send(writer, serves, range(3, 6))
        assert writer.statistics().deaths_total == 1
        with joiner(writer, 1) as successor:
            writer.wait_until_ready(60)
            writer.enqueue("both")
            assert serves.run(dequeue) == successor.run(dequeue) == "both"


def test_one_that_is_not_watched_is_dead_only_for_a_fact() -> None:
    with one_of_two() as (writer, serves, waits):
        with no_descriptor():
            os.kill(waits.pid, signal.SIGSTOP)
            send(writer, serves, range(3))
            assert writer.reap() == 0
            assert state(writer, 1) is State.JOINING
            kill(waits)
            wait_until(lambda: writer.reap() == 1, "nobody has its pid")
            assert state(writer, 1) is State.EMPTY
            send(writer, serves, range(3, 6))
        assert writer.statistics().deaths_total == 2


def test_the_death_of_a_member_is_seen_without_a_descriptor() -> None:
    with (
        MessageQueue(2, 2, arena=SMALL, max_chunk_bytes=4096, max_chunks=2) as writer,
        joiner(writer, 0) as dies,
        joiner(writer, 1) as serves,
    ):
        writer.wait_until_ready(60)
        writer.enqueue(torch.ones(5000))
        with no_descriptor():
            kill(dies)
            wait_until(lambda: writer.reap() == 1, "its parent has waited for it")
            for value in range(20):
                writer.enqueue([value, bytes(1000)], timeout=60)
                serves.run(dequeue)
        serves.run(dequeue)
        wait_until(lambda: writer.statistics().slots_free == SMALL.slots, "all slots come back")


def test_a_caches_writer_goes_on_too(caplog: pytest.LogCaptureFixture) -> None:
    with ObjectCache(1 << 16, 1) as cache:
        reader = CacheProcess(cache.export_handle(), 0)
        try:
            wait_until(lambda: state(cache, 0) is State.JOINING, "the joiner's entry")
            with no_descriptor():
                for value in range(100):
                    assert cache.put("key", value)
                assert cache.statistics().objects == 1
                cache.reap()
                assert state(cache, 0) is State.JOINING
            assert 0 < caplog.text.count(f"process {reader.pid} cannot be watched") < 5
            wait_until(lambda: bool(cache.put("key", 7)) and state(cache, 0) is State.JOINED, "it is admitted")
            reader.run(here)
        finally:
            reader.end()


@pytest.mark.parametrize("allowed", [0, 1])
def test_every_descriptor_that_a_watch_needs_is_asked_for(allowed: int) -> None:
    """The pidfd, and one for a moment, to compare start times; neither is kept."""
    start = process.own_start_time()
    with no_descriptor() as limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit + allowed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with pytest.raises(CapacityError, match=rf"process {os.getpid()} .*RLIMIT_NOFILE {limit + allowed}"):
            Peer.watch(os.getpid(), start)
    Peer.watch(os.getpid(), start).close()


def test_a_death_is_proved_without_a_descriptor_once_nobody_has_the_pid() -> None:
    """Before, the pidfd might be another file's by now: only /proc says whose it is."""
    child = subprocess.Popen(["sleep", "1000"])
    peer = Peer.watch(child.pid, process.start_time(child.pid) or 0)
    with no_descriptor():
        assert not peer.is_dead()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not peer.is_dead()
        child.wait()
        assert peer.is_dead()
        peer.close()
