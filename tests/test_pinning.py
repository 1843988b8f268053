"""Pinning: the arithmetic of the chunks, and what becomes of the memory when the driver does not play along."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from device_support import PAGE, SEED, Memory
from hypothesis import given
from hypothesis import strategies as st

from arena.config import Pin
from arena.device import pinning as module
from arena.device.interface import ERROR_NOT_REGISTERED, ERROR_OUT_OF_MEMORY
from arena.device.pinning import LAZY_CHUNK_BYTES, REGISTER_BYTES_MAX, WARN_EVERY_S, Chunk, Pinning, plan_chunks
from arena.device.simulated import SimulatedDevice
from arena.errors import CapacityError, DeviceError
from arena.ratelimit import RateLimit

GIB = 1 << 30
ROWS = 8
"""Pages of the mapping under test; a chunk is two of them."""


@pytest.fixture(autouse=True)
def _no_earlier_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warnings", RateLimit(WARN_EVERY_S))


@pytest.fixture
def memory() -> Memory:
    return Memory(ROWS)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    device = SimulatedDevice(SEED)
    yield device
    assert device.violations == []


def make(
    device: SimulatedDevice,
    memory: Memory,
    pin: Pin = "auto",
    *,
    read_only: bool = False,
    populate: Callable[[int, int], None] | None = None,
) -> Pinning:
    return Pinning(
        device,
        memory.address,
        memory.nbytes,
        pin=pin,
        row_bytes=PAGE,
        chunk_bytes=2 * PAGE,
        read_only=read_only,
        populate=populate,
    )


def join_thread(pinning: Pinning) -> None:
    thread = pinning._thread
    assert thread is not None
    thread.join()


# ---- the plan: 67, 69 ----------------------------------------------------------------------------

sizes = st.integers(0, 1 << 42)
pages = st.sampled_from([4096, 16384, 65536, 2 << 20])


@given(total=sizes, row=st.integers(1, 1 << 20), page=pages, room=st.integers(1, 1000))
def test_chunks_cover_all_bytes_exactly_once_and_cut_no_row_and_no_page(total: int, row: int, page: int, room: int) -> None:
    limit = max(math.lcm(row, page) * room, total // 1000)
    chunks = plan_chunks(total, row, limit, page)
    ends = [chunk.offset + chunk.nbytes for chunk in chunks]
    assert [chunk.offset for chunk in chunks] == [0, *ends[:-1]] if total else chunks == []
    assert (ends[-1] if ends else 0) == total
    assert all(0 < chunk.nbytes <= limit for chunk in chunks)
    assert all(end % row == 0 and end % page == 0 for end in ends[:-1])


@given(total=sizes, row=st.integers(1, 1 << 20), page=pages, room=st.integers(1, 1000))
def test_chunks_are_as_few_as_the_limit_allows(total: int, row: int, page: int, room: int) -> None:
    unit = math.lcm(row, page)
    limit = max(unit * room, total // 1000)
    least = 1 if total <= limit else -(-total // (limit // unit * unit))
    assert len(plan_chunks(total, row, limit, page)) == (least if total else 0)


@given(total=st.integers(0, 300), limit=st.integers(1, 64), row=st.integers(1, 8), page=st.integers(1, 8))
def test_the_plan_is_right_for_every_small_size(total: int, limit: int, row: int, page: int) -> None:
    if total > limit and math.lcm(row, page) > limit:
        with pytest.raises(ValueError, match="pad the rows"):
            plan_chunks(total, row, limit, page)
        return
    covered = [
        byte for chunk in plan_chunks(total, row, limit, page) for byte in range(chunk.offset, chunk.offset + chunk.nbytes)
    ]
    assert covered == list(range(total))


def test_a_region_of_512_gib_is_registered_in_parts_that_the_driver_takes() -> None:
    chunks = plan_chunks(512 * GIB + PAGE, row_bytes=3 * PAGE)
    assert len(chunks) == 9
    assert max(chunk.nbytes for chunk in chunks) <= 64 * GIB == REGISTER_BYTES_MAX
    assert all(chunk.offset % (3 * PAGE) == 0 for chunk in chunks)


def test_nothing_to_pin_is_no_chunk() -> None:
    assert plan_chunks(0) == []


@pytest.mark.parametrize("arguments", [(-1, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_a_senseless_size_is_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        plan_chunks(*arguments)


def test_by_default_one_small_tensor_pins_little_and_eager_pins_in_few_calls(device: SimulatedDevice) -> None:
    assert len(Pinning(device, 0, 2 * GIB).chunks) == 2 * GIB // LAZY_CHUNK_BYTES
    assert len(Pinning(device, 0, 2 * GIB, pin="eager").chunks) == 1
    assert len(Pinning(device, 0, 512 * GIB, pin="eager").chunks) == 8


def test_a_row_larger_than_the_default_chunk_is_one_chunk(device: SimulatedDevice) -> None:
    assert {chunk.nbytes for chunk in Pinning(device, 0, 4 * GIB, row_bytes=GIB).chunks} == {GIB}


def test_an_address_within_a_page_is_refused(device: SimulatedDevice) -> None:
    with pytest.raises(ValueError, match="multiple of the page"):
        Pinning(device, 100, PAGE)


# ---- when and what -------------------------------------------------------------------------------


def test_only_the_chunks_that_are_used_are_pinned(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    pinning.start()
    assert device.registered == {}
    assert pinning.ensure(3 * PAGE, 2 * PAGE)
    assert device.registered == {memory.address + 2 * PAGE: 2 * PAGE, memory.address + 4 * PAGE: 2 * PAGE}
    assert pinning.pinned_addresses == tuple(sorted(device.registered.items()))
    assert pinning.pinned_bytes == 4 * PAGE
    assert pinning.is_pinned(2 * PAGE, 4 * PAGE)
    assert not pinning.is_pinned(0, PAGE)
    assert not pinning.is_pinned(PAGE, 2 * PAGE)


def test_a_chunk_is_registered_once_however_often_it_is_used(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    assert all(pinning.ensure(0, nbytes) for nbytes in (1, PAGE, 2 * PAGE, 1))
    assert device.calls == ["register"]


def test_nothing_used_is_nothing_pinned(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    assert pinning.ensure(PAGE, 0)
    assert not pinning.needs_gate(PAGE, 0)
    assert pinning.split(PAGE, 0) == []
    assert device.calls == []


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, -1), (0, ROWS * PAGE + 1), (ROWS * PAGE, 1)])
def test_a_range_outside_the_mapping_is_refused(device: SimulatedDevice, memory: Memory, offset: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        make(device, memory).ensure(offset, nbytes)


def test_off_pins_nothing_and_says_so(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory, "off")
    pinning.start()
    assert not pinning.ensure(0, PAGE)
    assert pinning.reason_unpinned == 'pin="off"'
    assert pinning.unpin()
    assert device.calls == []


def test_eager_pins_everything_at_the_start(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory, "eager")
    pinning.start()
    assert pinning.is_pinned(0, memory.nbytes)
    assert pinning.reason_unpinned is None


def test_background_pins_everything_and_makes_nobody_wait(memory: Memory) -> None:
    device = Stalled()
    pinning = make(device, memory, "background")
    pinning.start()
    device.reached.wait()
    thread = pinning._thread
    assert not pinning.ensure(0, PAGE)  # returns although the driver is still at work
    assert pinning._thread is thread
    device.go_on.set()
    join_thread(pinning)
    assert pinning.is_pinned(0, memory.nbytes)
    assert pinning.ensure(0, PAGE)


@pytest.mark.parametrize("pin", ["auto", "eager", "background"])
def test_a_process_without_a_device_stays_unpinned_until_it_has_one(
    device: SimulatedDevice, memory: Memory, pin: Pin
) -> None:
    device.reason = "this process has not initialised CUDA"
    pinning = make(device, memory, pin)
    pinning.start()
    assert not pinning.ensure(0, PAGE)
    assert pinning.reason_unpinned == device.reason
    assert device.calls == []
    device.reason = None
    pinning.ensure(0, PAGE)
    if pin == "background":
        join_thread(pinning)
    assert pinning.is_pinned(0, PAGE)
    assert pinning.reason_unpinned is None


def test_a_read_only_mapping_is_registered_as_such(memory: Memory) -> None:
    class Recording(SimulatedDevice):
        def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
            seen.append(read_only)

    seen: list[bool] = []
    assert make(Recording(), memory, read_only=True).ensure(0, PAGE)
    assert make(Recording(), memory).ensure(0, PAGE)
    assert seen == [True, False]


def test_pages_are_taken_before_they_are_registered(device: SimulatedDevice, memory: Memory) -> None:
    def populate(offset: int, nbytes: int) -> None:
        device.calls.append(f"populate {offset // PAGE} {nbytes // PAGE}")

    make(device, memory, populate=populate).ensure(PAGE, 2 * PAGE)
    assert device.calls == ["populate 0 2", "register", "populate 2 2", "register"]


def test_a_copy_is_cut_where_chunks_meet(device: SimulatedDevice, memory: Memory) -> None:
    pinning = make(device, memory)
    assert pinning.split(100, PAGE) == [Chunk(100, PAGE)]
    assert pinning.split(PAGE, 4 * PAGE) == [Chunk(PAGE, PAGE), Chunk(2 * PAGE, 2 * PAGE), Chunk(4 * PAGE, PAGE)]


# ---- the driver refuses: 67, 68 ------------------------------------------------------------------


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


# ---- giving it back: 69 --------------------------------------------------------------------------


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


# ---- threads: 72 ---------------------------------------------------------------------------------


class Stalled(SimulatedDevice):
    """Its register waits until another Python thread lets it go on: for ever, if that thread were held up."""

    def __init__(self) -> None:
        super().__init__(SEED)
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        self.reached.set()
        self.go_on.wait()
        super().register(address, nbytes, read_only=read_only)


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    result: list[object] = []
    thread = threading.Thread(target=lambda: result.append(function()), daemon=True)
    thread.start()
    return thread, result


def test_while_the_driver_works_every_question_is_answered(memory: Memory) -> None:
    device = Stalled()
    pinning = make(device, memory)
    device.go_on.set()
    assert pinning.ensure(0, PAGE)
    device.go_on.clear()
    device.reached.clear()
    thread, result = in_thread(lambda: pinning.ensure(2 * PAGE, PAGE))
    device.reached.wait()
    assert pinning.ensure(0, PAGE)
    assert not pinning.is_pinned(2 * PAGE, PAGE)
    assert pinning.needs_gate(2 * PAGE, PAGE)
    assert pinning.pinned_bytes == 2 * PAGE
    assert pinning.reason_unpinned is None
    assert len(pinning.split(0, memory.nbytes)) == 4
    device.go_on.set()
    thread.join()
    assert result == [True]


def test_while_pages_are_taken_every_question_is_answered(device: SimulatedDevice, memory: Memory) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def populate(offset: int, nbytes: int) -> None:
        reached.set()
        go_on.wait()

    pinning = make(device, memory, populate=populate)
    thread, result = in_thread(lambda: pinning.ensure(0, PAGE))
    reached.wait()
    assert not pinning.is_pinned(0, PAGE)
    go_on.set()
    thread.join()
    assert result == [True]


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
    ticker, _ = in_thread(tick)
    try:
        assert make(Sleeping(), memory, "eager").ensure(0, PAGE)
    finally:
        stop.set()
        ticker.join()
    assert ticks >= 20 * 4


def test_two_threads_that_need_one_chunk_register_it_once(memory: Memory) -> None:
    device = Stalled()
    pinning = make(device, memory)
    threads = [in_thread(lambda: pinning.ensure(0, 2 * PAGE)) for _ in range(4)]
    device.reached.wait()
    device.go_on.set()
    for thread, result in threads:
        thread.join()
        assert result == [True]
    assert device.calls == ["register"]


def test_a_chunk_that_is_undone_was_never_taken_for_pinned(memory: Memory) -> None:
    """The second chunk of a range fails: nobody may have been told that the first one is pinned."""
    device = Stalled()
    device.fail("register", ERROR_OUT_OF_MEMORY, nth=2)
    pinning = make(device, memory)
    thread, both = in_thread(lambda: pinning.ensure(0, 4 * PAGE))
    device.reached.wait()
    other, first = in_thread(lambda: pinning.ensure(0, PAGE))
    device.go_on.set()
    thread.join()
    other.join()
    assert (both, first) == ([False], [False])


@pytest.mark.parametrize("pin", ["auto", "background"])
def test_unpinning_waits_for_a_registration_and_undoes_it(memory: Memory, pin: Pin) -> None:
    device = Stalled()
    pinning = make(device, memory, pin)
    thread, _ = in_thread(lambda: pinning.ensure(0, memory.nbytes))
    device.reached.wait()
    unpinning, result = in_thread(pinning.unpin)
    while not pinning._closed:
        threading.Event().wait(0.001)
    assert device.registered == {}
    device.go_on.set()
    unpinning.join()
    thread.join()
    assert result == [True]
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
    threads = [in_thread(pinning.unpin)]
    reached.wait()
    threads.append(in_thread(pinning.unpin))
    go_on.set()
    for thread, result in threads:
        thread.join()
        assert result == [True]
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

    threads = [in_thread(lambda first=first: use(first)) for first in range(4)]  # type: ignore[misc]
    together.wait()
    unpinned, result = in_thread(pinning.unpin)
    for thread, _ in [*threads, (unpinned, result)]:
        thread.join()
    assert result == [True]
    assert device.registered == {}
    assert device.calls.count("register") - device.calls.count("drain_error") == device.calls.count("unregister")
