"""The end of a reader that pins: by shutdown with live views, of the interpreter, and in a forked child."""

from __future__ import annotations

import threading

import pytest
import torch
from gates_support import Device, gates_of
from pinned_support import busy, message, pinned_queue, receive
from support import python, wait_until

from arena.config import Pin
from arena.device.interface import ERROR_NOT_REGISTERED
from arena.message import gates
from arena.ratelimit import RateLimit
from arena.shm.native import lib


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


def test_without_threads_what_is_still_read_stays_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pinned_queue() as (writer, reader, device):
        monkeypatch.setattr(gates, "_warnings", RateLimit(60.0))
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert torch.equal(receive(writer, reader), message())
        device.delay(device.current_stream(), 1000.0)
        reader.shutdown()
        assert "stay taken until this process ends" in caplog.text
        assert busy(writer) == 1
        assert device.registered != {}


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


BEGIN = """
import os
import torch
from arena import ArenaConfig, MessageQueue
from arena.device.simulated import SimulatedDevice
from arena.errors import ForkedError

device = SimulatedDevice(1)
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=8, divert_bytes=4096, pin=pin))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0, device=device)
writer.wait_until_ready(10)
received = []
for _ in range(count):
    writer.enqueue(torch.ones(10_000))
    received.append(reader.dequeue(10))
reader.to_device(received[0], 0)
"""

EXIT = """
reader.to_device(received[1], 0)
del received[0]
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
    ended = python(f"kind, pin, count = {kind!r}, {pin!r}, 3" + BEGIN + EXIT)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


FORK = """
del received[0]
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
    del received[0]
    reader.shutdown()
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(device.registered) == 1 and reader.flush_releases() == 1
device.drain()
assert reader.flush_releases() == 0
assert writer.statistics().slots_free == 7
"""


def test_a_forked_child_concerns_no_gate() -> None:
    ended = python("pin, count = 'auto', 2" + BEGIN + FORK)
    assert ended.returncode == 0, ended.stderr
