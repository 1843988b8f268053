"""A signal handler's exception, at each place of a look at the gates and of a copy: no slot is lost, none goes early."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from cut_support import interrupted_at
from gates_support import Device
from pinned_support import PAGE, busy, message, pinned_queue, receive

from arena import MessageQueue

HELD_UP_S = 1000.0


def hold_up(device: Device) -> None:
    """Nothing is done before the device is told to finish."""
    for stream in (*device.sides, device.current_stream()):
        device.delay(stream, HELD_UP_S)


def dropped(writer: MessageQueue, reader: MessageQueue, device: Device, number: int) -> list[tuple[int, Any]]:
    """Drops two pinned tensors under copies: in a side stream, and in one that was current when the second one came."""
    hold_up(device)
    first: Any = receive(writer, reader, number, 2 * PAGE)
    copies = [(number, reader.to_device(first, "sim:0", stream=device.sides[0]))]
    with device.stream(device.sides[1]):
        second: Any = receive(writer, reader, number + 1, 2 * PAGE)
    copies.append((number + 1, torch.empty_like(second)))
    device.copy(second, copies[1][1], device.sides[1])
    return copies


def come_back(writer: MessageQueue, reader: MessageQueue, device: Device, copies: list[tuple[int, Any]]) -> None:
    """All slots stay until the device is done, and then all come back."""
    assert reader.flush_releases() == len(copies) == busy(writer)
    device.drain()
    assert reader.flush_releases() == 0 == busy(writer)
    for number, copied in copies:
        assert torch.equal(copied, message(number, 2 * PAGE)), number


def test_a_look_that_is_cut_short_is_gone_on_with_by_the_next() -> None:
    with pinned_queue() as (writer, reader, device):
        for place in count():
            copies = dropped(writer, reader, device, place % 100)
            reached = interrupted_at(place, reader.flush_releases)
            come_back(writer, reader, device, copies)
            if not reached:
                break
        assert place > 100


def all_come_back(writer: MessageQueue, reader: MessageQueue, device: Device, place: int) -> None:
    device.drain()
    assert reader.flush_releases() == 0 == busy(writer), place


def test_a_release_that_is_cut_short_is_gone_on_with_by_the_next() -> None:
    with pinned_queue() as (writer, reader, device):
        for place in count():
            copies = dropped(writer, reader, device, place % 100)
            reader.flush_releases()
            device.drain()
            reached = interrupted_at(place, reader.flush_releases)
            reader.flush_releases()
            all_come_back(writer, reader, device, place)
            if not reached:
                break
        assert place > 50
        assert len(copies) == 2


def test_what_a_copy_that_is_cut_short_had_issued_is_waited_for() -> None:
    with pinned_queue() as (writer, reader, device):
        for place in count():
            hold_up(device)
            tensor = receive(writer, reader, place % 100, 2 * PAGE)
            before = device.pending
            reached = interrupted_at(place, lambda held=tensor: reader.to_device(held, "sim:0", stream=device.sides[0]))  # type: ignore[misc]
            is_issued = device.pending > before
            del tensor
            reader.flush_releases()
            assert busy(writer) == 1
            while is_issued and any(work.host for work in device._work):
                assert busy(writer) == 1, place
                device.step()
                reader.flush_releases()
            all_come_back(writer, reader, device, place)
            if not reached:
                break
        assert place > 50
