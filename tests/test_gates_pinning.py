"""What a reader pins, when, and what it tells where it pins nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from gates_support import Device, gates_of
from pinned_support import PAGE, busy, message, pinned_queue, receive
from support import SMALL, WATCHDOG_S, in_thread, python, wait_until

from arena import ArenaConfig, MessageQueue
from arena.config import Pin
from arena.device import pinning
from arena.device.simulated import SimulatedDevice


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


def test_a_chunk_that_is_pinned_in_the_middle_of_a_copy_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver refuses a copy from memory that is registered only in part by the time that it looks."""
    monkeypatch.setattr(pinning, "LAZY_CHUNK_BYTES", 16 * PAGE)
    monkeypatch.setattr(pinning.Pinning, "_start_thread", lambda self: None)
    copy = Device.copy

    def changed(self: Device, *arguments: Any, **options: Any) -> None:
        gates_of(reader).pinning._pin_chunks(range(1))  # as the thread would
        copy(self, *arguments, **options)

    monkeypatch.setattr(Device, "copy", changed)
    with pinned_queue(replace(SMALL, pin="background")) as (writer, reader, device):
        tensor = receive(writer, reader, 0, 36 * PAGE)
        assert device.registered == {}
        copied = reader.to_device(tensor, "sim:0")
        assert sum(device.registered.values()) == 16 * PAGE
        device.drain()
        assert torch.equal(copied, tensor)
        del tensor


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


NO_CUDA = """
import pathlib
import sys
import torch
from arena import ArenaConfig, MessageQueue

before = {name for name in sys.modules if "cuda" in name}
begun = []
torch.cuda._lazy_init = lambda: begun.append("initialised")  # what every call of torch that needs CUDA does first
torch.version.cuda = torch.version.cuda or "12.8"  # so that the device is chosen with any build of torch
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=8, divert_bytes=4096))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
writer.wait_until_ready(10)
writer.enqueue(torch.ones(10_000))
reader.dequeue(10)
reader.flush_releases()
assert reader.statistics().reason_unpinned == "this process has not initialised CUDA"
reader.shutdown()
writer.shutdown()
assert begun == [] and not torch.cuda.is_initialized()
assert {name for name in sys.modules if "cuda" in name} - before <= {"arena.device.cuda"}
assert "libcuda" not in pathlib.Path("/proc/self/maps").read_text()
"""


def test_nothing_of_cuda_is_touched() -> None:
    ended = python(NO_CUDA)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_writer_has_no_device() -> None:
    with pinned_queue() as (writer, reader, _):
        for call in (lambda: writer.to_device(message(), "sim:0"), writer.flush_releases):
            with pytest.raises(ValueError, match="for a reader"):
                call()
        reader.shutdown()
