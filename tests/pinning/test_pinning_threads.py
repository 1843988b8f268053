"""Threads that pin, ask and give back at once, while the driver is at work (case 72)."""

from __future__ import annotations

import threading

import pytest
from device_support import PAGE, SEED, Memory
from pinning_support import ROWS, Stalled, make
from support import in_thread

from arena.config import Pin
from arena.device.interface import ERROR_OUT_OF_MEMORY
from arena.device.simulated import SimulatedDevice


def test_while_the_driver_works_every_question_is_answered(memory: Memory) -> None:
    device = Stalled()
    pinning = make(device, memory)
    device.go_on.set()
    assert pinning.ensure(0, PAGE)
    device.go_on.clear()
    device.reached.clear()
    ensured = in_thread(lambda: pinning.ensure(2 * PAGE, PAGE))
    device.reached.wait()
    assert pinning.ensure(0, PAGE)
    assert not pinning.is_pinned(2 * PAGE, PAGE)
    assert pinning.needs_gate(2 * PAGE, PAGE)
    assert pinning.pinned_bytes == 2 * PAGE
    assert pinning.reason_unpinned is None
    assert len(pinning.split(0, memory.nbytes)) == 4
    device.go_on.set()
    assert ensured() is True


def test_while_pages_are_taken_every_question_is_answered(device: SimulatedDevice, memory: Memory) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def populate(offset: int, nbytes: int) -> None:
        reached.set()
        go_on.wait()

    pinning = make(device, memory, populate=populate)
    ensured = in_thread(lambda: pinning.ensure(0, PAGE))
    reached.wait()
    assert not pinning.is_pinned(0, PAGE)
    go_on.set()
    assert ensured() is True


def test_a_ticker_thread_ticks_through_a_registration_that_waits_for_it(memory: Memory) -> None:
    """The registration sleeps in the driver until a ticker has ticked twenty times: structural, and not by a clock."""

    class Sleeping(SimulatedDevice):
        def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
            start = ticks
            while ticks < start + 20:
                threading.Event().wait(0.001)
            super().register(address, nbytes, read_only=read_only)

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.0005):
            ticks += 1

    ticks, stop = 0, threading.Event()
    ticked = in_thread(tick)
    try:
        assert make(Sleeping(), memory, "eager").ensure(0, PAGE)
    finally:
        stop.set()
        ticked()
    assert ticks >= 20 * 4


def test_two_threads_that_need_one_chunk_register_it_once(memory: Memory) -> None:
    device = Stalled()
    pinning = make(device, memory)
    ensured = [in_thread(lambda: pinning.ensure(0, 2 * PAGE)) for _ in range(4)]
    device.reached.wait()
    device.go_on.set()
    assert [join() for join in ensured] == [True] * 4
    assert device.calls == ["register"]


def test_a_chunk_that_is_undone_was_never_taken_for_pinned(memory: Memory) -> None:
    """The second chunk of a range fails: nobody may have been told that the first one is pinned."""
    device = Stalled()
    device.fail("register", ERROR_OUT_OF_MEMORY, nth=2)
    pinning = make(device, memory)
    both = in_thread(lambda: pinning.ensure(0, 4 * PAGE))
    device.reached.wait()
    first = in_thread(lambda: pinning.ensure(0, PAGE))
    device.go_on.set()
    assert (both(), first()) == (False, False)


@pytest.mark.parametrize("pin", ["auto", "background"])
def test_unpinning_waits_for_a_registration_and_undoes_it(memory: Memory, pin: Pin) -> None:
    device = Stalled()
    pinning = make(device, memory, pin)
    ensured = in_thread(lambda: pinning.ensure(0, memory.nbytes))
    device.reached.wait()
    unpinned = in_thread(pinning.unpin)
    while not pinning._closed:
        threading.Event().wait(0.001)
    assert device.registered == {}
    device.go_on.set()
    assert unpinned() is True
    ensured()
    assert device.registered == {}
    assert device.calls == ["register", "unregister"]  # and no further chunk was begun


def test_two_threads_that_unpin_undo_each_chunk_once(memory: Memory) -> None:
    class Slow(SimulatedDevice):
        def unregister(self, address: int) -> None:
            reached.set()
            go_on.wait()
            super().unregister(address)

    device, reached, go_on = Slow(SEED), threading.Event(), threading.Event()
    pinning = make(device, memory)
    pinning.ensure(0, PAGE)
    unpinned = [in_thread(pinning.unpin)]
    reached.wait()
    unpinned.append(in_thread(pinning.unpin))
    go_on.set()
    assert [join() for join in unpinned] == [True] * 2
    assert device.calls == ["register", "unregister"]


@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_threads_that_use_fail_and_unpin_leave_nothing_registered(memory: Memory, seed: int) -> None:
    device = SimulatedDevice(seed)
    pinning = make(device, memory)
    device.fail("register", ERROR_OUT_OF_MEMORY, nth=seed % 4 + 1)
    together = threading.Barrier(5)

    def use(first: int) -> bool:
        together.wait()
        return all(pinning.ensure((first + page) % ROWS * PAGE, PAGE) for page in range(ROWS))

    used = [in_thread(lambda first=first: use(first)) for first in range(4)]  # type: ignore[misc]
    together.wait()
    unpinned = in_thread(pinning.unpin)
    for join in used:
        join()
    assert unpinned() is True
    assert device.registered == {}
    assert device.calls.count("register") - device.calls.count("drain_error") == device.calls.count("unregister")
