"""Whatever shows a slot's bytes keeps the slot; the last of it to go gives the slot back at once."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support import drop, hold, in_thread, kept, python, queue_of, readers_of

from arena import ArenaConfig, MessageQueue
from arena.errors import ArenaError, CapacityError

COUNT = 2048
N_SLOTS = 4
CONFIG = ArenaConfig(capacity_bytes=1 << 20, slots=N_SLOTS, divert_bytes=1024)

Ends = tuple[MessageQueue, MessageQueue]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with queue_of(1, arena=CONFIG) as (writer, (reader,)):
        yield writer, reader


def sent(ends: Ends, value: Any) -> Any:
    ends[0].enqueue(value, timeout=10)
    return ends[1].dequeue(timeout=10)


def slots_free(ends: Ends) -> int:
    return ends[0].statistics().slots_free


def as_bytes(view: Any) -> bytes:
    if isinstance(view, torch.UntypedStorage):
        return bytes(view.tolist())
    if isinstance(view, torch.Tensor):
        return view.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return bytes(memoryview(view).tobytes())


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda t: t,
    "slice": lambda t: t[100:200],
    "row": lambda t: t.view(64, 32)[3],
    "parameter": lambda t: torch.nn.Parameter(t),
    "parameter_without_grad": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "numpy": lambda t: t.numpy(),
    "memoryview": lambda t: memoryview(t.numpy()),
    "detach": lambda t: t.detach(),
    "view_of_dtype": lambda t: t.view(torch.bfloat16),
    "storage": lambda t: t.untyped_storage(),
    "strided": lambda t: t.as_strided((10, 3), (7, 2)),
    "dlpack": lambda t: torch.from_dlpack(t.numpy()),
    "numpy_slice": lambda t: t.numpy()[5:50],
    "split": lambda t: t.split(100)[2],
    "shallow_copy": lambda t: t.data,
}


@pytest.mark.parametrize("view", VIEWS)
def test_any_view_keeps_the_slot(ends: Ends, view: str) -> None:
    """Three times as many tensors as slots go by, and the view still shows the same bytes; then the slot is free at once."""
    held = VIEWS[view](sent(ends, torch.rand(COUNT)))
    before = as_bytes(held)
    assert slots_free(ends) == N_SLOTS - 1
    for i in range(N_SLOTS * 3):
        received = sent(ends, torch.full((COUNT,), float(i)))
        assert torch.equal(received, torch.full((COUNT,), float(i)))
        del received
    assert as_bytes(held) == before
    assert slots_free(ends) == N_SLOTS - 1
    del held
    assert slots_free(ends) == N_SLOTS


@pytest.mark.parametrize("what", ["array", "bytes_of_an_object"])
def test_buffers_that_are_no_tensors_keep_theirs(ends: Ends, what: str) -> None:
    array = np.arange(COUNT)
    held = sent(ends, array)[10:20] if what == "array" else memoryview(sent(ends, array))[3:4]
    for _ in range(N_SLOTS * 3):
        sent(ends, np.zeros(COUNT, dtype=np.int64))
    assert as_bytes(held) == (array[10:20] if what == "array" else array[3:4]).tobytes()
    assert slots_free(ends) == N_SLOTS - 1
    del held
    assert slots_free(ends) == N_SLOTS


def test_two_tensors_of_a_message_are_two_leases(ends: Ends) -> None:
    first, second = sent(ends, (torch.rand(COUNT), torch.rand(COUNT)))
    assert slots_free(ends) == N_SLOTS - 2
    del second
    assert slots_free(ends) == N_SLOTS - 1
    del first
    assert slots_free(ends) == N_SLOTS


def test_a_cycle_releases_when_it_is_collected(ends: Ends) -> None:
    cycle: list[Any] = [sent(ends, torch.rand(COUNT))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert slots_free(ends) == N_SLOTS


def test_released_from_any_thread(ends: Ends) -> None:
    """Tensors dropped in other threads come back without a dequeue, also while the reader is blocked in one."""
    held = [sent(ends, torch.rand(COUNT)) for _ in range(N_SLOTS)]
    assert slots_free(ends) == 0
    blocked = in_thread(lambda: ends[1].dequeue(timeout=60))
    threads = [threading.Thread(target=held.pop) for _ in range(N_SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert slots_free(ends) == N_SLOTS
    ends[0].enqueue("end")
    assert blocked() == "end"


def test_every_reader_must_let_go() -> None:
    with MessageQueue(3, 3, arena=CONFIG) as writer, readers_of(writer, 3) as readers:
        tensor = torch.rand(COUNT)
        writer.enqueue(tensor)
        for reader in readers:
            reader.run(hold, "x")
        for reader in readers:
            assert writer.statistics().slots_free == N_SLOTS - 1
            assert torch.equal(reader.run(kept, "x"), tensor)
            reader.run(drop, "x")
        assert writer.statistics().slots_free == N_SLOTS


def test_a_reader_that_has_not_read_owes(ends: Ends) -> None:
    ends[0].enqueue(torch.rand(COUNT))
    assert slots_free(ends) == N_SLOTS - 1
    ends[1].dequeue(10)
    assert slots_free(ends) == N_SLOTS


# ---- more alive than there is room for ------------------------------------------------------------------------------


def test_more_tensors_alive_than_slots(ends: Ends) -> None:
    values = [torch.rand(COUNT) for _ in range(N_SLOTS * 3)]
    held = [sent(ends, value) for value in values]
    assert all(torch.equal(a, b) for a, b in zip(values, held))
    statistics = ends[0].statistics()
    assert (statistics.diverted_total, statistics.fallback_total) == (N_SLOTS, {"no_slot": N_SLOTS * 2})
    del held[1]
    sent(ends, values[0])
    assert ends[0].statistics().diverted_total == N_SLOTS + 1


def test_more_bytes_alive_than_capacity() -> None:
    config = ArenaConfig(capacity_bytes=64 << 10, slots=64, divert_bytes=1024)
    with queue_of(1, arena=config) as ends:
        writer, (reader,) = ends
        values = [torch.rand(5 << 10) for _ in range(8)]  # three pages and a half each would fit three times
        held = [sent((writer, reader), value) for value in values]
        assert all(torch.equal(a, b) for a, b in zip(values, held))
        statistics = writer.statistics()
        assert (statistics.diverted_total, statistics.fallback_total) == (3, {"no_extent": 5})
        big = torch.rand(32 << 10)
        assert torch.equal(sent((writer, reader), big), big)
        assert writer.statistics().fallback_total["oversize"] == 1


# ---- after the end --------------------------------------------------------------------------------------------------


def test_views_outlive_both_ends() -> None:
    """Shut down, dropped and collected on both sides: the bytes are still there, and writable."""
    with queue_of(1, arena=CONFIG) as (writer, (reader,)):
        writer.enqueue({"t": torch.arange(COUNT), "a": np.arange(COUNT)})
        message: Any = reader.dequeue(10)
    del writer, reader
    gc.collect()
    assert torch.equal(message["t"], torch.arange(COUNT))
    message["t"].fill_(7)
    message["a"][:] = 8
    assert message["t"].sum() == 7 * COUNT


PRELUDE = """
import gc, sys, threading, torch, numpy
from arena import ArenaConfig, MessageQueue
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=8, divert_bytes=1024))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
def sent(value):
    writer.enqueue(value, timeout=60)
    return reader.dequeue(timeout=60)
