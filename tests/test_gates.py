"""What a lease waits for when its memory is pinned, one rule at a time, with a device that reads late."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from gates_support import Device, gates_of, let_go
from support import SMALL, WATCHDOG_S, in_thread, python, wait_until

from arena import ArenaConfig, MessageQueue
from arena.config import Pin
from arena.device import pinning
from arena.device.interface import ERROR_NOT_REGISTERED
from arena.device.simulated import SimulatedDevice
from arena.errors import DeviceError
from arena.shm.native import lib

PAGE = 4096
NBYTES = 64 * PAGE


def message(number: int = 0, nbytes: int = NBYTES) -> torch.Tensor:
    return (torch.arange(nbytes) + number * 31).remainder(251).to(torch.uint8)


@contextmanager
def pinned_queue(
    arena: ArenaConfig = SMALL, device: Device | None = None
) -> Iterator[tuple[MessageQueue, MessageQueue, Device]]:
    """A writer and one reader with a simulated device, in this process."""
    device = device or Device(1)
    with MessageQueue(1, 1, arena=arena) as writer:
        with MessageQueue.create_from_handle(writer.export_handle(), 0, device=device) as reader:
            writer.wait_until_ready(WATCHDOG_S)
            try:
                yield writer, reader, device
            finally:
                device._faults.clear()
                if gates_of(reader).pinning.chunks:
                    let_go(reader, device)


def busy(writer: MessageQueue) -> int:
    statistics = writer.statistics()
    return int(statistics.slots_total - statistics.slots_free)


def receive(writer: MessageQueue, reader: MessageQueue, number: int = 0, nbytes: int = NBYTES) -> Any:
    writer.enqueue(message(number, nbytes), WATCHDOG_S)
    return reader.dequeue(WATCHDOG_S)


# ---- each rule -------------------------------------------------------------------------------------------------------


def copy_with_to_device(reader: MessageQueue, device: Device, tensor: torch.Tensor) -> None:
    reader.to_device(tensor, "sim:0", stream=device.sides[0])


def copy_and_tell(reader: MessageQueue, device: Device, tensor: torch.Tensor) -> None:
    device.copy(tensor, torch.empty_like(tensor), device.sides[0])
    reader.record_use(tensor, device.sides[0])


def copy_in_the_current_stream(reader: MessageQueue, device: Device, tensor: torch.Tensor) -> None:
    device.copy(tensor, torch.empty_like(tensor), device.current_stream())


def copy_twice(reader: MessageQueue, device: Device, tensor: torch.Tensor) -> None:
    for stream in device.sides:
        reader.to_device(tensor, "sim:0", stream=stream)


COPIES = (copy_with_to_device, copy_and_tell, copy_in_the_current_stream, copy_twice)
Copy = Callable[[MessageQueue, Device, torch.Tensor], None]


@pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.__name__)
def test_a_slot_is_free_when_the_copy_is_done_and_not_before(copy: Copy) -> None:
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        copy(reader, device, tensor)
        del tensor
        assert reader.flush_releases() == 1
        while device.pending:
            assert busy(writer) == 1
            device.step()
            assert reader.flush_releases() == (1 if device.pending else 0)
        assert busy(writer) == 0


def test_a_copy_in_the_stream_that_was_current_when_the_tensor_came() -> None:
    with pinned_queue() as (writer, reader, device):
        with device.stream(device.sides[1]):
            tensor = receive(writer, reader)
            device.copy(tensor, torch.empty_like(tensor), device.sides[1])
            del tensor
        assert reader.flush_releases() == 1 == busy(writer)
        device.drain()
        assert reader.flush_releases() == 0 == busy(writer)


def test_a_copy_that_is_done_when_the_tensor_goes_costs_one_look() -> None:
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        copied = reader.to_device(tensor, "sim:0", non_blocking=False)
        assert torch.equal(copied, message())
        del tensor
        reader.flush_releases()
        device.drain()
        assert reader.flush_releases() == 0 == busy(writer)


def test_a_view_of_a_part_keeps_the_whole() -> None:
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        copied = reader.to_device(tensor[PAGE : 2 * PAGE], "sim:0", stream=device.sides[0])
        del tensor
        reader.flush_releases()
        assert busy(writer) == 1
        device.drain()
        reader.flush_releases()
        assert busy(writer) == 0
        assert torch.equal(copied, message()[PAGE : 2 * PAGE])


def test_what_came_beside_the_arena_is_copied_too() -> None:
    with pinned_queue() as (writer, reader, device):
        for sent in (torch.arange(100), torch.arange(4 << 20, dtype=torch.int64)):  # inline, and larger than the arena
            writer.enqueue(sent, WATCHDOG_S)
            copied = reader.to_device(reader.dequeue(WATCHDOG_S), "sim:0")
            device.drain()
            assert torch.equal(copied, sent)


def test_a_tensor_over_several_chunks_is_copied_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "LAZY_CHUNK_BYTES", 16 * PAGE)
    with pinned_queue() as (writer, reader, device):
        first = receive(writer, reader, 1, 10 * PAGE)  # so that the next one does not begin with a chunk
        for layout in (torch.contiguous_format, torch.channels_last):
            sent = message(2, 36 * PAGE).view(4, 9, 64, 64).contiguous(memory_format=layout)
            writer.enqueue(sent, WATCHDOG_S)
            tensor: Any = reader.dequeue(WATCHDOG_S)
            copied = reader.to_device(tensor, "sim:0")
            assert copied.stride() == sent.stride()
            device.drain()
            assert torch.equal(copied, sent)
            assert device.calls.count("copy") >= 3
        del first, tensor


# ---- when it is looked at --------------------------------------------------------------------------------------------


def test_dequeue_looks_at_the_gates_and_does_not_wait_for_them() -> None:
    with pinned_queue() as (writer, reader, device):
        reader.to_device(receive(writer, reader), "sim:0")
        assert torch.equal(receive(writer, reader, 1), message(1))  # while the first gate is shut
        assert busy(writer) >= 1
        device.drain()
        with pytest.raises(TimeoutError):
            reader.dequeue(0)
        device.drain()
        with pytest.raises(TimeoutError):
            reader.dequeue(0)
        assert busy(writer) == 0


def test_a_reader_that_waits_still_frees_slots() -> None:
    with pinned_queue() as (writer, reader, device):
        reader.to_device(receive(writer, reader), "sim:0")
        waiting = in_thread(lambda: reader.dequeue(WATCHDOG_S))
        wait_until(lambda: gates_of(reader).open_total == 1, "the gate is shut")
        assert busy(writer) == 1
        wait_until(lambda: (device.drain(), busy(writer))[1] == 0, "the slot is free while the reader waits")
        writer.enqueue("end", WATCHDOG_S)
        assert waiting() == "end"


def test_the_last_drop_runs_no_python_and_may_come_from_anywhere() -> None:
    with pinned_queue() as (writer, reader, device):
        held = [receive(writer, reader, number) for number in range(3)]
        reader.to_device(held[0], "sim:0")
        cycle: list[Any] = [held.pop()]
        cycle.append(cycle)
        calls = len(device.calls)
        in_thread(held.clear)()
        del cycle
        gc.collect()
        assert len(device.calls) == calls
        assert busy(writer) == 3
        reader.flush_releases()
        device.drain()
        assert reader.flush_releases() == 0 == busy(writer)


def test_many_threads_drop_and_look_at_once(seed: int) -> None:
    with pinned_queue(replace(SMALL, slots=8)) as (writer, reader, device), device.running():
        for number in range(60):
            received = receive(writer, reader, number, 2 * PAGE)
            copied = reader.to_device(received, "sim:0", stream=device.sides[number % 2])
            threads = [threading.Thread(target=reader.flush_releases) for _ in range(2)]
            for thread in threads:
                thread.start()
            del received
            for thread in threads:
                thread.join()
            wait_until(lambda: device.pending == 0, "the device is done")
            assert torch.equal(copied, message(number, 2 * PAGE))
        wait_until(lambda: reader.flush_releases() == 0 and busy(writer) == 0, "all slots free")


def test_an_object_of_the_queue_s_cache_waits_too() -> None:
    with pinned_queue() as (writer, reader, device):
        with writer.object_cache() as cache:
            handle = cache.put(b"image", message())
            getter = reader.cache_reader()
            tensor: Any = getter.get(handle)
            copied = reader.to_device(tensor, "sim:0", stream=device.sides[0])
            del tensor
            assert reader.flush_releases() == 1
            device.drain()
            assert reader.flush_releases() == 0
            assert torch.equal(copied, message())
            assert device.registered != {}


# ---- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["query", "record"])
def test_an_event_that_raises_keeps_the_slot(call: str, caplog: pytest.LogCaptureFixture) -> None:
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        device.fail(call, 700, times=100)
        reader.to_device(tensor, "sim:0")
        del tensor
        reader.flush_releases()
        device.drain()
        for _ in range(3):
            assert reader.flush_releases() == 1 == busy(writer)
        assert reader.statistics().quarantined == 1
        device._faults.clear()
        assert torch.equal(receive(writer, reader, 1), message(1))  # everything else goes on
        reader.flush_releases()
        device.drain()
        assert reader.flush_releases() == 1 == busy(writer)


def test_a_context_that_is_gone_keeps_every_slot_and_ends_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("context is destroyed")

    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        for name in ("record", "used_streams", "current_stream"):
            monkeypatch.setattr(device, name, gone)
        device.fail("query", 709, times=1000)
        device.reason = "the context is gone"
        del tensor
        assert reader.flush_releases() == 1
        assert torch.equal(receive(writer, reader, 1), message(1))
        assert reader.flush_releases() == 2 == busy(writer)
        assert reader.statistics().reason_unpinned == "the context is gone"


def test_a_stream_that_is_captured_is_asked_again() -> None:
    with pinned_queue() as (writer, reader, device):
        device.captured = device.sides[0]
        tensor = receive(writer, reader)
        copy_with_to_device(reader, device, tensor)
        del tensor
        device.drain()
        assert reader.flush_releases() == 1 == busy(writer)
        device.captured = None
        reader.flush_releases()
        device.drain()
        assert reader.flush_releases() == 0 == busy(writer)
        assert reader.statistics().quarantined == 0


def test_a_copy_that_fails_half_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "LAZY_CHUNK_BYTES", 16 * PAGE)
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader, 0, 40 * PAGE)
        device.fail("copy", 1, nth=2)
        with pytest.raises(DeviceError):
            reader.to_device(tensor, "sim:0", stream=device.sides[0])
        del tensor
        assert reader.flush_releases() == 1
        device.drain()
        reader.flush_releases()
        assert busy(writer) == 0


# ---- pinning ---------------------------------------------------------------------------------------------------------


def test_only_what_is_used_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "LAZY_CHUNK_BYTES", 16 * PAGE)
    with pinned_queue() as (writer, reader, device):
        assert device.registered == {}
        tensors = [receive(writer, reader, 0, PAGE)]
        assert sum(device.registered.values()) == reader.statistics().pinned_bytes == 16 * PAGE
        tensors.append(receive(writer, reader, 1, 16 * PAGE))  # does not fit into the rest of the chunk
        assert sum(device.registered.values()) == 32 * PAGE
        assert tensors[1].data_ptr() - tensors[0].data_ptr() == 16 * PAGE
        del tensors


@pytest.mark.parametrize("pin", ["eager", "background"])
def test_all_is_pinned_before_it_is_used(pin: Pin) -> None:
    with pinned_queue(replace(SMALL, pin=pin)) as (_, reader, device):
        reader.wait_until_ready(WATCHDOG_S)
        wait_until(lambda: sum(device.registered.values()) == SMALL.capacity_bytes, "all is pinned")


def unpinned(arena: ArenaConfig, device: SimulatedDevice | None) -> tuple[str | None, int]:
    """Why a reader does not pin, and what is busy right behind a drop."""
    with MessageQueue(1, 1, arena=arena) as writer:
        with MessageQueue.create_from_handle(writer.export_handle(), 0, device=device) as reader:
            writer.wait_until_ready(WATCHDOG_S)
            received = receive(writer, reader)
            assert torch.equal(received, message())
            if device is not None:
                assert torch.equal(reader.to_device(received, "sim:0", non_blocking=False), message())
            del received
            statistics = reader.statistics()
            assert (statistics.pinned_bytes, statistics.leases_open, statistics.gates_open) == (0, 0, 0)
            assert reader.flush_releases() == 0
            return statistics.reason_unpinned, busy(writer)


def test_without_pinning_a_drop_frees_at_once_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpinned(replace(SMALL, pin="off"), Device(1)) == ('pin="off"', 0)
    assert unpinned(replace(SMALL, reader_access="private"), Device(1)) == ('reader_access="private" cannot be pinned', 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert unpinned(SMALL, None) == ("this build of torch knows no device", 0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert unpinned(SMALL, None) == ("this process has not initialised CUDA", 0)
    device = Device(1)
    device.reason = "no context yet"
    assert unpinned(SMALL, device) == ("no context yet", 0)


def test_a_driver_that_refuses_leaves_the_memory_usable() -> None:
    with pinned_queue() as (writer, reader, device):
        device.fail("register", 2)
        received = receive(writer, reader)
        assert torch.equal(reader.to_device(received, "sim:0", non_blocking=False), message())
        del received
        assert reader.flush_releases() == 0 == busy(writer)  # at the next look: there might have been something to wait for
        statistics = reader.statistics()
        assert statistics.pinned_bytes == 0
        assert "injected fault" in str(statistics.reason_unpinned)
        assert device.violations == []
        assert device.calls.count("drain_error") == 1


def test_a_device_that_comes_later_is_used_from_then_on() -> None:
    with pinned_queue() as (writer, reader, device):
        device.reason = "no context yet"
        early, late = receive(writer, reader), receive(writer, reader, 1)
        assert device.registered == {}
        device.reason = None
        reader.to_device(late, "sim:0", stream=device.sides[0])
        assert device.registered != {}
        reader.to_device(early, "sim:0", stream=device.sides[0])
        del early, late
        assert reader.flush_releases() == 2
        device.drain()
        assert reader.flush_releases() == 0 == busy(writer)


def test_other_threads_run_while_memory_is_pinned() -> None:
    device = Device(1)
    device._register_s = 0.3
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.005):
            ticks[0] += 1

    ticking = in_thread(tick)
    with pinned_queue(device=device) as (writer, reader, _):
        writer.enqueue(message(), WATCHDOG_S)
        before = ticks[0]
        reader.dequeue(WATCHDOG_S)  # takes the pages, then registers them, for 0.3 s
        assert ticks[0] - before >= 3
        device._register_s = 0.0
    stop.set()
    ticking()


def test_a_readonly_reader_registers_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    register = Device.register

    def changed(self: Device, address: int, nbytes: int, *, read_only: bool = False) -> None:
        asked.append(read_only)
        register(self, address, nbytes, read_only=read_only)

    monkeypatch.setattr(Device, "register", changed)
    with pinned_queue(replace(SMALL, reader_access="readonly")) as (writer, reader, _):
        assert torch.equal(receive(writer, reader), message())
    assert asked == [True]


# ---- the end ---------------------------------------------------------------------------------------------------------


def mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        ranges = (line.split()[0].split("-") for line in maps)
        return any(int(start, 16) <= address < int(stop, 16) for start, stop in ranges)


def test_a_view_outlives_shutdown_and_is_unpinned_before_it_is_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    was_mapped: list[bool] = []
    unregister = Device.unregister

    def changed(self: Device, address: int) -> None:
        was_mapped.append(mapped(address))
        unregister(self, address)

    monkeypatch.setattr(Device, "unregister", changed)
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        copied = reader.to_device(tensor, "sim:0")
        reader.shutdown()
        assert device.registered != {}
        assert torch.equal(tensor, message())
        address = tensor.data_ptr()
        del tensor
        wait_until(lambda: (device.drain(), device.registered)[1] == {}, "unpinned once the copy is done")
        wait_until(lambda: not mapped(address), "unmapped")
        assert was_mapped == [True]
        assert device.violations == []
        assert torch.equal(copied, message())


def test_a_mapping_that_the_driver_keeps_stays_mapped() -> None:
    before = lib.arena_maps_live()
    with pinned_queue() as (writer, reader, device):
        mapping = gates_of(reader)._mapping
        receive(writer, reader)
        reader.flush_releases()
        device.drain()
        device.fail("unregister", 999)
        reader.shutdown()
        assert device.registered != {}
    assert lib.arena_maps_live() == before + 1
    lib.arena_map_release(mapping)


def test_a_range_that_the_driver_does_not_know_is_unmapped() -> None:
    with pinned_queue() as (writer, reader, device):
        receive(writer, reader)
        reader.flush_releases()
        device.drain()
        device.fail("unregister", ERROR_NOT_REGISTERED)


@pytest.mark.parametrize("round_", range(3))
def test_opening_and_closing_again_and_again(round_: int) -> None:
    device = Device(1)
    for _ in range(15):
        with pinned_queue(device=device) as (writer, reader, _):
            receive(writer, reader)
    assert device.registered == {}
    assert device.violations == []


EXIT = """
import torch
from arena import ArenaConfig, MessageQueue
from arena.device.simulated import SimulatedDevice

