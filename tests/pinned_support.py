"""A writer and a reader whose memory is pinned by a simulated device, both in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gates_support import Device, gates_of, let_go
from support import SMALL, WATCHDOG_S

from arena import ArenaConfig, MessageQueue

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
