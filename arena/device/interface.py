"""What the arena asks of a device, and nothing more.

Two implementations: ``cuda.CudaDevice`` (CUDA and ROCm, through torch) and ``simulated.SimulatedDevice`` (a DMA
engine in software, which reads memory late, so that a slot that is given back too early shows as wrong bytes).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, TypeAlias

import torch

Stream: TypeAlias = Any
"""A queue of work on a device; what it is, its device alone knows."""

ERROR_INVALID_VALUE = 1
ERROR_OUT_OF_MEMORY = 2
ERROR_ALREADY_REGISTERED = 712
ERROR_NOT_REGISTERED = 713


class Event(Protocol):
    """A mark in a stream."""

    def query(self) -> bool:
        """True once all work before the mark is done.  Never waits.

        Raises:
            DeviceError: the device cannot tell: its context is gone, or the work failed.
        """
        ...


class Device(ABC):
    """One process's view of its devices.  All methods may be called from any thread, and all but `unavailable` raise
    ``DeviceError`` where the driver refuses or cannot tell.

    A driver keeps the code of a failed call until somebody asks for it, and the next call that asks may be somebody
    else's.  So whoever catches a ``DeviceError`` of `register` or `unregister` calls `drain_error` on the same object.
    """

    name: str

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why this process cannot use the device now; None if it can.  Initialises nothing."""

    @abstractmethod
    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        """Pin a range of memory.  Other Python threads run meanwhile.

        Raises:
            DeviceError: the driver refused; nothing is pinned.
        """

    @abstractmethod
    def unregister(self, address: int) -> None:
        """Undo the `register` that began at ``address``; must come before the memory is unmapped.

        Raises:
            DeviceError: the driver refused; the range is as before.
        """

    @abstractmethod
    def drain_error(self) -> int:
        """Return the driver's last error code and clear it; 0 if there was none."""

    @abstractmethod
    def current_stream(self, where: torch.device | str | int | None = None) -> Stream:
        """The stream that this thread's work goes to, on one device (by default the thread's current one)."""

    @abstractmethod
    def stream_of(self, given: object) -> Stream:
        """A caller's stream, as this device has it.

        Raises:
            ValueError: it is none of this device's.
        """

    @abstractmethod
    def used_streams(self) -> tuple[Stream, ...]:
        """The current stream of every device that this process has used."""

    @abstractmethod
    def record(self, stream: Stream) -> Event:
        """Put a mark at the end of a stream.

        Raises:
            DeviceBusy: the stream is being captured into a graph: a mark would become part of it.
            DeviceError: the device cannot.
        """

    @abstractmethod
    def empty_like(self, source: torch.Tensor, where: torch.device | str | int, stream: Stream) -> torch.Tensor:
        """New device memory of ``source``'s shape and dtype, safe to write from ``stream``.

        Raises:
            ValueError: the stream is another device's: a copy would go another way than the events that are to follow it.
        """

    @abstractmethod
    def copy(self, source: torch.Tensor, target: torch.Tensor, stream: Stream, *, non_blocking: bool = True) -> None:
        """Queue a copy from host memory to the device.  Pinned memory is read later: until an event that is recorded
        after this call has completed, it must not change."""
