"""What was pinned is given back, once, and whatever fails the records are what the driver has (case 69)."""

from __future__ import annotations

import os

import pytest
from device_support import PAGE, SEED, Memory
from hypothesis import given
from hypothesis import strategies as st
from pinning_support import ROWS, make

from arena.config import Pin
from arena.device.interface import ERROR_NOT_REGISTERED, ERROR_OUT_OF_MEMORY
from arena.device.pinning import Pinning
from arena.device.simulated import SimulatedDevice


def test_fifty_mappings_at_one_address_are_all_pinned(device: SimulatedDevice, memory: Memory) -> None:
    for _ in range(50):
        pinning = make(device, memory)
        assert pinning.ensure(0, memory.nbytes)
        assert pinning.unpin()
        device.before_unmap(memory.address, memory.nbytes)
    assert device.calls.count("register") == device.calls.count("unregister") == 50 * len(pinning.chunks)


def test_without_unpinning_the_next_mapping_at_that_address_fails(memory: Memory) -> None:
    device = SimulatedDevice(SEED)
    make(device, memory).ensure(0, PAGE)
    device.before_unmap(memory.address, memory.nbytes)
    again = make(device, memory)
    assert not again.ensure(0, PAGE)
    assert "712" in str(again.reason_unpinned)
    assert len(device.violations) == 1


def test_a_zero_byte_mapping_calls_no_driver(device: SimulatedDevice, memory: Memory) -> None:
    for pin in ("auto", "eager", "background"):
        pinning = Pinning(device, memory.address, 0, pin=pin)
        pinning.start()
        assert pinning.unpin()
    assert device.calls == []


def test_unpinning_twice_is_unpinning_once(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory, "eager")
    pinning.start()
    assert pinning.unpin()
    assert pinning.unpin()
    assert device.calls.count("unregister") == len(pinning.chunks)
    assert device.registered == {}


def test_after_unpinning_nothing_is_pinned_again(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    pinning.unpin()
    assert not pinning.ensure(0, PAGE)
    assert pinning.reason_unpinned == "the mapping is closed"
    assert device.calls == []


def test_a_failed_unregister_keeps_its_record_and_is_tried_again(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory, "eager")
    pinning.start()
    device.fail("unregister", 999, nth=2)
    assert not pinning.unpin()
    assert pinning.pinned_addresses == ((memory.address + 2 * PAGE, 2 * PAGE),) == tuple(device.registered.items())
    assert pinning.needs_gate(2 * PAGE, PAGE)
    assert pinning.unpin()
    assert (pinning.pinned_addresses, device.registered) == ((), {})


@pytest.mark.parametrize(("code", "is_free"), [(ERROR_NOT_REGISTERED, True), (999, False)])
def test_what_is_said_to_stay_mapped_does(
    device: SimulatedDevice, memory: Memory, caplog: pytest.LogCaptureFixture, code: int, is_free: bool
) -> None:
    pinning = make(device, memory)
    pinning.ensure(0, PAGE)
    device.fail("unregister", code)
    assert pinning.unpin() is is_free
    assert ("stays mapped" in caplog.text) is not is_free
    assert len(caplog.records) == 1


def test_a_failed_rollback_keeps_its_record(device: SimulatedDevice, memory: Memory) -> None:
    device.fail("register", ERROR_OUT_OF_MEMORY, nth=3)
    device.fail("unregister", 999)
    pinning = make(device, memory, "eager")
    pinning.start()
    assert pinning.pinned_addresses == tuple(device.registered.items()) == ((memory.address, 2 * PAGE),)
    assert pinning.unpin()
    assert device.registered == {}


def test_what_the_driver_has_forgotten_needs_no_unregister(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    pinning.ensure(0, PAGE)
    device.registered.clear()  # as after a reset of the device
    assert pinning.unpin()
    assert device.calls[-1] == "drain_error"


def test_an_interrupt_within_the_call_leaves_a_record(memory: Memory) -> None:
    class Interrupted(SimulatedDevice):
        def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
            super().register(address, nbytes, read_only=read_only)
            raise KeyboardInterrupt

    device = Interrupted(SEED)
    pinning = make(device, memory)
    with pytest.raises(KeyboardInterrupt):
        pinning.ensure(0, PAGE)
    assert pinning.unpin()
    assert device.registered == {}


def test_a_forked_child_undoes_nothing_and_pins_nothing(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    pinning.ensure(0, PAGE)
    calls = len(device.calls)
    with pinning._changed:  # as another thread of the parent may have held it
        child = os.fork()
        if child == 0:
            fine = pinning.unpin() and not pinning.ensure(4 * PAGE, PAGE) and len(device.calls) == calls
            os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pinning.is_pinned(0, PAGE)


uses = st.tuples(st.integers(0, ROWS - 1), st.integers(1, ROWS)).map(
    lambda use: (use[0] * PAGE, min(use[1], ROWS - use[0]) * PAGE)
)
faults = st.tuples(st.sampled_from(["register", "unregister", "drain_error"]), st.integers(1, 5))


@given(
    steps=st.lists(st.one_of(uses, faults, st.just("unpin")), max_size=12),
    pin=st.sampled_from(["auto", "eager"]),
    seed=st.integers(SEED, SEED + 3),
)
def test_whatever_fails_the_records_are_what_the_driver_has(
    steps: list[tuple[int, int] | tuple[str, int] | str], pin: Pin, seed: int
) -> None:
    device, memory = SimulatedDevice(seed), Memory(ROWS)
    pinning = make(device, memory, pin)
    pinned_before: set[tuple[int, int]] = set()
    for step in steps:
        if step == "unpin":
            assert pinning.unpin() == (device.registered == {})
            pinned_before = set()
        elif isinstance(step[0], str):
            device.fail(step[0], ERROR_OUT_OF_MEMORY, nth=int(step[1]))
        else:
            assert pinning.ensure(step[0], int(step[1])) == pinning.is_pinned(step[0], int(step[1]))
        assert dict(pinning.pinned_addresses) == device.registered
        assert pinned_before <= set(pinning.pinned_addresses)  # what is in use is never undone
        pinned_before = set(pinning.pinned_addresses)
    device.fail("unregister", 0, times=20)
    assert pinning.unpin()
    assert device.registered == {}
