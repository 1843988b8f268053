"""What the tests and the measurements on a GPU share."""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from arena import ArenaConfig, MessageQueue
from arena.device.cuda import CudaDevice

MIB = 1 << 20
GPU = "cuda:0"
SLEEP_CYCLES = 2_000_000_000
"""A kernel of about a second: long enough for what must be seen while it runs."""

WAIT_S = 60.0

N_GPUS = torch.cuda.device_count()
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(N_GPUS == 0, reason="no CUDA or ROCm device on this machine")]
needs_two_gpus = pytest.mark.skipif(N_GPUS < 2, reason=f"needs two devices, this machine has {N_GPUS}")


def initialised_device() -> CudaDevice:
    """The device of a process that uses its GPU."""
    torch.zeros(1, device=GPU)
    torch.cuda.synchronize()
    device = CudaDevice()
    reason = device.unavailable()
    if reason is not None:
        raise RuntimeError(reason)
    return device


def hold_up(stream: torch.cuda.Stream, seconds: int = 1) -> None:
    """Keep a stream busy."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(seconds * SLEEP_CYCLES)


def is_all(tensor: torch.Tensor, value: int) -> bool:
    """Whether every element has a value.  Not written out in an assertion, where a failure would print them one by one."""
    return bool(torch.all(tensor == value))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come; how long it takes is no matter."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")
        time.sleep(0.001)


def wait_for_death(pid_fd: int) -> None:
    """Wait until a process is certainly gone."""
    poll = select.poll()
    poll.register(pid_fd, select.POLLIN)
    if not poll.poll(WAIT_S * 1000):
        raise TimeoutError("the process did not end")


Reader = Callable[[MessageQueue, Connection], None]


def _run_reader(handle: Any, rank: int, reader: Reader, pipe: Connection) -> None:
    torch.zeros(1, device=GPU)  # a process pins only if it uses the device
    queue = MessageQueue.create_from_handle(handle, rank)
    queue.wait_until_ready(WAIT_S)
    try:
        reader(queue, pipe)
    finally:
        queue.shutdown()


@contextmanager
def readers(programs: Sequence[Reader], arena: ArenaConfig | None) -> Iterator[tuple[MessageQueue, list[Any]]]:
    """A writer, and a spawned reader per program; yields the queue, and each reader's process and end of a pipe."""
    spawn = multiprocessing.get_context("spawn")
    queue = MessageQueue(len(programs), len(programs), arena=arena)
    children = []
    try:
        for rank, program in enumerate(programs):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_run_reader, args=(queue.export_handle(), rank, program, there), daemon=True)
            process.start()
            there.close()
            children.append((process, here))
        queue.wait_until_ready(WAIT_S)
        yield queue, children
    finally:
        queue.shutdown()
        for _, pipe in children:
            pipe.close()  # ends a reader that still waits to be told something
        for process, _ in children:
            process.join(WAIT_S)
            if process.is_alive():
                process.kill()
                process.join()


def answer(pipe: Connection) -> Any:
    """The next object that the other end sends."""
    if not pipe.poll(WAIT_S):
        raise TimeoutError(f"process {os.getpid()}: no answer within {WAIT_S:.0f} s")
    return pipe.recv()
