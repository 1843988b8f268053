"""The driver does not pin, or there are no pages: the memory stays usable, and the reason is told (cases 67, 68)."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from device_support import PAGE, SEED, Memory
from pinning_support import ROWS, join_thread, make

from arena.config import Pin
from arena.device.interface import ERROR_NOT_REGISTERED, ERROR_OUT_OF_MEMORY
from arena.device.pinning import WARN_EVERY_S
from arena.device.simulated import SimulatedDevice
from arena.errors import CapacityError, DeviceError


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_when_one_chunk_fails_the_earlier_ones_are_given_back(
    device: SimulatedDevice, memory: Memory, caplog: pytest.LogCaptureFixture, nth: int
) -> None:
    device.fail("register", ERROR_OUT_OF_MEMORY, nth=nth)
    pinning = make(device, memory, "eager")
    pinning.start()
    assert device.registered == {}
    assert pinning.pinned_addresses == ()
    assert not pinning.needs_gate(0, memory.nbytes)
    assert "injected fault" in str(pinning.reason_unpinned)
    assert [record.name for record in caplog.records] == ["arena.device"]
    memory.tensor().fill_(7)  # as usable as before


def test_a_region_that_the_driver_finds_too_large_stays_pageable(memory: Memory) -> None:
    device = SimulatedDevice(SEED, register_bytes_max=2 * PAGE - 1)
    pinning = make(device, memory, "eager")
    pinning.start()
    assert (device.registered, pinning.is_pinned(0, PAGE)) == ({}, False)


def test_a_range_is_pinned_whole_or_not_at_all(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    device.fail("register", ERROR_OUT_OF_MEMORY, nth=2)
    assert not pinning.ensure(PAGE, 2 * PAGE)
    assert device.registered == {}


@pytest.mark.parametrize("pin", ["auto", "background"])
def test_what_is_in_use_stays_pinned_when_a_later_chunk_fails(device: SimulatedDevice, memory: Memory, pin: Pin) -> None:
    device.fail("register", ERROR_OUT_OF_MEMORY, nth=2)
    pinning = make(device, memory, pin)
    pinning.start()
    pinning.ensure(0, PAGE)
    pinning.ensure(2 * PAGE, PAGE)
    if pin == "background":
        join_thread(pinning)
    assert pinning.is_pinned(0, 2 * PAGE)
    assert list(device.registered) == [memory.address]
    assert pinning.unpin()
    assert device.registered == {}


def test_a_failed_register_leaves_no_error_for_others(device: SimulatedDevice, memory: Memory) -> None:
    device.fail("register", ERROR_OUT_OF_MEMORY)
    make(device, memory).ensure(0, PAGE)
    assert device.calls == ["register", "drain_error"]
    device.record(device.current_stream())  # raises if the error were still there


def test_a_failed_unregister_leaves_no_error_for_others(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    pinning.ensure(0, PAGE)
    device.fail("unregister", ERROR_OUT_OF_MEMORY)
    pinning.unpin()
    assert device.calls == ["register", "unregister", "drain_error"]
    device.record(device.current_stream())


def test_after_success_the_error_of_others_is_not_drained(device: SimulatedDevice, memory: Memory) -> None:
    with pytest.raises(DeviceError):
        device.unregister(1)
    pinning = make(device, memory)
    assert pinning.ensure(0, PAGE)
    assert pinning.unpin()
    assert device.drain_error() == ERROR_NOT_REGISTERED


def test_a_driver_that_cannot_even_be_drained_is_only_a_driver_that_does_not_pin(
    device: SimulatedDevice, memory: Memory
) -> None:
    device.fail("register", ERROR_OUT_OF_MEMORY)
    device.fail("drain_error", 4)
    assert not make(device, memory).ensure(0, PAGE)


def test_after_a_failure_the_driver_is_not_asked_again(device: SimulatedDevice, memory: Memory) -> None:
    device.fail("register", ERROR_OUT_OF_MEMORY)
    pinning = make(device, memory)
    assert [pinning.ensure(page * PAGE, PAGE) for page in range(ROWS)] == [False] * ROWS
    assert device.calls.count("register") == 1


@pytest.mark.parametrize("error", [CapacityError("no pages"), OSError(12, "no memory"), MemoryError("no memory")])
def test_a_shortage_of_pages_leaves_the_memory_unpinned(device: SimulatedDevice, memory: Memory, error: Exception) -> None:
    def populate(offset: int, nbytes: int) -> None:
        raise error

    pinning = make(device, memory, populate=populate)
    assert not pinning.ensure(0, PAGE)
    assert device.calls == []
    assert pinning.reason_unpinned == str(error)


def test_the_same_trouble_of_many_mappings_is_reported_once(
    device: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    device.fail("register", ERROR_OUT_OF_MEMORY, times=20)
    memories = [Memory(ROWS) for _ in range(20)]
    for memory in memories:
        make(device, memory).ensure(0, PAGE)
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING


def test_other_trouble_and_later_trouble_are_reported_again(
    device: SimulatedDevice, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in (ERROR_OUT_OF_MEMORY, 999):
        device.fail("register", code)
        make(device, Memory(ROWS)).ensure(0, PAGE)
    assert len(caplog.records) == 2
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + WARN_EVERY_S)
    device.fail("register", 999)
    make(device, Memory(ROWS)).ensure(0, PAGE)
    assert len(caplog.records) == 3


def test_without_threads_nothing_is_pinned_in_the_background(
    device: SimulatedDevice, memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pinning = make(device, memory, "background")
    pinning.start()
    assert not pinning.ensure(0, PAGE)
    assert pinning.reason_unpinned == "can't start new thread"
    assert len(caplog.records) == 1
    assert pinning.unpin()
    assert device.calls == []
