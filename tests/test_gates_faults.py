"""Each call of the device fails, each time that it is made in the life of a tensor: no slot goes early, none in silence."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import torch
from gates_support import Device
from pinned_support import busy, message, pinned_queue, receive

from arena import MessageQueue
from arena.errors import DeviceError

CALLS = ("register", "drain_error", "current_stream", "used_streams", "record", "query", "empty_like", "copy")
A_COPY_TELLS = ("drain_error", "current_stream", "empty_like", "copy")
"""An error that cannot be drained is told to the next copy."""

COPIES = (None, 0)
"""Streams: the current one, and the first at the side."""


def live(writer: MessageQueue, reader: MessageQueue, device: Device) -> list[Any]:
    """A tensor comes, is copied to the device twice, and goes; its slot stays for as long as the device reads it."""
    device.delay(device.sides[0], 1.0)  # so that the current stream is done first
    tensor: Any = receive(writer, reader)
    copied = []
    for side in COPIES:
        with suppress(DeviceError):
            copied.append(reader.to_device(tensor, "sim:0", stream=None if side is None else device.sides[side]))
    del tensor
    reader.flush_releases()
    while any(work.host for work in device._work):
        assert busy(writer) == 1
        device.step()
        reader.flush_releases()
    device.drain()
    reader.flush_releases()
    return copied


@pytest.mark.parametrize("call", CALLS)
def test_one_call_fails(call: str) -> None:
    kept = 0
    for nth in count(1):
        with pinned_queue() as (writer, reader, device):
            device.fail("register", 2 if call == "drain_error" else 0)  # only an error is drained
            device.fail(call, 700, nth=nth)
            copied = live(writer, reader, device)
            is_reached = not any(device._faults[call])
            quarantined = reader.statistics().quarantined
            assert busy(writer) == quarantined
            assert len(copied) == len(COPIES) - (is_reached and call in A_COPY_TELLS)
            assert all(torch.equal(each, message()) for each in copied)
            device._faults.clear()
            assert len(live_on(writer, reader, device)) == len(COPIES)
            assert busy(writer) == quarantined
        kept += quarantined
        if not is_reached:
            break
    assert nth > 1
    assert (kept > 0) is (call in ("used_streams", "record", "query"))


def live_on(writer: MessageQueue, reader: MessageQueue, device: Device) -> list[Any]:
    """Whatever has happened to an earlier tensor, the next one lives as any."""
    tensor: Any = receive(writer, reader, 1)
    copied = [reader.to_device(tensor, "sim:0") for _ in COPIES]
    del tensor
    reader.flush_releases()
    device.drain()
    reader.flush_releases()
    assert all(torch.equal(each, message(1)) for each in copied)
    return copied
