"""What fails midway leaves nothing in the queue: no slot, no half of a message, no reader out of step."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support import SMALL, WATCHDOG_S, Unloadable, queue_of

from arena.errors import Cancelled
from arena.message.outofband import OutOfBandWriter

COUNT = 2048
LOOPS = 10_000


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


@pytest.mark.parametrize("pad", [500, 5000], ids=["no_room_in_the_ring", "no_budget_out_of_band"])
def test_an_enqueue_that_times_out_leaves_no_slot(pad: int) -> None:
    """Ten thousand times: a large tensor, and no room for the rest of its message."""
    tensor = torch.rand(COUNT)
    with queue_of(1, max_chunk_bytes=1024, max_chunks=1) as (writer, (reader,)):
        writer.enqueue([0, bytes(pad)], timeout=WATCHDOG_S)  # the first one out of band waits for the reader's connection
        sent = 1
        with contextlib.suppress(TimeoutError):
            while True:
                writer.enqueue([sent, bytes(pad)], timeout=0)
                sent += 1
        for _ in range(LOOPS):
            with pytest.raises(TimeoutError, match=r"no room for a message of .* bytes .*rank 0 \(pid"):
                writer.enqueue({"tensor": tensor, "pad": bytes(pad)}, timeout=0)
        assert writer.statistics().slots_free == SMALL.slots
        assert [reader.dequeue(10)[0] for _ in range(sent)] == list(range(sent))  # type: ignore[index]
        writer.enqueue(tensor, timeout=10)
        assert torch.equal(reader.dequeue(10), tensor)  # type: ignore[arg-type]


def test_failed_unpickling_in_one_reader_leaves_no_slot() -> None:
    """Ten thousand times: the reader that fails releases what the message carried, and the other one has it whole."""
    tensor = torch.rand(COUNT)
    with queue_of(2) as (writer, (fails, succeeds)):
        for _ in range(LOOPS):
            writer.enqueue([tensor, LoadableAtTimes(), np.zeros(COUNT)])
            with pytest.raises(ZeroDivisionError), not_loadable():
                fails.dequeue(10)
            received: Any = succeeds.dequeue(10)
            assert torch.equal(received[0], tensor)
            del received
        statistics = writer.statistics()
        assert (statistics.slots_free, statistics.fallback_total) == (SMALL.slots, {})
        writer.enqueue("next")
        assert [reader.dequeue(10) for reader in (fails, succeeds)] == ["next", "next"]


class LoadableAtTimes:
    """Cannot be unpickled inside ``not_loadable``."""

    fails = False

    def __reduce__(self) -> Any:
        return _load, ()


def _load() -> LoadableAtTimes:
    if LoadableAtTimes.fails:
        raise ZeroDivisionError("unpickling failed on purpose")
    return LoadableAtTimes()


@contextlib.contextmanager
def not_loadable() -> Iterator[None]:
    LoadableAtTimes.fails = True
    try:
        yield
    finally:
        LoadableAtTimes.fails = False


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