device = SimulatedDevice(1)
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=8, divert_bytes=4096, pin=sys.argv[2]))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0, device=device)
writer.wait_until_ready(10)
received = []
for _ in range(3):
    writer.enqueue(torch.ones(10_000))
    received.append(reader.dequeue(10))
reader.to_device(received[0], 0)
reader.to_device(received[1], 0)
del received[0]
kind = sys.argv[1]
if "flush" in kind:
    reader.flush_releases()
if "shutdown" in kind:
    reader.shutdown()
if "broken" in kind:
    device.fail("query", 700, times=1000)
if "cycle" in kind:
    received.append(received)
    received.append(reader)
if "module" in kind:
    torch.kept = received
    torch.reader = reader
if "exception" in kind:
    raise SystemExit(0)
"""


@pytest.mark.parametrize(
    ("kind", "pin"),
    [("plain", "auto"), ("flush shutdown", "background"), ("broken flush cycle", "auto"), ("module exception", "auto")],
)
def test_an_interpreter_ends_with_open_gates_and_live_views(kind: str, pin: Pin) -> None:
    ended = python(EXIT.replace("sys.argv[1]", repr(kind)).replace("sys.argv[2]", repr(pin)))
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


FORK = """
import os
import torch
from arena import ArenaConfig, MessageQueue
from arena.device.simulated import SimulatedDevice
from arena.errors import ForkedError

