"""The queue: nothing is left by what fails, order, time-outs, the end, numbers, and arguments that cannot be."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import signal
import threading
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    SMALL,
    WATCHDOG_S,
    Reader,
    Side,
    in_thread,
    is_in_call,
    python,
    queue_of,
    readers_of,
    shutdown,
    wait_until,
)  # fmt: skip
from traffic import mixed_message, read_all, read_from, read_numbers

from arena import ArenaConfig, MessageQueue
from arena.errors import Cancelled
from arena.message.outofband import OutOfBandWriter

COUNT = 2048
LOOPS = 10_000


class Unloadable:
    """Pickles, and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ZeroDivisionError("unpickling failed on purpose")


# ---- what fails leaves nothing --------------------------------------------------------------------------------------


def test_failed_pickling_leaves_no_slot() -> None:
    """Ten thousand times: a large tensor, then something that cannot be pickled."""
    message = {"tensor": torch.rand(COUNT), "array": np.zeros(COUNT), "bad": lambda: 0}
    with queue_of(1) as (writer, (reader,)):
        for _ in range(LOOPS):
            with pytest.raises((AttributeError, pickle.PicklingError)):
                writer.enqueue(message)
        statistics = writer.statistics()
        assert (statistics.slots_free, statistics.bytes_in_use) == (SMALL.slots, 0)
        writer.enqueue(message["tensor"])
        assert torch.equal(reader.dequeue(10), message["tensor"])  # type: ignore[arg-type, call-overload]
        assert writer.statistics().fallback_total == {}


