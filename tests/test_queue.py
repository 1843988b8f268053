"""The queue: order, the values that arrive, time-outs and numbers."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from support import SMALL, WATCHDOG_S, Side, Unpicklable, in_thread, is_in_call, queue_of, readers_of, wait_until
from traffic import mixed_message, read_all

from arena import ArenaConfig, MessageQueue

COUNT = 2048
LOOPS = 10_000


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


def test_threads_use_one_queue_in_turns() -> None:
    """Writers, a reader, drops, statistics and reaping from threads of their own: each message once and whole."""
    with queue_of(1) as (writer, (reader,)):

        def write(start: int) -> None:
            for number in range(start, start + 100):
                writer.enqueue((number, torch.full((8192,), number % 251, dtype=torch.uint8)), timeout=30)

        def read() -> set[int]:
            seen = set()
            while len(seen) < 300:
                number, payload = reader.dequeue(30)  # type: ignore[misc]
                assert bool((payload == number % 251).all())
                seen.add(number)
            return seen

        def look() -> None:
            for _ in range(200):
                statistics = writer.statistics()
                assert 0 <= statistics.slots_free <= statistics.slots_total
                writer.reap()

        waits = [in_thread(lambda start=start: write(start)) for start in (0, 100, 200)] + [in_thread(look)]  # type: ignore[misc]
        assert in_thread(read)() == set(range(300))
        for wait in waits:
            wait()
        assert writer.statistics().slots_free == SMALL.slots


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


def test_broadcast_object() -> None:
    with queue_of(1) as (writer, (reader,)):
        assert writer.broadcast_object({"a": 1}) == {"a": 1}
        assert reader.broadcast_object() == {"a": 1}


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
            torch.rand(2048).unfold(0, 64, 1),  # expanded: 62 times as large if it were gathered
            torch.rand(2048).view([1] * 65 + [2048]),
            torch.empty(0),
            np.zeros(3),  # small
            bytes(2 << 20),  # out of band
        ):
            writer.enqueue(value)
            held.append(reader.dequeue(10))
        statistics = writer.statistics()
        assert statistics.fallback_total == {
            "small": 2, "oversize": 1, "no_extent": 1, "no_slot": 1, "unsupported:requires_grad": 1,
            "unsupported:expanded": 2, "unsupported:dimensions": 1, "unsupported:empty": 1,
        }  # fmt: skip
        assert statistics.diverted_total == 2
        assert statistics.bytes_copied == 4096 + 8192
        assert (statistics.slots_total, statistics.slots_free) == (2, 0)
        assert (statistics.bytes_capacity, statistics.bytes_in_use) == (64 << 10, 12 << 10)
        assert (statistics.messages_total, statistics.out_of_band_total) == (13, 1)
        (one,) = statistics.readers
        assert (one.rank, one.alive, one.lag) == (0, True, 0)
        with pytest.raises(dataclasses.FrozenInstanceError):
            statistics.slots_free = 3  # type: ignore[misc]


def test_what_was_not_sent_is_not_counted() -> None:
    """A message that fails, or is tried again and again until there is room, counts once: when it is out."""
    buffers = [torch.rand(2048), torch.rand(10), torch.empty(0)]
    with queue_of(1, max_chunk_bytes=4096, max_chunks=1) as (writer, (reader,)):
        loan = writer.loan(2048, torch.float32)
        for bad in (Unpicklable(), lambda: 0):
            with pytest.raises((ValueError, AttributeError, pickle.PicklingError)):
                writer.enqueue([buffers, loan, bad])
        assert writer.statistics().messages_total == 0
        sent = 0
        with suppress(TimeoutError):
            while True:
                writer.enqueue(bytes(2000), timeout=0)
                sent += 1
        for _ in range(3):
            with pytest.raises(TimeoutError):
                writer.enqueue([buffers, loan, bytes(2000)], timeout=0)
        before = writer.statistics()
        assert (before.diverted_total, before.loaned_total, before.bytes_copied, before.fallback_total) == (0, 0, 0, {})
        assert before.messages_total == sent > 0
        for _ in range(sent):
            reader.dequeue(5)
        writer.enqueue([buffers, loan, bytes(2000)], timeout=0)
        after = writer.statistics()
        assert (after.diverted_total, after.loaned_total, after.bytes_copied) == (2, 1, 8192)
        assert after.fallback_total == {"small": 1, "unsupported:empty": 1}


def test_without_an_arena_everything_large_says_so() -> None:
    with queue_of(1, arena=None) as (writer, (reader,)):
        writer.enqueue([torch.rand(COUNT * 100), torch.rand(5)])
        reader.dequeue(10)
        statistics = writer.statistics()
        assert statistics.fallback_total == {"no_arena": 1, "small": 1}
        assert (statistics.slots_total, statistics.bytes_capacity) == (0, 0)


@pytest.mark.parametrize(
    ("reason", "slots", "count"), [("no_slot", 1, COUNT), ("no_extent", 64, 8 * COUNT), ("oversize", 64, 32 * COUNT)]
)
def test_a_shortage_is_logged_once_in_a_while(reason: str, slots: int, count: int, caplog: pytest.LogCaptureFixture) -> None:
    config = ArenaConfig(capacity_bytes=128 << 10, slots=slots, divert_bytes=1024)
    with queue_of(1, arena=config) as (writer, (reader,)):
        held = []
        for _ in range(20):
            writer.enqueue([torch.rand(count), torch.rand(5)])
            held.append(reader.dequeue(10))
        lines = [record.getMessage() for record in caplog.records if record.name == "arena.message"]
        assert len(lines) == 1
        assert f"a buffer of {4 * count} bytes does not go through the arena: {reason} (" in lines[0]
        assert writer.statistics().fallback_total[reason] >= 18