device = SimulatedDevice(1)
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=8, divert_bytes=4096))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0, device=device)
writer.wait_until_ready(10)
tensors = []
for _ in range(2):
    writer.enqueue(torch.ones(10_000))
    tensors.append(reader.dequeue(10))
reader.to_device(tensors[0], 0)
del tensors[0]
reader.flush_releases()
child = os.fork()
if not child:
    for call in (reader.flush_releases, lambda: reader.to_device(torch.ones(1), 0)):
        try:
            call()
        except ForkedError:
            pass
        else:
            os._exit(3)
    del tensors[0]
    reader.shutdown()
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(device.registered) == 1 and reader.flush_releases() == 1
device.drain()
assert reader.flush_releases() == 0
assert writer.statistics().slots_free == 7
"""


def test_a_forked_child_concerns_no_gate() -> None:
    ended = python(FORK)
    assert ended.returncode == 0, ended.stderr


NO_CUDA = """
import sys
import torch
from arena import ArenaConfig, MessageQueue

before = {name for name in sys.modules if "cuda" in name}
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=8, divert_bytes=4096))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
writer.wait_until_ready(10)
writer.enqueue(torch.ones(10_000))
reader.dequeue(10)
reader.flush_releases()
reader.statistics()
reader.shutdown()
writer.shutdown()
assert not torch.cuda.is_initialized()
assert {name for name in sys.modules if "cuda" in name} - before <= {"arena.device.cuda"}
assert "libcuda" not in open("/proc/self/maps").read()
"""


def test_nothing_of_cuda_is_touched() -> None:
    ended = python(NO_CUDA)
    assert ended.returncode == 0, ended.stderr


def test_a_writer_has_no_device() -> None:
    with pinned_queue() as (writer, reader, _):
        for call in (lambda: writer.to_device(message(), "sim:0"), writer.flush_releases):
            with pytest.raises(ValueError, match="for a reader"):
                call()
        reader.shutdown()


