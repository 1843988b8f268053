"""Pinnings of a small mapping, and a device whose driver can be made to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

from device_support import PAGE, SEED, Memory

from arena.config import Pin
from arena.device.pinning import Pinning
from arena.device.simulated import SimulatedDevice

ROWS = 8
"""Pages of the mapping under test; a chunk is two of them."""


def make(
    device: SimulatedDevice,
    memory: Memory,
    pin: Pin = "auto",
    *,
    read_only: bool = False,
    populate: Callable[[int, int], None] | None = None,
) -> Pinning:
    return Pinning(
        device,
        memory.address,
        memory.nbytes,
        pin=pin,
        row_bytes=PAGE,
        chunk_bytes=2 * PAGE,
        read_only=read_only,
        populate=populate,
    )


def join_thread(pinning: Pinning) -> None:
    thread = pinning._thread
    assert thread is not None
    thread.join()


class Stalled(SimulatedDevice):
    """Its register waits until another Python thread lets it go on: for ever, if that thread were held up."""

    def __init__(self) -> None:
        super().__init__(SEED)
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        self.reached.set()
        self.go_on.wait()
        super().register(address, nbytes, read_only=read_only)
