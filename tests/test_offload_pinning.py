"""A region and its device: whole rows, all or nothing, and nothing registered when it is unmapped."""

from __future__ import annotations

import gc
import logging
import os
import uuid
from typing import Any

import pytest

from arena.device import pinning
from arena.device.simulated import SimulatedDevice
from arena.errors import ForkedError
from arena.offload import SharedOffloadRegion
from arena.ratelimit import RateLimit
from arena.shm.native import lib

PAGE = 4096
ROW = 3 * PAGE


def region(device: Any, pin: Any = "eager", rows: int = 8, **options: Any) -> SharedOffloadRegion:
    return SharedOffloadRegion(f"test-{uuid.uuid4().hex[:12]}", rows, 0, ROW, PAGE, pin=pin, device=device, **options)


@pytest.mark.parametrize("pin", ["eager", "auto"])
def test_the_whole_region_is_pinned_at_construction(pin: str) -> None:
    device = SimulatedDevice()
    with region(device, pin) as mine:
        assert mine.is_pinned
        assert mine.pinned_addresses == ((mine.base_tensor.data_ptr(), 8 * ROW),)
    assert not mine.is_pinned
    assert device.violations == []


def test_off_pins_nothing_until_it_is_asked_for() -> None:
    device = SimulatedDevice()
    with region(device, "off") as mine:
        assert not mine.is_pinned
        assert mine.pinned_addresses == ()
        assert mine.pin_memory(device)
        assert mine.is_pinned
        assert mine.pin_memory(device), "again is the same"
        assert device.calls.count("register") == 1


def test_a_large_region_is_pinned_in_chunks_of_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 67, at the scale of a test: a driver takes only so much at once."""
    monkeypatch.setattr("arena.offload_held.REGISTER_BYTES_MAX", 3 * ROW + 100)
    with region(SimulatedDevice(register_bytes_max=3 * ROW)) as mine:
        start = mine.base_tensor.data_ptr()
        assert mine.pinned_addresses == ((start, 3 * ROW), (start + 3 * ROW, 3 * ROW), (start + 6 * ROW, 2 * ROW))


def test_a_refusal_undoes_what_was_pinned_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Cases 67 and 68."""
    monkeypatch.setattr(pinning, "_warnings", RateLimit(60.0))
    monkeypatch.setattr("arena.offload_held.REGISTER_BYTES_MAX", 3 * ROW)
    device = SimulatedDevice()
    register, count = device.register, 0

    def refuse_the_third(address: int, nbytes: int, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            device.calls.append("register")
            raise pinning.DeviceError("refused", 2)
        register(address, nbytes, **options)

    monkeypatch.setattr(device, "register", refuse_the_third)
    with caplog.at_level(logging.WARNING), region(device) as mine:
        assert not mine.is_pinned
        assert mine.pinned_addresses == ()
        assert device.calls.count("unregister") == 2
        assert "drain_error" in device.calls
        assert len(caplog.records) == 1
        mine.create_next_worker_view(PAGE).fill_(1)  # pageable, and as usable as before
        assert mine.pin_memory(device), "a later attempt may succeed"


@pytest.mark.parametrize("end", ["cleanup", "drop", "a view stays"])
def test_nothing_is_registered_when_the_memory_is_unmapped(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 69."""
    device = SimulatedDevice()
    mapped_at_unregister: list[int] = []
    unregister = device.unregister

    def watch(address: int) -> None:
        mapped_at_unregister.append(lib.arena_maps_live())
        unregister(address)

    monkeypatch.setattr(device, "unregister", watch)
    before = lib.arena_maps_live()
    for _ in range(10):
        mine = region(device)
        view = mine.create_next_worker_view(10) if end == "a view stays" else None
        if end != "drop":
            mine.cleanup()
        del mine
        gc.collect()
        del view
        gc.collect()
        assert lib.arena_maps_live() == before
    assert mapped_at_unregister == [before + 1] * 10
    assert device.violations == []


def test_memory_that_the_driver_keeps_stays_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take a later mapping at that address for this one."""
    device = SimulatedDevice()
    mine = region(device)
    unregister = device.unregister

    def refuse(address: int) -> None:
        raise pinning.DeviceError("refused", 1)

    monkeypatch.setattr(device, "unregister", refuse)
    mapping, address = mine._use().member.mapping, mine.base_tensor.data_ptr()
    before = lib.arena_maps_live()
    mine.cleanup()
    gc.collect()
    assert lib.arena_maps_live() == before
    unregister(address)
    lib.arena_map_release(mapping)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_is_told_that_it_has_nothing_pinned() -> None:
    with region(SimulatedDevice()) as mine:
        child = os.fork()
        if not child:
            code = 0
            for question in (lambda: mine.is_pinned, lambda: mine.pinned_addresses, mine.pin_memory):
                try:
                    question()
                except ForkedError:
                    code += 1
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert mine.is_pinned


def test_no_device_is_a_line_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    device = SimulatedDevice()
    monkeypatch.setattr(device, "unavailable", lambda: "no device here")
    with caplog.at_level(logging.WARNING), region(device) as mine:
        assert not mine.is_pinned
        assert "no device here" in caplog.text
