"""Who waits for a drop of a gated grant is woken by it. Nothing is timed: a sleep that does not end is a test that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from arena.device.simulated import SimulatedDevice
from arena.message.gates import Gates
from arena.protocol.slots import SlotReader, SlotWriter
from arena.shm.layout import PAGE, Layout
from arena.shm.native import ffi, lib

FOREVER_US = 3600 * 10**6


@pytest.fixture
def layout() -> Layout:
    return Layout(1, 3, PAGE, 4 * PAGE)


@pytest.fixture
def gates(segment: Any) -> Iterator[Gates]:
    device = SimulatedDevice(0)
    with closing(Gates(segment, 0, device)) as made:
        yield made
        made.poll()  # marks the streams
        device.drain()


def gated(segment: Any, gates: Gates) -> Any:
    """A reader's only hold of a slot."""
    writer = SlotWriter(segment)
    slot = writer.claim(PAGE)
    assert isinstance(slot, int)
    writer.copy(slot, ffi.from_buffer(bytes(PAGE)), 1)
    writer.publish([slot], 0b1)
    writer.enqueue([slot], 0)
    lease = SlotReader(segment, 0).lease(writer.grant(slot))
    gates.admit([lease])
    assert gates._is_active
    return lease


def test_a_drop_before_the_wait_ends_it(segment: Any, gates: Gates) -> None:
    gated(segment, gates).drop()
    lib.arena_gates_wait(gates._native, FOREVER_US)


def test_a_drop_ends_the_wait(segment: Any, gates: Gates) -> None:
    """Also if it comes before the other thread sleeps, which the short pause makes unlikely."""
    lease = gated(segment, gates)
    waiter = threading.Thread(target=lib.arena_gates_wait, args=(gates._native, FOREVER_US), daemon=True)
    waiter.start()
    time.sleep(0.05)
    lease.drop()
    waiter.join()
