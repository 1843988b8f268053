"""How fast an offload region takes its pages, and how long it holds up other threads meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from arena.bench.harness import Figure, Sample, figure, interleaved, ratio, timed
from arena.shm import population, rendezvous
from arena.shm.native import lib

TICK_S = 0.005


def offload_populate(nbytes: int = 8 << 30, rounds: int = 3) -> Iterator[Figure]:
    """Memory of a region's kind, populated by one plain ``MADV_POPULATE_WRITE``, by us, and by us with two threads."""
    gaps_ms: list[float] = []

    def plain() -> dict[str, Sample]:
        with _memory(nbytes) as base:
            return {"plain": timed(lambda: population.advise_populate(base, nbytes))}

    def ours(threads: int) -> dict[str, Sample]:
        with _memory(nbytes) as base, _ticker(gaps_ms):
            sample = timed(lambda: population.populate(base, [(0, nbytes)], nbytes, threads=threads))
        return {f"{threads} threads": sample}

    taken = interleaved([plain, lambda: ours(1), lambda: ours(2)], rounds, warm_up=0)
    name = f"populate {nbytes / 1e9:.1f} GB"
    yield ratio(f"{name} ÷ one madvise", taken["1 threads"], taken["plain"], limit=1.05)
    yield ratio(f"{name}, 2 threads ÷ one madvise", taken["2 threads"], taken["plain"], limit=0.7)
    yield figure("longest time that another thread was held up", [max(gaps_ms)], "ms", 50.0)


@contextmanager
def _memory(nbytes: int) -> Iterator[Any]:
    """A mapping without any page."""
    fd = os.memfd_create("arena-bench")
    os.ftruncate(fd, nbytes)
    mapping = rendezvous.map_memory(fd)
    try:
        yield mapping.data
    finally:
        lib.arena_map_release(mapping)
        os.close(fd)


@contextmanager
def _ticker(gaps_ms: list[float]) -> Iterator[None]:
    """A thread that wakes every few milliseconds, and notes how late it was."""
    stop = threading.Event()
    thread = threading.Thread(target=_tick, args=(stop.is_set, gaps_ms))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _tick(stopped: Callable[[], bool], gaps_ms: list[float]) -> None:
    before = time.perf_counter()
    while not stopped():
        time.sleep(TICK_S)
        now = time.perf_counter()
        gaps_ms.append((now - before - TICK_S) * 1e3)
        before = now
