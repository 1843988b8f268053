"""A region that is given up while it is being pinned: by another thread, and by a signal handler of the same thread."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from arena import offload_held
from arena.device.simulated import SimulatedDevice
from arena.errors import ArenaError
from arena.offload import SharedOffloadRegion
from arena.shm.native import lib

PAGE = 4096


@pytest.fixture(autouse=True)
def _nothing_stays_mapped() -> Iterator[None]:
    before = lib.arena_maps_live()
    yield
    assert lib.arena_maps_live() == before


def region(rows: int = 4) -> SharedOffloadRegion:
    return SharedOffloadRegion(f"test-{uuid.uuid4().hex[:12]}", rows, 0, 2 * PAGE, PAGE)


@contextmanager
def handled_by(call: Callable[[], object]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        call()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Interrupted(SimulatedDevice):
    """A signal comes in the middle of one of its calls."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def unavailable(self) -> str | None:
        self._interrupt("unavailable")
        return super().unavailable()

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        self._interrupt("register")
        super().register(address, nbytes, read_only=read_only)

    def unregister(self, address: int) -> None:
        self._interrupt("unregister")
        super().unregister(address)

    def _interrupt(self, call: str) -> None:
        if call == self.call:
            self.call = ""
            signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("call", ["unavailable", "register", "unregister"])
def test_a_signal_handler_gives_up_what_its_thread_pins(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_held, "REGISTER_BYTES_MAX", 2 * PAGE)
    device = Interrupted(call)
    mine = region()
    with handled_by(mine.cleanup):
        assert mine.pin_memory(device) is (call == "unregister")
        mine.cleanup()
    assert device.calls.count("register") == {"unavailable": 0, "register": 1, "unregister": 4}[call]  # no further chunk
    assert device.registered == {}
    assert device.violations == []


def test_what_has_been_given_up_is_not_pinned() -> None:
    device, mine = SimulatedDevice(), region()
    held = mine._use()
    mine.cleanup()
    with pytest.raises(ArenaError, match="was released by cleanup"):
        held.pin(device, mine.total_size_bytes, mine.kv_bytes_per_chunk, background=False)
    assert device.registered == {}


def test_a_thread_gives_up_what_another_is_about_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    pinning = offload_held.Pinning

    def slow(*arguments: Any, **options: Any) -> Any:
        inside.set()
        go_on.wait()
        return pinning(*arguments, **options)

    monkeypatch.setattr(offload_held, "Pinning", slow)
    device, mine = SimulatedDevice(), region()
    threads = [threading.Thread(target=mine.pin_memory, args=(device,))]
    threads[0].start()
    inside.wait()
    threads.append(threading.Thread(target=mine.cleanup))
    threads[1].start()
    threads[1].join(0.1)  # if it does not wait for the other
    go_on.set()
    for thread in threads:
        thread.join()
    assert device.registered == {}
    assert device.calls == []


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_signal_handler_that_raises_while_it_is_unpinned_leaves_nothing() -> None:
    device, mine = Interrupted("unregister"), region()
    engine_id = mine.engine_id
    assert mine.pin_memory(device)
    with handled_by(interrupt), pytest.raises(KeyboardInterrupt):
        mine.cleanup()
    assert device.registered == {}
    SharedOffloadRegion(engine_id, 4, 0, 2 * PAGE, PAGE).cleanup()  # the rank is free


def test_a_driver_that_raises_what_it_should_not_leaves_the_place() -> None:
    """Its memory stays mapped: it may take a later mapping for this one."""

    def broken(address: int) -> None:
        raise RuntimeError("broken")

    device, mine = SimulatedDevice(), region()
    engine_id, mapping = mine.engine_id, mine._use().member.mapping
    assert mine.pin_memory(device)
    device.unregister = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        mine.cleanup()
    SharedOffloadRegion(engine_id, 4, 0, 2 * PAGE, PAGE).cleanup()
    lib.arena_map_release(mapping)


def test_a_region_that_fails_and_is_interrupted_at_the_barrier_leaves_nothing() -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("the first")

    engine_id = f"test-{uuid.uuid4().hex[:12]}"
    with pytest.raises(KeyboardInterrupt) as caught:
        SharedOffloadRegion(engine_id, 4, 0, 2 * PAGE, PAGE, interrupt, progress=fail)
    SharedOffloadRegion(engine_id, 4, 0, 2 * PAGE, PAGE).cleanup()  # while the exception's frames still hold the region
    assert "the first" in str(caught.value.__context__)