"""

EXITS = {
    "everything_alive": """
class Last:
    def __init__(self, tensor):
        self.tensor = tensor
    def __del__(self):
        self.tensor.fill_(1)
kept = sent(torch.rand(2048)); view = kept.numpy()
sys.modules['torch'].kept = sent([torch.rand(2048), numpy.arange(2048)])
cycle = [sent(torch.rand(2048))]; cycle.append(cycle); del cycle
last = Last(sent(torch.rand(2048)))
loan = writer.loan((2048,), torch.float32); sent(loan)
""",
    "after_shutdown": "kept = sent(torch.rand(2048)); writer.shutdown(); reader.shutdown()",
    "daemon_thread": """
kept = sent(torch.rand(2048))
def wait():
    try:
        reader.dequeue()
    except Exception:
        pass
threading.Thread(target=wait, daemon=True).start()
""",
    "unread_out_of_band": """
small = MessageQueue(1, 1, arena=None, max_chunk_bytes=1024)
end = MessageQueue.create_from_handle(small.export_handle(), 0)
small.enqueue(bytes(100000))
loop = [small]; loop.append(loop); del small, loop
gc.collect()
""",
}


@pytest.mark.parametrize("how", EXITS)
def test_interpreter_exit(how: str) -> None:
    """Code 0 and nothing on stderr, whatever still lives and whoever forgot to shut down."""
    done = python(PRELUDE + EXITS[how])
    assert (done.returncode, done.stderr) == (0, "")


# ---- how readers may touch the memory -------------------------------------------------------------------------------


def test_shared_access_is_one_memory() -> None:
    with queue_of(2, arena=CONFIG) as (writer, readers):
        writer.enqueue(torch.zeros(COUNT))
        first, second = (reader.dequeue(10) for reader in readers)
        first[3] = 5.0  # type: ignore[index]
        assert second[3] == 5.0  # type: ignore[index]


def with_access(access: Any) -> ArenaConfig:
    return ArenaConfig(capacity_bytes=1 << 20, slots=N_SLOTS, divert_bytes=1024, reader_access=access)


def test_private_access_is_each_readers_own() -> None:
    """A reader's writes are seen by nobody, and hide nothing of what the writer puts there afterwards."""
    with queue_of(2, arena=with_access("private")) as (writer, readers):
        for i in range(5):  # the extent is used again and again
            writer.enqueue(torch.full((COUNT,), float(i)))
            first, second = (reader.dequeue(10) for reader in readers)
            assert (first == i).all()  # type: ignore[attr-defined]
            first.fill_(-1.0)  # type: ignore[attr-defined]
            assert (second == i).all()  # type: ignore[attr-defined]
            del first, second
            assert writer.statistics().slots_free == N_SLOTS


