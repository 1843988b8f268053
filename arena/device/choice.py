"""Which device a reader pins its memory for."""

from __future__ import annotations

import torch

from arena.config import Pin, ReaderAccess
from arena.device.interface import Device


def choose(
    pin: Pin, reader_access: ReaderAccess, data_bytes: int, device: Device | None
) -> tuple[Device | None, str | None]:
    """The device that a reader pins for, or why none.

    Nothing of CUDA is touched in a process that has not initialised it: such a process has the device, and the device says
    that it is not there yet.
    """
    if not data_bytes:
        return None, "the queue has no arena"
    if pin == "off":
        return None, 'pin="off"'
    if reader_access == "private":  # a pinned private page is a copy that the writer's bytes never reach
        return None, 'reader_access="private" cannot be pinned'
    if device is not None:
        return device, None
    if torch.version.cuda is None and torch.version.hip is None:
        return None, "this build of torch knows no device"
    from arena.device.cuda import CudaDevice

    return CudaDevice(), None
