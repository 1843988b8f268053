"""The device of a demo's worker: copies go there, the host's tensors are let go, and the copies are verified."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch

from arena.device.interface import Device

NAMES = ("sim", "cuda")
SETTLE_MAX_S = 30.0


class WorkerDevice:
    """What one worker process copies to: a GPU, or a DMA engine in software that reads memory late.

    Args:
        name: one of `NAMES`.
        rank: the worker's; it chooses among the machine's GPUs.
    """

    def __init__(self, name: str, rank: int) -> None:
        self._stack = ExitStack()
        self.device: Device
        if name == "cuda":
            from arena.device.cuda import CudaDevice

            self.where = f"cuda:{rank % torch.cuda.device_count()}"
            torch.zeros(1, device=self.where)  # a process pins only if it uses its device itself
            self.device = CudaDevice()
        else:
            from arena.device.simulated import SimulatedDevice

            self.where = "sim:0"
            simulated = SimulatedDevice(os.getpid())
            self._stack.enter_context(simulated.running())
            self.device = simulated

    def finish(self) -> None:
        """Until every copy is done: only then may one be looked at."""
        wait_until_true(self.device.record(self.device.current_stream(self.where)).query)

    def close(self) -> None:
        """Stop the clock of the simulated one."""
        self._stack.close()


def why_not(name: str) -> str | None:
    """Why this machine cannot run workers with that device; None if it can."""
    if name == "cuda" and not torch.cuda.is_available():
        build = "" if torch.version.cuda or torch.version.hip else ", and this build of torch knows none"
        return f"--device=cuda: there is no CUDA or ROCm device here{build}; --device=sim needs none"
    return None


def wait_until_true(condition: Callable[[], bool]) -> None:
    """Looks again and again; raises TimeoutError in the end."""
    deadline = time.monotonic() + SETTLE_MAX_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the device is not done within {SETTLE_MAX_S} s")
        time.sleep(0.001)
