"""Taking pages: all of one's own, in bounded pieces, with other threads running, and without touching a byte."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_support import PAGE, fresh_id, pages_of

from arena.errors import CapacityError
from arena.offload import SharedOffloadRegion
from arena.shm import population, rendezvous
from arena.shm.native import ffi, lib
from arena.shm.population import PIECE_BYTES

EHWPOISON = 133  # errno does not have it


@pytest.fixture
def memory() -> Iterator[Any]:
    """A mapping of 64 MiB without any page yet."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, 64 << 20)
    mapping = rendezvous.map_memory(fd)
    yield mapping
    lib.arena_map_release(mapping)
    os.close(fd)


# ---- which pages


@given(
    n_rows=st.integers(1, 20),
    row_pages=st.integers(1, 6),
    rank=st.integers(0, 7),
    share=st.integers(1, 3 * PAGE),
)
def test_own_pages_are_those_that_hold_own_bytes(n_rows: int, row_pages: int, rank: int, share: int) -> None:
    row_bytes = row_pages * PAGE
    offset = rank * share
    if offset + share > row_bytes:
        return
    ranges = list(population.own_pages(n_rows, row_bytes, offset, share))
    wanted = {
        page
        for row in range(n_rows)
        for page in range((row * row_bytes + offset) // PAGE, (row * row_bytes + offset + share - 1) // PAGE + 1)
    }
    got = [page for start, nbytes in ranges for page in range(start // PAGE, (start + nbytes) // PAGE)]
    assert sorted(wanted) == got, "each once, and no other"
    assert all(start % PAGE == nbytes % PAGE == 0 < nbytes for start, nbytes in ranges)
    assert all(one[0] + one[1] < other[0] for one, other in pairwise(ranges)), "what touches is joined"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=4))
def test_pieces_are_bounded_and_lose_nothing(ranges: list[tuple[int, int]]) -> None:
    given_ranges = [(start << 20, nbytes << 20) for start, nbytes in ranges]
    cut = list(population.pieces(given_ranges))
    assert all(0 < nbytes <= PIECE_BYTES for _, nbytes in cut)
    assert sum(nbytes for _, nbytes in cut) == sum(nbytes for _, nbytes in given_ranges)


def test_each_worker_takes_its_own_pages_and_no_other() -> None:
    engine_id = fresh_id()
    with SharedOffloadRegion(engine_id, 10, 0, 8 * PAGE, 2 * PAGE) as first:
        assert pages_of(first) == 10 * 2
        with SharedOffloadRegion(engine_id, 10, 2, 8 * PAGE, 2 * PAGE):
            assert pages_of(first) == 10 * 4
            with SharedOffloadRegion(engine_id, 10, None, 8 * PAGE, 0):
                assert pages_of(first) == 10 * 8


def test_the_creator_takes_all_and_joiners_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_id = fresh_id()
    creator = SharedOffloadRegion(engine_id, 10, 0, 8 * PAGE, PAGE, lambda: None, populate_only_on_creator=True)
    with creator:
        assert pages_of(creator) == 80
        monkeypatch.setattr(population, "populate", None)  # a joiner that called it would fail
        with SharedOffloadRegion(engine_id, 10, 1, 8 * PAGE, PAGE, lambda: None, populate_only_on_creator=True):
            pass


# ---- other threads


def ticks_during(call: Any) -> int:
    """How often another Python thread ran while one native call was at work."""
    ticks, stop = [], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        began = time.perf_counter()
        call()
        ended = time.perf_counter()
    finally:
        stop.set()
        ticker.join()
    return sum(began < moment < ended for moment in ticks)


@pytest.mark.parametrize("function", [population.advise_populate, population.touch_pages])
def test_another_thread_runs_while_pages_are_taken(function: Any) -> None:
    """Case 72.  One call for all, so that nothing but a free GIL can let the other thread run."""
    nbytes = 256 << 20
    fd = os.memfd_create("test")
    os.ftruncate(fd, nbytes)
    mapping = rendezvous.map_memory(fd)
    try:
        assert ticks_during(lambda: function(mapping.data, nbytes)) > 5
    finally:
        lib.arena_map_release(mapping)
        os.close(fd)


def test_the_same_ticker_stands_still_where_the_gil_is_held() -> None:
    """The canary of the test above: a call that keeps the GIL, as ctypes.PyDLL does."""
    memmove = ctypes.PyDLL(None).memset
    memmove.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    area = mmap.mmap(-1, 128 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert ticks_during(lambda: memmove(address, 1, 128 << 20)) <= 3


def test_several_threads_take_every_piece_once(memory: Any) -> None:
    seen: list[int] = []
    threads: set[str] = set()

    def advise(address: Any, nbytes: int) -> int:
        seen.append(int(ffi.cast("uintptr_t", address)))
        threads.add(threading.current_thread().name)
        time.sleep(0.002)
        return 0

    population.populate(memory.data, [(0, 64 << 20)], 64 << 20, threads=3, advise=advise)
    assert len(seen) == len(set(seen)) == (64 << 20) // PIECE_BYTES


def test_progress_grows_to_the_end_and_comes_in_the_callers_thread(memory: Any) -> None:
    told: list[tuple[int, int, threading.Thread]] = []
    population.populate(
        memory.data,
        [(0, 64 << 20)],
        64 << 20,
        threads=2,
        progress=lambda done, total: told.append((done, total, threading.current_thread())),
    )
    done = [each[0] for each in told]
    assert done == sorted(set(done))
    assert done[-1] == 64 << 20
    assert {each[1:] for each in told} == {(64 << 20, threading.current_thread())}


def test_a_progress_callback_that_raises_ends_it(memory: Any) -> None:
    calls: list[int] = []

    def progress(done: int, total: int) -> None:
        raise KeyboardInterrupt

    def advise(address: Any, nbytes: int) -> int:
        calls.append(nbytes)
        time.sleep(0.01)
        return 0

    with pytest.raises(KeyboardInterrupt):
        population.populate(memory.data, [(0, 64 << 20)], 64 << 20, progress=progress, advise=advise)
    assert len(calls) < (64 << 20) // PIECE_BYTES


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "arena-populate"]


def test_a_signal_handler_that_raises_while_a_thread_starts_leaves_none_at_work(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, start = threading.Event(), threading.Thread.start

    def advise(address: Any, nbytes: int) -> int:
        at_work.set()
        time.sleep(0.1)
        return 0

    def interrupted(self: threading.Thread) -> None:
        start(self)
        at_work.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        population.populate(memory.data, [(0, PAGE)], PAGE, advise=advise)
    assert helpers() == []


def test_threads_that_nobody_waits_for_any_more_keep_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C comes while the threads are waited for."""
    before, go_on, join = lib.arena_maps_live(), threading.Event(), threading.Thread.join

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    take = population._Work._take

    def slow(self: Any, offset: int, nbytes: int) -> None:
        take(self, offset, nbytes)
        if offset:
            go_on.wait()

    monkeypatch.setattr(population._Work, "_take", slow)
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SharedOffloadRegion(fresh_id(), 2, None, PIECE_BYTES, 0, populate_threads=1, progress=interrupted)
    left = helpers()
    assert len(left) == 1
    assert lib.arena_maps_live() == before + 1
    go_on.set()
    join(left.pop())
    gc.collect()
    assert lib.arena_maps_live() == before


# ---- what the kernel may say (case 71)


def test_a_kernel_without_the_advice_gets_its_pages_touched(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    touched: list[tuple[int, int]] = []
    base = int(ffi.cast("uintptr_t", memory.data))

    def touch(address: Any, nbytes: int) -> None:
        touched.append((int(ffi.cast("uintptr_t", address)) - base, nbytes))

    own = list(population.own_pages(4, 8 * PAGE, 2 * PAGE, PAGE))
    with caplog.at_level(logging.WARNING, logger="arena.shm"):
        population.populate(memory.data, own, 4 * PAGE, threads=2, advise=lambda address, nbytes: errno.EINVAL, touch=touch)
    assert sorted(touched) == own, "own pages only"
    assert len(caplog.records) == 1


def test_touching_keeps_every_byte(memory: Any) -> None:
    content = os.urandom(16 * PAGE)
    ffi.buffer(memory.data, len(content))[:] = content
    population.touch_pages(memory.data, len(content))
    assert bytes(ffi.buffer(memory.data, len(content))) == content


def test_touching_loses_no_byte_that_another_thread_is_writing(memory: Any) -> None:
    """A read and a write of their own would put an old byte back over a new one."""
    page = ffi.buffer(memory.data, 1)
    stop = threading.Event()

    def touch() -> None:
        while not stop.is_set():
            for _ in range(1000):
                lib.arena_touch_pages(memory.data, 1, 1)

    toucher = threading.Thread(target=touch)
    toucher.start()
    try:
        for number in range(100_000):
            value = bytes([number & 0xFF])
            page[:] = value
            assert page[:] == value
    finally:
        stop.set()
        toucher.join()


@pytest.mark.parametrize("code", [errno.EFAULT, errno.ENOMEM])
def test_a_shortage_is_a_capacity_error(memory: Any, code: int) -> None:
    with pytest.raises(CapacityError, match=r"cannot be populated.*make the region smaller"):
        population.populate(memory.data, [(0, PAGE)], PAGE, advise=lambda address, nbytes: code)


def test_broken_memory_is_an_error_of_the_system(memory: Any) -> None:
    with pytest.raises(OSError, match="cannot be populated") as caught:
        population.populate(memory.data, [(0, PAGE)], PAGE, advise=lambda address, nbytes: EHWPOISON)
    assert caught.value.errno == EHWPOISON


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_an_interrupted_piece_is_taken_again(memory: Any, code: int) -> None:
    answers = [code, code, 0]
    touched: list[int] = []
    population.populate(
        memory.data,
        [(0, PAGE)],
        PAGE,
        advise=lambda address, nbytes: answers.pop(0),
        touch=lambda address, nbytes: touched.append(nbytes),
    )
    assert answers == []
    assert touched == []


def test_the_first_error_of_any_thread_stops_all(memory: Any) -> None:
    calls: list[int] = []

    def advise(address: Any, nbytes: int) -> int:
        calls.append(nbytes)
        time.sleep(0.01)
        return errno.ENOMEM if len(calls) > 1 else 0

    with pytest.raises(CapacityError):
        population.populate(memory.data, [(0, 64 << 20)], 64 << 20, threads=2, advise=advise)
    assert len(calls) <= 4


def test_a_real_shortage_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """On a file system of 1 MiB: MADV_POPULATE_WRITE says EFAULT where a store would be SIGBUS."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(tmp_path).encode(), b"tmpfs", 0, b"size=1m"):
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        fd = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 4 << 20)
        mapping = rendezvous.map_memory(fd)
        try:
            with pytest.raises(CapacityError, match="cannot be populated"):
                population.populate(mapping.data, [(0, 4 << 20)], 4 << 20)
        finally:
            lib.arena_map_release(mapping)
            os.close(fd)
    finally:
        libc.umount(str(tmp_path).encode())
