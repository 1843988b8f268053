"""Pinning and events on a real device: what the simulated one claims, held against the driver."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch
from gpu_support import (
    GPU,
    MIB,
    N_GPUS,
    answer,
    hold_up,
    initialised_device,
    is_all,
    needs_gpu,
    needs_two_gpus,
    wait_until,
)

from arena.device.cuda import CudaDevice
from arena.device.interface import ERROR_ALREADY_REGISTERED, ERROR_NOT_REGISTERED, Event
from arena.device.pinning import Pinning
from arena.errors import DeviceBusy, DeviceError

pytestmark = needs_gpu
SIZE = 64 * MIB
CHUNK = 16 * MIB


@pytest.fixture
def device() -> CudaDevice:
    return initialised_device()


@pytest.fixture
def memory() -> torch.Tensor:
    """Shared pages, as a segment has them."""
    pages = mmap.mmap(-1, SIZE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8)


@pytest.fixture
def pinning(device: CudaDevice, memory: torch.Tensor) -> Iterator[Pinning]:
    pinning = Pinning(device, memory.data_ptr(), SIZE, chunk_bytes=CHUNK)
    yield pinning
    torch.cuda.synchronize()
    assert pinning.unpin()


def test_the_driver_agrees_on_what_is_pinned(pinning: Pinning, memory: torch.Tensor) -> None:
    assert pinning.ensure(CHUNK, CHUNK)
    assert memory[CHUNK : 2 * CHUNK].is_pinned()
    assert not memory[:CHUNK].is_pinned()
    assert not memory[2 * CHUNK :].is_pinned()
    assert pinning.unpin()
    assert not memory[CHUNK : 2 * CHUNK].is_pinned()


def test_a_refused_registration_has_the_known_code_and_harms_nothing(
    device: CudaDevice, pinning: Pinning, memory: torch.Tensor
) -> None:
    assert pinning.ensure(0, CHUNK)
    with pytest.raises(DeviceError) as error:
        device.register(memory.data_ptr(), CHUNK)
    assert error.value.code == ERROR_ALREADY_REGISTERED
    assert device.drain_error() == ERROR_ALREADY_REGISTERED
    assert device.drain_error() == 0
    assert torch.ones(10, device=GPU).sum().item() == 10


def test_an_unknown_range_has_the_known_code(device: CudaDevice, memory: torch.Tensor) -> None:
    with pytest.raises(DeviceError) as error:
        device.unregister(memory.data_ptr())
    assert error.value.code == ERROR_NOT_REGISTERED
    device.drain_error()


def test_a_pinning_that_fails_leaves_torch_without_an_error(device: CudaDevice, memory: torch.Tensor) -> None:
    first = Pinning(device, memory.data_ptr(), SIZE)
    second = Pinning(device, memory.data_ptr(), SIZE)
    assert first.ensure(0, SIZE)
    assert not second.ensure(0, SIZE)
    assert "712" in str(second.reason_unpinned)
    assert (torch.ones(10, device=GPU) * 2).sum().item() == 20  # a launch checks the last error
    assert first.unpin()


def test_fifty_times_pinned_and_unpinned(device: CudaDevice, memory: torch.Tensor) -> None:
    for _ in range(50):
        pinning = Pinning(device, memory.data_ptr(), CHUNK)
        assert pinning.ensure(0, CHUNK)
        assert pinning.unpin()


def held_up_copy(device: CudaDevice, source: torch.Tensor) -> tuple[torch.Tensor, Event]:
    """A copy that waits in a busy stream, and the event behind it."""
    stream = torch.cuda.Stream(GPU)
    target = device.empty_like(source, GPU, stream)
    hold_up(stream)
    device.copy(source, target, stream)
    event = device.record(stream)
    assert not event.query()
    return target, event


def test_a_copy_from_pinned_memory_reads_it_later(device: CudaDevice, pinning: Pinning, memory: torch.Tensor) -> None:
    """Why gates are needed at all: what is overwritten while the stream is busy is what arrives."""
    assert pinning.ensure(0, CHUNK)
    source = memory[:CHUNK].fill_(1)
    target, event = held_up_copy(device, source)
    source.fill_(2)
    wait_until(event.query, "the copy")
    assert is_all(target, 2)


@pytest.mark.parametrize("nbytes", [1000, SIZE])
def test_a_copy_from_pageable_memory_has_read_it_when_the_call_returns(
    device: CudaDevice, memory: torch.Tensor, nbytes: int
) -> None:
    """Why memory that is not pinned needs no gate."""
    source, stream = memory[:nbytes].fill_(1), torch.cuda.Stream(GPU)
    target = device.empty_like(source, GPU, stream)
    hold_up(stream)
    device.copy(source, target, stream)
    source.fill_(2)
    wait_until(device.record(stream).query, "the copy")
    assert is_all(target, 1)


def test_an_event_is_done_when_the_copy_is(device: CudaDevice, pinning: Pinning, memory: torch.Tensor) -> None:
    assert pinning.ensure(0, CHUNK)
    source = memory[:CHUNK].fill_(3)
    target, event = held_up_copy(device, source)
    wait_until(event.query, "the copy")
    source.fill_(4)
    assert is_all(target, 3)


def test_a_busy_side_stream_does_not_hold_up_another_s_event(device: CudaDevice) -> None:
    slow, fast = torch.cuda.Stream(GPU), torch.cuda.Stream(GPU)
    hold_up(slow, seconds=2)
    slow_event, fast_event = device.record(slow), device.record(fast)
    wait_until(fast_event.query, "the event of the idle stream")
    assert not slow_event.query()
    wait_until(slow_event.query, "the event of the busy stream")


def test_used_streams_are_the_current_ones(device: CudaDevice) -> None:
    side = torch.cuda.Stream(GPU)
    assert torch.cuda.current_stream(GPU) in device.used_streams()
    with torch.cuda.stream(side):
        assert side in device.used_streams()


def test_events_and_registrations_in_other_threads_do_not_break_a_capture(device: CudaDevice, pinning: Pinning) -> None:
    early = device.record(torch.cuda.current_stream(GPU))
    torch.cuda.synchronize()
    answers: list[bool] = []

    def disturb() -> None:
        answers.append(early.query())
        answers.append(pinning.ensure(0, CHUNK))

    x, graph = torch.ones(10, device=GPU), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 2
        thread = threading.Thread(target=disturb)
        thread.start()
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert answers == [True, True]
    assert is_all(y, 2)


def test_a_stream_under_capture_is_busy_and_the_capture_survives_the_question(device: CudaDevice) -> None:
    x, graph = torch.ones(10, device=GPU), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 3
        with pytest.raises(DeviceBusy):
            device.record(torch.cuda.current_stream(GPU))
    graph.replay()
    torch.cuda.synchronize()
    assert is_all(y, 3)


def test_other_python_threads_run_while_the_driver_registers(device: CudaDevice) -> None:
    size = 2048 * MIB
    pages = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    pinning, ticks, stop = Pinning(device, address, size, pin="eager"), 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    pinning.start()
    seen = ticks
    stop.set()
    thread.join()
    assert pinning.is_pinned(0, size)
    assert pinning.unpin()
    assert seen >= 10


def contexts() -> list[bool]:
    """Which devices this process has a context on."""
    return [torch._C._cuda_hasPrimaryContext(index) for index in range(N_GPUS)]


def use_the_last_device_in_threads(pipe: Connection) -> None:
    """A process that uses one device only, and what two of its threads do there; sends its contexts before and after."""
    where = torch.device("cuda", N_GPUS - 1)
    memory = torch.frombuffer(mmap.mmap(-1, SIZE), dtype=torch.uint8)
    device, stream = CudaDevice(), torch.cuda.Stream(where)
    torch.zeros(1, device=where)
    before = contexts()
    pinning = Pinning(device, memory.data_ptr(), SIZE, pin="background", chunk_bytes=CHUNK)
    pinning.start()
    wait_until(lambda: pinning.is_pinned(0, SIZE), "the background thread")

    def copy() -> None:
        target = device.empty_like(memory, where, stream)
        device.copy(memory, target, stream)
        wait_until(device.record(stream).query, "the copy")

    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()
    pinning.unpin()
    pipe.send((before, contexts()))


@needs_two_gpus
def test_pinning_and_copies_in_threads_make_no_context_on_another_device() -> None:
    """A new thread's current device is number 0, whichever one the process uses."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=use_the_last_device_in_threads, args=(there,))
    process.start()
    there.close()
    try:
        before, after = answer(here)
    finally:
        here.close()
        process.join()
    assert before == after == [index == N_GPUS - 1 for index in range(N_GPUS)]
