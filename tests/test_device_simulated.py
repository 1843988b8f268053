"""The simulated device must be as hard on its callers as a real one: late, strict, and unforgiving."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from device_support import PAGE, SEED, Memory

from arena.device.interface import ERROR_ALREADY_REGISTERED, ERROR_INVALID_VALUE, ERROR_NOT_REGISTERED, Device, Event
from arena.device.simulated import SimulatedDevice, SimulatedStream
from arena.errors import DeviceError


@pytest.fixture
def memory() -> Memory:
    return Memory(4)


@pytest.fixture
def device(memory: Memory) -> Iterator[SimulatedDevice]:
    """A device that has the memory registered."""
    device = SimulatedDevice(SEED)
    device.register(memory.address, memory.nbytes)
    yield device
    assert device.violations == []


def start_copy(device: SimulatedDevice, source: torch.Tensor, stream: SimulatedStream | None = None) -> torch.Tensor:
    stream = stream or device.current_stream()
    target = device.empty_like(source, 0, stream).zero_()
    device.copy(source, target, stream)
    return target


# ---- copies are late -----------------------------------------------------------------------------


def test_a_copy_from_pinned_memory_reads_it_after_the_call(device: SimulatedDevice, memory: Memory) -> None:
    source = memory.tensor().fill_(1)
    target = start_copy(device, source)
    source.fill_(2)
    device.drain()
    assert torch.all(target == 2)


def test_a_copy_reads_by_address_and_keeps_no_tensor_alive(device: SimulatedDevice, memory: Memory) -> None:
    source = memory.tensor().fill_(1)
    references = source._use_count()  # type: ignore[operator]
    target = start_copy(device, source)
    assert source._use_count() == references  # type: ignore[operator]
    device.drain()
    assert torch.all(target == 1)


def test_some_copies_are_torn_by_a_write_in_their_middle(memory: Memory) -> None:
    torn = 0
    for seed in range(SEED, SEED + 20):
        device = SimulatedDevice(seed)
        device.register(memory.address, memory.nbytes)
        source = memory.tensor().fill_(1)
        target = start_copy(device, source)
        device.step()
        source.fill_(2)
        device.drain()
        torn += len(target.unique()) == 2
    assert torn > 0


def test_a_copy_from_pageable_memory_has_read_it_when_the_call_returns() -> None:
    device, source = SimulatedDevice(SEED), torch.ones(100, dtype=torch.uint8)
    target = start_copy(device, source)
    source.fill_(2)
    device.drain()
    assert torch.all(target == 1)


def test_a_blocking_copy_is_over_when_the_call_returns(device: SimulatedDevice, memory: Memory) -> None:
    source = memory.tensor().fill_(1)
    target = torch.zeros_like(source)
    device.copy(source, target, device.current_stream(), non_blocking=False)
    assert torch.all(target == 1)


def test_a_copy_back_changes_host_memory_late(device: SimulatedDevice, memory: Memory) -> None:
    target = memory.tensor().fill_(1)
    device.copy_back(torch.full_like(target, 2), target, device.current_stream())
    assert torch.all(target == 1)
    device.drain()
    assert torch.all(target == 2)


def test_abandoned_work_never_happens(device: SimulatedDevice, memory: Memory) -> None:
    target = memory.tensor().fill_(1)
    device.copy_back(torch.full_like(target, 2), target, device.current_stream())
    device.abandon()
    device.drain()
    assert torch.all(target == 1)


# ---- streams and events --------------------------------------------------------------------------


def test_an_event_is_done_after_the_work_before_it_and_not_earlier(device: SimulatedDevice, memory: Memory) -> None:
    source = memory.tensor().fill_(1)
    target = start_copy(device, source)
    event = device.record(device.current_stream())
    while not event.query():
        assert device.pending > 0
        complete_before = bool(torch.all(target == 1))
        device.step()
    assert complete_before


def test_an_event_on_an_idle_stream_is_done_at_once(device: SimulatedDevice) -> None:
    event = device.record(device.current_stream())
    device.advance(0.0)
    assert event.query()


def test_one_stream_keeps_its_order_whatever_the_delays(device: SimulatedDevice, memory: Memory) -> None:
    source = memory.tensor(0, PAGE).fill_(1)
    stream = device.current_stream()
    events: list[Event] = []
    for _ in range(50):
        start_copy(device, source, stream)
        events.append(device.record(stream))
    while device.step():
        done = [event.query() for event in events]
        assert done == sorted(done, reverse=True)


def test_a_busy_stream_does_not_hold_up_another(device: SimulatedDevice) -> None:
    slow, fast = device.new_stream(), device.new_stream()
    device.delay(slow, 10.0)
    slow_event, fast_event = device.record(slow), device.record(fast)
    device.advance(1.0)
    assert (slow_event.query(), fast_event.query()) == (False, True)
    device.advance(9.0)
    assert slow_event.query()


def test_the_same_seed_gives_the_same_schedule(memory: Memory) -> None:
    def schedule(seed: int) -> list[float]:
        device, times = SimulatedDevice(seed), []
        device.register(memory.address, memory.nbytes)
        for _ in range(5):
            start_copy(device, memory.tensor())
        while device.step():
            times.append(device.now)
        return times

    assert schedule(SEED) == schedule(SEED)
    assert schedule(SEED) != schedule(SEED + 1)


def test_used_streams_are_the_current_ones_of_the_devices_that_had_work() -> None:
    device = SimulatedDevice(SEED, gpus=3)
    side = device.new_stream(gpu=2)
    assert device.used_streams() == (device.current_stream(0),)
    device.record(side)
    assert device.used_streams() == (device.current_stream(0), device.current_stream(2))
    with device.stream(side):
        assert device.used_streams() == (device.current_stream("sim:0"), side)
        assert device.current_stream() is side
    assert device.current_stream() is device.current_stream(torch.device("cuda", 0))


def test_the_current_stream_is_each_thread_s_own(device: SimulatedDevice) -> None:
    seen: list[SimulatedStream] = []
    with device.stream(device.new_stream()):
        thread = threading.Thread(target=lambda: seen.append(device.current_stream()))
        thread.start()
        thread.join()
        assert seen[0] is not device.current_stream()


def test_running_in_a_thread_does_the_work_in_real_time(device: SimulatedDevice, memory: Memory) -> None:
    target = start_copy(device, memory.tensor().fill_(1))
    event = device.record(device.current_stream())
    with device.running():
        while not event.query():
            threading.Event().wait(0.001)
    assert torch.all(target == 1)


# ---- the driver's rules --------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "nbytes"), [(0, PAGE), (PAGE, PAGE), (4 * PAGE - 1, PAGE), (0, 4 * PAGE)])
def test_an_overlapping_range_is_refused(device: SimulatedDevice, memory: Memory, offset: int, nbytes: int) -> None:
    with pytest.raises(DeviceError) as error:
        device.register(memory.address + offset, nbytes)
    assert error.value.code == ERROR_ALREADY_REGISTERED


def test_two_ranges_in_one_page_are_refused(memory: Memory) -> None:
    device = SimulatedDevice(SEED)
    device.register(memory.address, 100)
    with pytest.raises(DeviceError, match="712"):
        device.register(memory.address + 2048, 100)


@pytest.mark.parametrize("nbytes", [0, 5 * PAGE])
def test_zero_bytes_and_too_many_are_refused(memory: Memory, nbytes: int) -> None:
    device = SimulatedDevice(SEED, register_bytes_max=4 * PAGE)
    with pytest.raises(DeviceError) as error:
        device.register(memory.address, nbytes)
    assert error.value.code == ERROR_INVALID_VALUE
    assert device.registered == {}


def test_unregistering_what_is_not_registered_is_refused(device: SimulatedDevice, memory: Memory) -> None:
    with pytest.raises(DeviceError) as error:
        device.unregister(memory.address + PAGE)
    assert error.value.code == ERROR_NOT_REGISTERED
    assert device.registered == {memory.address: memory.nbytes}


def test_an_error_that_nobody_drained_hits_the_next_call_on_a_stream(device: SimulatedDevice, memory: Memory) -> None:
    with pytest.raises(DeviceError):
        device.register(memory.address, PAGE)
    with pytest.raises(DeviceError, match="nobody drained") as error:
        device.record(device.current_stream())
    assert error.value.code == ERROR_ALREADY_REGISTERED


def test_a_drained_error_hits_nobody(device: SimulatedDevice, memory: Memory) -> None:
    with pytest.raises(DeviceError):
        device.register(memory.address, PAGE)
    assert device.drain_error() == ERROR_ALREADY_REGISTERED
    assert device.drain_error() == 0
    device.record(device.current_stream())


def test_an_error_waits_in_the_thread_that_caused_it(device: SimulatedDevice, memory: Memory) -> None:
    with pytest.raises(DeviceError):
        device.register(memory.address, PAGE)
    drained: list[int] = []
    thread = threading.Thread(target=lambda: drained.append(device.drain_error()))
    thread.start()
    thread.join()
    assert drained == [0]
    assert device.drain_error() == ERROR_ALREADY_REGISTERED


def test_a_copy_from_memory_that_is_pinned_only_in_part_is_refused(memory: Memory) -> None:
    device = SimulatedDevice(SEED)
    device.register(memory.address, 2 * PAGE)
    with pytest.raises(DeviceError, match="only a part"):
        start_copy(device, memory.tensor(PAGE, 2 * PAGE))
    device.register(memory.address + 2 * PAGE, 2 * PAGE)
    with pytest.raises(DeviceError, match="only a part"):
        start_copy(device, memory.tensor(PAGE, 2 * PAGE))


def test_unregistering_or_unmapping_under_a_copy_is_noted(memory: Memory) -> None:
    device = SimulatedDevice(SEED)
    device.register(memory.address, memory.nbytes)
    start_copy(device, memory.tensor())
    device.before_unmap(memory.address, memory.nbytes)
    assert [text.split()[0] for text in device.violations] == ["unmapped", "unmapped"]
    start_copy(device, memory.tensor())
    device.unregister(memory.address)
    assert device.violations[2].startswith("unregistered")


def test_a_fault_hits_the_call_that_was_named_and_no_other(device: SimulatedDevice) -> None:
    stream = device.current_stream()
    device.fail("record", 999, nth=2, times=2)
    event = device.record(stream)
    for _ in range(2):
        with pytest.raises(DeviceError, match="record: injected fault") as error:
            device.record(stream)
        assert error.value.code == 999
    device.record(stream)
    device.fail("query", 4)
    with pytest.raises(DeviceError):
        event.query()
    device.drain()
    assert event.query()


def test_every_call_can_be_made_to_fail(memory: Memory) -> None:
    device, tensor = SimulatedDevice(SEED), memory.tensor(0, PAGE)
    device.register(memory.address, PAGE)
    stream = device.current_stream()
    event = device.record(stream)
    calls: dict[str, Callable[[], object]] = {
        "register": lambda: device.register(memory.address + PAGE, PAGE),
        "drain_error": device.drain_error,
        "current_stream": device.current_stream,
        "used_streams": device.used_streams,
        "record": lambda: device.record(stream),
        "query": event.query,
        "empty_like": lambda: device.empty_like(tensor, 0, stream),
        "copy": lambda: device.copy(tensor, tensor.clone(), stream),
        "copy_back": lambda: device.copy_back(tensor.clone(), tensor, stream),
        "unregister": lambda: device.unregister(memory.address),
    }
    cannot_fail = {"unavailable", "stream_of"}  # one tells its reason, the other asks no driver
    assert Device.__abstractmethods__ <= calls.keys() | cannot_fail
    for name, call in calls.items():
        device.fail(name, 999)
        with pytest.raises(DeviceError, match=f"{name}: injected fault"):
            call()
        device.drain_error()
    for name, call in calls.items():
        call()
        assert device.calls[-1] == name


# ---- and a missing gate is seen ------------------------------------------------------------------


Gate = Callable[[SimulatedDevice, SimulatedStream], Event]


def at_the_copy_s_stream(device: SimulatedDevice, stream: SimulatedStream) -> Event:
    return device.record(stream)


def at_some_other_stream(device: SimulatedDevice, stream: SimulatedStream) -> Event:
    return device.record(device.new_stream())


def nowhere(device: SimulatedDevice, stream: SimulatedStream) -> Event:
    return AlwaysDone()


class AlwaysDone:
    def query(self) -> bool:
        return True


def corrupted_copies(seed: int, gate: Gate, rounds: int = 30) -> int:
    """A writer fills a slot whose gate is open, a reader copies it to the device; how many copies are wrong?"""
    choices = random.Random(seed)
    device, memory = SimulatedDevice(seed), Memory(2)
    device.register(memory.address, memory.nbytes)
    streams = [device.new_stream(), device.new_stream()]
    gates: list[Event] = [AlwaysDone(), AlwaysDone()]
    copies: list[tuple[int, torch.Tensor]] = []
    value = 0
    while value < rounds:
        device.advance(choices.uniform(0.0, 0.01))
        slot = choices.randrange(2)
        if gates[slot].query():
            value += 1
            source = memory.tensor(slot * PAGE, PAGE).fill_(value)
            stream = choices.choice(streams)
            copies.append((value, start_copy(device, source, stream)))
            gates[slot] = gate(device, stream)
    device.drain()
    return sum(not bool(torch.all(target == expected)) for expected, target in copies)


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_a_gate_on_the_copy_s_stream_keeps_every_byte(seed: int) -> None:
    assert corrupted_copies(seed, at_the_copy_s_stream) == 0


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
@pytest.mark.parametrize("gate", [nowhere, at_some_other_stream])
def test_without_the_right_gate_bytes_are_corrupted(seed: int, gate: Gate) -> None:
    assert corrupted_copies(seed, gate) > 0