def test_private_copies_that_are_locked_are_not_taken_for_a_message() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with queue_of(1, arena=with_access("private")) as (writer, (reader,)):
        writer.enqueue(torch.full((COUNT,), 1.0))
        first: Any = reader.dequeue(10)
        place = ctypes.c_void_p(first.data_ptr()), ctypes.c_size_t(first.nbytes)
        first.fill_(-1.0)
        assert libc.mlock(*place) == 0, os.strerror(ctypes.get_errno())
        del first
        writer.enqueue(torch.full((COUNT,), 2.0))
        with pytest.raises(ArenaError, match=r"cannot be read afresh: Invalid argument.*mlock"):
            reader.dequeue(10)
        assert writer.statistics().slots_free == N_SLOTS
        assert libc.munlock(*place) == 0
        writer.enqueue(torch.full((COUNT,), 3.0))
        assert (reader.dequeue(10) == 3.0).all()  # type: ignore[attr-defined]


def test_readonly_access() -> None:
    with queue_of(1, arena=with_access("readonly")) as (writer, (reader,)):
        values = {"a": np.arange(COUNT), "t": torch.arange(COUNT)}
        writer.enqueue(values)
        received: Any = reader.dequeue(10)
        assert not received["a"].flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            received["a"][0] = 1
        assert torch.equal(received["t"], values["t"])
        assert np.array_equal(received["a"], values["a"])


# ---- loans ----------------------------------------------------------------------------------------------------------


def test_a_loan_travels_without_a_copy(ends: Ends) -> None:
    writer, _ = ends
    loan = writer.loan((COUNT,), torch.float32)
    assert slots_free(ends) == N_SLOTS - 1
    loan.copy_(torch.arange(COUNT, dtype=torch.float32))
    received = sent(ends, {"x": loan})["x"]
    statistics = writer.statistics()
    assert (statistics.bytes_copied, statistics.loaned_total, statistics.diverted_total) == (0, 1, 1)
    assert torch.equal(received, torch.arange(COUNT, dtype=torch.float32))
    del loan
    assert slots_free(ends) == N_SLOTS - 1
    del received
    assert slots_free(ends) == N_SLOTS


def test_the_writer_keeps_its_published_loan(ends: Ends) -> None:
    loan = ends[0].loan((COUNT,), torch.int64).fill_(3)
    received = sent(ends, loan)
    del received
    assert slots_free(ends) == N_SLOTS - 1
    for _ in range(N_SLOTS * 2):
        sent(ends, torch.zeros(COUNT, dtype=torch.int64))
    assert (loan == 3).all()
    del loan
    assert slots_free(ends) == N_SLOTS


