"""What a lease waits for when its memory is pinned, one rule at a time, with a device that reads late."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gates_support import Device, gates_of
from pinned_support import PAGE, busy, message, pinned_queue, receive
from support import SMALL, WATCHDOG_S, in_thread, wait_until

from arena import MessageQueue
from arena.device import pinning
from arena.errors import DeviceError
from arena.message import gates

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


def test_a_tensor_that_came_before_the_device_counts_as_come_with_it() -> None:
    """Nothing says which stream was current when it came, as there was none: the first that is known stands for it."""
    with pinned_queue() as (writer, reader, device):
        device.reason = "no context yet"
        early = receive(writer, reader)
        device.reason = None
        with device.stream(device.sides[0]):
            receive(writer, reader, 1)  # pins the memory of both
            device.copy(early, torch.empty_like(early), device.current_stream())
            device.delay(device.current_stream(), 1.0)
            del early
        with device.stream(device.sides[1]):
            assert reader.flush_releases() == 2 == busy(writer)
            device.advance(0.5)
            assert reader.flush_releases() == 2 == busy(writer)
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


def test_a_view_that_shows_more_than_it_has_is_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expanded, a tensor has more elements than its memory, and at the end more than the mapping."""

    def copy(source: torch.Tensor, target: torch.Tensor, stream: Any, *, non_blocking: bool) -> None:
        target.copy_(source)

    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        monkeypatch.setattr(device, "copy", copy)
        for view in (tensor.expand(100, -1), tensor.view(64, -1).t(), tensor[::7], tensor.as_strided((9, 9), (3, 2))):
            assert torch.equal(reader.to_device(view, "sim:0"), view)
        del tensor, view
        reader.flush_releases()
        device.drain()
        assert reader.flush_releases() == 0 == busy(writer)


@pytest.mark.parametrize(
    "view", [lambda t: t[:0], lambda t: t[:9].to_sparse(), lambda t: torch.empty(0)], ids=["slice", "sparse", "new"]
)
def test_what_has_no_address_is_copied(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        source = view(tensor)
        target = reader.to_device(source, "sim:0")
        device.drain()
        assert (target.layout, target.shape) == (source.layout, source.shape)
        assert torch.equal(target.to_dense(), source.to_dense())
        del tensor, source


@pytest.mark.parametrize("lazily", [torch.conj, torch._neg_view, lambda t: torch._neg_view(t.conj())])
def test_a_view_that_is_conjugated_or_negated_lazily_is_copied_as_it_reads(lazily: Callable[..., torch.Tensor]) -> None:
    with pinned_queue() as (writer, reader, device):
        writer.enqueue(torch.randn(9_000, dtype=torch.complex64), WATCHDOG_S)
        source = lazily(reader.dequeue(WATCHDOG_S))
        target = reader.to_device(source, "sim:0")
        device.drain()
        assert torch.equal(target, source)
        del source


def test_what_is_no_tensor_no_stream_and_no_device_is_refused() -> None:
    with pinned_queue() as (writer, reader, device):
        tensor = receive(writer, reader)
        wrong: Any = 5
        with pytest.raises(ValueError, match="tensor=5: must be a tensor"):
            reader.record_use(wrong, device.sides[0])
        with pytest.raises(ValueError, match="tensor=5: must be a tensor"):
            reader.to_device(wrong, "sim:0")
        with pytest.raises(ValueError, match="stream=5: must be a stream of the device simulated"):
            reader.record_use(tensor, wrong)
        with pytest.raises(ValueError, match="stream=5: must be a stream of the device simulated"):
            reader.to_device(tensor, "sim:0", stream=wrong)
        with pytest.raises(ValueError, match="must be a stream of the device that is copied to, sim:1"):
            reader.to_device(tensor, "sim:1", stream=device.sides[0])
        with pytest.raises(DeviceError, match="'sim:7': there is no such device"):
            reader.to_device(tensor, "sim:7")
        assert gates_of(reader)._uses == {}
        assert device.pending == 0
        del tensor


def test_the_current_streams_are_asked_for_once_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    used_streams = Device.used_streams

    def count(self: Device) -> Any:
        nonlocal asked
        asked += 1
        return used_streams(self)

    with pinned_queue() as (writer, reader, _):
        held = receive(writer, reader)  # pins
        monkeypatch.setattr(Device, "used_streams", count)
        for sent, times in (([message(number) for number in range(3)], 1), (message(0, 100), 0)):
            asked = 0
            writer.enqueue(sent, WATCHDOG_S)
            received = reader.dequeue(WATCHDOG_S)
            assert asked == times
        del held, received


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


def test_a_flush_beside_a_look_that_does_not_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_LOCK_TIMEOUT_S", 0.01)
    inside, go_on = threading.Event(), threading.Event()
    with pinned_queue() as (writer, reader, device):

        def used_streams() -> tuple[Any, ...]:
            inside.set()
            go_on.wait()
            return ()

        receive(writer, reader)
        monkeypatch.setattr(device, "used_streams", used_streams)
        looking = in_thread(reader.flush_releases)
        inside.wait()
        with pytest.raises(TimeoutError, match="another thread looks at the gates"):
            reader.flush_releases()
        monkeypatch.undo()
        go_on.set()
        looking()
        device.drain()
        assert reader.flush_releases() == 0 == busy(writer)


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


def test_a_reader_that_only_gets_objects_gives_them_back_too() -> None:
    """Its process may wait for requests elsewhere, and dequeue nothing for long."""
    with pinned_queue() as (writer, reader, device), writer.object_cache() as cache:
        getter = reader.cache_reader()
        handles = [cache.put(f"image {number}", message(number)) for number in range(2)]
        tensor: Any = getter.get(handles[0])
        copied = reader.to_device(tensor, "sim:0")
        del tensor
        cache.remove("image 0")
        assert isinstance(getter.get(handles[1]), torch.Tensor)
        assert cache.statistics().slots_draining == 1
        device.drain()
        assert isinstance(getter.get(handles[1]), torch.Tensor)
        assert cache.statistics().slots_draining == 0
        assert torch.equal(copied, message(0))


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