def test_an_enqueue_that_times_out_leaves_no_slot() -> None:
    tensor = torch.rand(COUNT)
    with queue_of(1, max_chunk_bytes=1024, max_chunks=1) as (writer, (reader,)):
        sent = 0
        while True:
            try:
                writer.enqueue([sent, bytes(500)], timeout=0)
                sent += 1
            except TimeoutError:
                break
        for _ in range(LOOPS // 5):
            with pytest.raises(TimeoutError, match=r"no room for a message of .* bytes .*rank 0 \(pid"):
                writer.enqueue({"tensor": tensor, "pad": bytes(500)}, timeout=0)
        assert writer.statistics().slots_free == SMALL.slots
        assert [reader.dequeue(10)[0] for _ in range(sent)] == list(range(sent))  # type: ignore[index]
        writer.enqueue(tensor, timeout=10)
        assert torch.equal(reader.dequeue(10), tensor)  # type: ignore[arg-type]


def test_failed_unpickling_in_one_reader_leaves_no_slot() -> None:
    """The reader that fails releases what the message carried; the next message arrives."""
    message = [torch.rand(COUNT), Unloadable(), np.zeros(COUNT)]
    with queue_of(2) as (writer, readers):
        for _ in range(LOOPS // 5):
            writer.enqueue(message)
            for reader in readers:
                with pytest.raises(ZeroDivisionError):
                    reader.dequeue(10)
        statistics = writer.statistics()
        assert (statistics.slots_free, statistics.fallback_total) == (SMALL.slots, {})
        writer.enqueue("next")
        assert [reader.dequeue(10) for reader in readers] == ["next", "next"]


@pytest.mark.parametrize("n", [1, 2])
def test_failed_unpickling_out_of_band_stays_in_step(n: int) -> None:
    with queue_of(n, arena=None, max_chunk_bytes=1024) as (writer, readers):
        for i in range(20):
            writer.enqueue([i, bytes(5000), Unloadable()] if i % 2 else [i, bytes(5000)])
            for reader in readers:
                if i % 2:
                    with pytest.raises(ZeroDivisionError):
                        reader.dequeue(10)
                else:
                    assert reader.dequeue(10)[0] == i  # type: ignore[index]


def test_an_interrupt_between_two_readers_leaves_them_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reader was sent a payload whose record never came: the next message is not taken for it."""
    send = OutOfBandWriter.send

    def send_and_stop(*arguments: Any) -> None:
        send(*arguments)
        raise KeyboardInterrupt

    with queue_of(2, arena=None, max_chunk_bytes=1024) as (writer, readers):
        with monkeypatch.context() as patched:
            patched.setattr(OutOfBandWriter, "send", send_and_stop)
            with pytest.raises(KeyboardInterrupt):
                writer.enqueue(b"a" * 5000)
        writer.enqueue(b"b" * 5000)
        assert [reader.dequeue(10) for reader in readers] == [b"b" * 5000] * 2


def test_enqueue_after_shutdown_leaves_no_slot() -> None:
    with queue_of(1) as (writer, _):
        writer.shutdown()
        for call in (lambda: writer.enqueue(torch.rand(COUNT)), writer.statistics, lambda: writer.loan((9,), torch.int8)):
            with pytest.raises(Cancelled, match="shut down"):
                call()


def test_a_queue_inside_its_own_message() -> None:
    """A reduction that uses the queue is told so; it does not wait for itself."""

    class Recursive:
        def __reduce__(self) -> Any:
            writer.enqueue("inner")
            return str, ()

    with queue_of(1) as (writer, _), pytest.raises(RuntimeError, match="inside its own enqueue"):
        writer.enqueue([torch.rand(COUNT), Recursive()])


# ---- order ----------------------------------------------------------------------------------------------------------


def run_in_order(n_messages: int, n_readers: int, chunks: int, seed: int) -> None:
    rng = random.Random(seed)
    with MessageQueue(n_readers, n_readers, max_chunk_bytes=2048, max_chunks=chunks, arena=SMALL) as writer:
        with readers_of(writer, n_readers) as readers:
            for reader in readers:
                reader.start(read_all, n_messages, rng.randrange(1 << 30), 0.002)
            for i in range(n_messages):
                writer.enqueue(mixed_message(i, rng), timeout=WATCHDOG_S)
            assert [reader.result() for reader in readers] == ["ok"] * n_readers
            statistics = writer.statistics()
            assert statistics.diverted_total
            assert statistics.out_of_band_total
            assert statistics.fallback_total["small"]
            assert statistics.slots_free == SMALL.slots
            assert [reader.lag for reader in statistics.readers] == [0] * n_readers


@pytest.mark.parametrize(("n_readers", "chunks"), [(1, 1), (2, 3), (4, 10)])
def test_strict_order(seed: int, n_readers: int, chunks: int) -> None:
    """Each reader gets each message once, in order and unharmed, whatever way each of them took."""
    run_in_order(400, n_readers, chunks, seed)


@pytest.mark.deep
@pytest.mark.parametrize("chunks", [1, 2, 3, 10])
@pytest.mark.parametrize("n_readers", [1, 2, 4, 8])
def test_strict_order_of_ten_thousand(seed: int, n_readers: int, chunks: int) -> None:
    run_in_order(LOOPS, n_readers, chunks, seed)


def test_one_thread_per_end(seed: int) -> None:
    """A fast writer against a reader in another thread of this process, a ring of one chunk."""
    rng = random.Random(seed)
    with queue_of(1, max_chunk_bytes=1024, max_chunks=1) as (writer, (reader,)):
        done = in_thread(lambda: read_all(Side(reader), 1000, seed, 0.0))
        for i in range(1000):
            writer.enqueue(mixed_message(i, rng), timeout=WATCHDOG_S)
        assert done() == "ok"


def test_several_threads_enqueue(seed: int) -> None:
    """Calls take turns: every thread's messages arrive, each thread's own in order."""
    with queue_of(1) as (writer, (reader,)):

        def produce(name: int) -> None:
            for i in range(200):
                writer.enqueue((name, i, torch.full((COUNT,), i)), timeout=WATCHDOG_S)

        joins = [in_thread(lambda name=name: produce(name)) for name in range(4)]  # type: ignore[misc]
        last = dict.fromkeys(range(4), -1)
        for _ in range(800):
            name, i, tensor = reader.dequeue(WATCHDOG_S)  # type: ignore[misc]
            assert i == last[name] + 1
            assert (tensor == i).all()
            last[name] = i
        for join in joins:
            join()


# ---- the value is that of the moment of enqueue ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"arena": SMALL}, {"arena": None}, {"arena": None, "max_chunk_bytes": 1024}],
    ids=["arena", "ring", "out_of_band"],
)
def test_value_at_enqueue_time(options: dict[str, Any]) -> None:
    """What the caller does right after enqueue is not seen."""
    tensor, array, text = torch.ones(COUNT), np.ones(COUNT), bytearray(b"a" * 4000)
    gaps, fields = torch.ones(COUNT, 2)[:, 0], {"n": 1}
    with queue_of(2, **options) as (writer, readers):
        writer.enqueue([tensor, array, text, gaps, fields])
        tensor.zero_()
        array[:] = 0
        text[:] = b"b" * 4000
        gaps.zero_()
        fields["n"] = 2
        for reader in readers:
            received: Any = reader.dequeue(10)
            assert all(bool((part == 1).all()) for part in (received[0], received[1], received[3]))
            assert received[2] == b"a" * 4000
            assert received[4] == {"n": 1}


# ---- waiting --------------------------------------------------------------------------------------------------------


def test_wait_until_ready_names_the_missing() -> None:
    with MessageQueue(3, 3, arena=SMALL) as writer:
        one = MessageQueue.create_from_handle(writer.export_handle(), 1)
        with one:
            for call in (lambda: writer.wait_until_ready(0.05), lambda: writer.enqueue(1, timeout=0.05)):
                with pytest.raises(TimeoutError, match=r"readers \[0, 2\] of 3"):
                    call()


def test_a_reader_waits_for_admission_in_time() -> None:
    with MessageQueue(1, 1, arena=SMALL) as writer, MessageQueue.create_from_handle(writer.export_handle(), 0) as reader:
        for call in (lambda: reader.wait_until_ready(0.05), lambda: reader.dequeue(0.05)):
            with pytest.raises(TimeoutError, match=r"rank 0.*has not admitted"):
                call()


def test_dequeue_times_out_and_names_the_writer() -> None:
    with queue_of(1) as (_, (reader,)):
        for timeout in (0, 0.05):
            with pytest.raises(TimeoutError, match=f"rank 0: no message from writer {os.getpid()} within {timeout} s"):
                reader.dequeue(timeout)


def test_timeout_zero_takes_what_is_there() -> None:
    with queue_of(1) as (writer, (reader,)):
        writer.enqueue(1, timeout=0)
        assert reader.dequeue(timeout=0) == 1


@pytest.mark.parametrize("forever", [None, float("inf"), 1e300])
def test_timeouts_that_never_come(forever: float | None) -> None:
    with queue_of(1) as (writer, (reader,)):
        waiting = in_thread(lambda: reader.dequeue(forever))
        writer.enqueue("there", timeout=forever)
        assert waiting() == "there"


def test_the_slow_reader_is_named() -> None:
    """Rank 1 reads, rank 0 does not: the text names rank 0 alone, with its process and its lag."""
    with queue_of(2, arena=None, max_chunk_bytes=1024, max_chunks=2) as (writer, readers):

        def fill() -> None:
            while True:
                writer.enqueue(bytes(500), timeout=0.01)
                readers[1].dequeue(10)

        with pytest.raises(TimeoutError) as failure:
            fill()
        assert "rank 0 (pid" in str(failure.value)
        assert "rank 1" not in str(failure.value)
        assert [reader.lag > 0 for reader in writer.statistics().readers] == [True, False]


def test_another_threads_call_is_waited_for_in_time() -> None:
    with queue_of(1) as (writer, (reader,)):
        blocked = in_thread(lambda: reader.dequeue(WATCHDOG_S))
        wait_until(lambda: is_in_call(reader._end), "the thread is inside its dequeue")
        with pytest.raises(TimeoutError, match="another thread's call"):
            reader.dequeue(timeout=0.01)
        writer.enqueue(1)
        assert blocked() == 1


# ---- the end --------------------------------------------------------------------------------------------------------


def test_shutdown_ends_a_blocked_dequeue_200_times() -> None:
    """From another thread, early or late in the call: always Cancelled, never an abort."""
    for i in range(200):
        with queue_of(1, arena=None) as (_, (reader,)):
            blocked = in_thread(lambda reader=reader: reader.dequeue(WATCHDOG_S))  # type: ignore[misc]
            if i % 2:
                wait_until(lambda reader=reader: is_in_call(reader._end), "inside dequeue")  # type: ignore[misc]
            reader.shutdown()
            with pytest.raises(Cancelled):
                blocked()


def test_shutdown_ends_a_blocked_enqueue() -> None:
    for options in ({}, {"max_chunk_bytes": 1024}):
        with queue_of(1, arena=None, max_chunks=2, **({"max_chunk_bytes": 2048} | options)) as (writer, _):

            def fill(writer: MessageQueue = writer) -> None:
                while True:
                    writer.enqueue(bytes(1500))

            blocked = in_thread(fill)
            wait_until(lambda writer=writer: writer.statistics().readers[0].lag > 0, "something is in the ring")  # type: ignore[misc]
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


def test_shutdown_ends_waiting_for_readers() -> None:
    with MessageQueue(1, 1, arena=None) as writer:
        blocked = in_thread(writer.wait_until_ready)
        wait_until(lambda: is_in_call(writer._end), "inside wait_until_ready")
        writer.shutdown()
        with pytest.raises(Cancelled):
            blocked()


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


def test_broadcast_object() -> None:
    with queue_of(1) as (writer, (reader,)):
        assert writer.broadcast_object({"a": 1}) == {"a": 1}
        assert reader.broadcast_object() == {"a": 1}


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


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_every_buffer_is_counted_with_its_reason() -> None:
    config = ArenaConfig(capacity_bytes=64 << 10, slots=2, divert_bytes=4096)
    with queue_of(1, arena=config, max_chunk_bytes=1 << 20) as (writer, (reader,)):
        held: list[Any] = []
        for value in (
            torch.rand(1024),  # diverted
            torch.rand(10),  # small
            torch.rand(20_000),  # oversize
            torch.rand(15_616),  # no extent: 61 KiB do not fit beside 4
            torch.rand(2048),  # diverted
            torch.rand(2048),  # no slot
            torch.rand(2048).requires_grad_(),
            torch.rand(1, 5).expand(2000, 5),
            torch.empty(0),
            np.zeros(3),  # small
            bytes(2 << 20),  # out of band
        ):
            writer.enqueue(value)
            held.append(reader.dequeue(10))
        statistics = writer.statistics()
        assert statistics.fallback_total == {
            "small": 2, "oversize": 1, "no_extent": 1, "no_slot": 1, "unsupported:requires_grad": 1,
            "unsupported:expanded": 1, "unsupported:empty": 1,
        }  # fmt: skip
        assert statistics.diverted_total == 2
        assert statistics.bytes_copied == 4096 + 8192
        assert (statistics.slots_total, statistics.slots_free) == (2, 0)
        assert (statistics.bytes_capacity, statistics.bytes_in_use) == (64 << 10, 12 << 10)
        assert (statistics.messages_total, statistics.out_of_band_total) == (11, 1)
        (one,) = statistics.readers
        assert (one.rank, one.alive, one.lag) == (0, True, 0)
        with pytest.raises(dataclasses.FrozenInstanceError):
            statistics.slots_free = 3  # type: ignore[misc]


def test_without_an_arena_everything_large_says_so() -> None:
    with queue_of(1, arena=None) as (writer, (reader,)):
        writer.enqueue([torch.rand(COUNT * 100), torch.rand(5)])
        reader.dequeue(10)
        statistics = writer.statistics()
        assert statistics.fallback_total == {"no_arena": 1, "small": 1}
        assert (statistics.slots_total, statistics.bytes_capacity) == (0, 0)


def test_exhaustion_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    with queue_of(1, arena=ArenaConfig(capacity_bytes=64 << 10, slots=1, divert_bytes=1024)) as (writer, (reader,)):
        held = []
        for _ in range(20):
            writer.enqueue(torch.rand(COUNT))
            held.append(reader.dequeue(10))
        lines = [record.getMessage() for record in caplog.records if record.name == "arena.message"]
        assert len(lines) == 1
        assert "no_slot (0 slots free" in lines[0]