@pytest.mark.parametrize(
    "view", [lambda t: t[1:], lambda t: t.view(torch.int32), lambda t: t.numpy()[2:9], lambda t: t.view(64, 32).t()]
)
def test_a_view_of_a_loan_copies_nothing(ends: Ends, view: Any) -> None:
    loan = ends[0].loan((COUNT,), torch.float32)
    loan.copy_(torch.rand(COUNT))
    part = view(loan)
    assert as_bytes(sent(ends, part)) == as_bytes(part)
    assert ends[0].statistics().bytes_copied == 0


def test_a_view_with_gaps_of_a_loan_is_copied(ends: Ends) -> None:
    loan = ends[0].loan((COUNT,), torch.float32)
    loan.copy_(torch.rand(COUNT))
    assert torch.equal(sent(ends, loan[::2]), loan[::2])
    assert ends[0].statistics().bytes_copied == COUNT * 2


def test_two_tensors_in_one_loan(ends: Ends) -> None:
    loan = ends[0].loan((2, COUNT), torch.float32)
    loan.copy_(torch.rand(2, COUNT))
    first, second = sent(ends, [loan[0], loan[1]])
    assert torch.equal(torch.stack([first, second]), loan)
    assert ends[0].statistics().bytes_copied == 0
    del loan, first
    assert slots_free(ends) == N_SLOTS - 1
    del second
    assert slots_free(ends) == N_SLOTS


def test_a_loan_enqueued_again_is_copied(ends: Ends) -> None:
    loan = ends[0].loan((COUNT,), torch.float32).fill_(1)
    first = sent(ends, loan)
    second = sent(ends, loan)
    assert ends[0].statistics().bytes_copied == COUNT * 4
    second.fill_(2)
    assert (first == 1).all()


def test_a_dropped_loan_is_free(ends: Ends) -> None:
    for _ in range(N_SLOTS * 3):
        ends[0].loan((COUNT,), torch.uint8)
    assert slots_free(ends) == N_SLOTS


def test_an_aborted_message_keeps_its_loan(ends: Ends) -> None:
    loan = ends[0].loan((COUNT,), torch.float32).fill_(4)
    with pytest.raises(Exception, match=r"pickle|local object"):
        ends[0].enqueue([loan, torch.rand(COUNT), lambda: 0])
    assert slots_free(ends) == N_SLOTS - 1
    received = sent(ends, loan)
    assert ends[0].statistics().bytes_copied == 0  # the other tensor's message did not go out
    assert (received == 4).all()


def test_a_loan_dropped_inside_its_message(ends: Ends) -> None:
    """Enqueued without a name of its own: the reader's lease alone keeps it."""
    received = sent(ends, [ends[0].loan((COUNT,), torch.float32).fill_(9)])[0]
    assert slots_free(ends) == N_SLOTS - 1
    assert (received == 9).all()
    del received
    assert slots_free(ends) == N_SLOTS


def test_loans_that_cannot_be_had(ends: Ends) -> None:
    writer, reader = ends
    for shape, dtype, text in [
        ((0,), torch.uint8, r"shape=\(0,\)"), ((4,), torch.qint8, "dtype=torch.qint8"), ((4,), [], r"dtype=\[\]"),
        ((1,) * 65, torch.uint8, "at most 64 dimensions"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=text):
            writer.loan(shape, dtype)
    with pytest.raises(CapacityError, match="the whole arena has 1048576; give ArenaConfig more"):
        writer.loan((2 << 20,), torch.uint8)
    held = [writer.loan((COUNT,), torch.uint8) for _ in range(N_SLOTS)]
    with pytest.raises(CapacityError, match=r"no_slot \(0 of 4 slots free.*more slots"):
        writer.loan((COUNT,), torch.uint8)
    del held
    assert writer.loan((COUNT,), torch.uint8).numel() == COUNT
    with pytest.raises(ValueError, match="loan is for the writer"):
        reader.loan((1,), torch.uint8)


def test_no_loan_without_an_arena() -> None:
    with queue_of(1, arena=None) as (writer, _), pytest.raises(CapacityError, match="this queue has no arena"):
        writer.loan((COUNT,), torch.uint8)
