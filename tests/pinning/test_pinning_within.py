"""Calls from within a call of the same thread, as a signal handler and a finalizer make them: none waits for itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cut_support import interrupted_at
from device_support import PAGE, SEED, Memory
from pinning_support import make
from support import in_thread

from arena.device.pinning import Pinning
from arena.device.simulated import SimulatedDevice


class Nested(SimulatedDevice):
    """Something is called in the middle of its call."""

    def __init__(self, call: str, nested: Callable[[], object]) -> None:
        super().__init__(SEED)
        self._call = call
        self._nested = nested

    def enter(self, call: str) -> None:
        super().enter(call)
        if call == self._call:
            self._call = ""
            self._nested()


def test_a_use_of_what_its_own_thread_registers_is_not_pinned_yet(memory: Memory) -> None:
    answers: list[bool] = []
    device = Nested("register", lambda: answers.append(pinning.ensure(0, PAGE)))
    pinning = make(device, memory)
    assert pinning.ensure(0, PAGE)
    assert answers == [False]
    assert device.calls == ["register"]
    assert pinning.unpin()


def test_a_use_of_something_else_is_pinned(memory: Memory) -> None:
    answers: list[bool] = []
    device = Nested("register", lambda: answers.append(pinning.ensure(2 * PAGE, PAGE)))
    pinning = make(device, memory)
    assert pinning.ensure(0, PAGE)
    assert answers == [True]
    assert pinning.unpin()
    assert device.registered == {}


@pytest.mark.parametrize("call", ["register", "unregister"])
def test_unpinning_in_the_middle_is_for_later_and_ends_the_pinning(memory: Memory, call: str) -> None:
    answers: list[bool] = []
    device = Nested(call, lambda: answers.append(pinning.unpin()))
    pinning = make(device, memory, "eager")
    pinning.ensure(0, memory.nbytes)
    assert pinning.unpin()
    assert answers == [False]
    assert device.calls.count("register") == device.calls.count("unregister") == (1 if call == "register" else 4)
    assert device.registered == {}


@pytest.mark.parametrize("call", [lambda pinning: pinning.ensure(0, 3 * PAGE), Pinning.unpin], ids=["ensure", "unpin"])
def test_a_call_that_a_signal_handler_ends_holds_up_no_other_thread(memory: Memory, call: Callable[[Pinning], bool]) -> None:
    place, reached = 0, True
    while reached:
        device = SimulatedDevice(SEED)
        pinning = make(device, memory)
        pinning.ensure(0, PAGE)
        reached = interrupted_at(place, lambda: call(pinning))  # noqa: B023
        assert in_thread(pinning.unpin)() is True
        assert device.registered == {}, place
        place += 1
    assert place > 20
