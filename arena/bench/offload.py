"""How fast an offload region takes its pages, and how long it holds up other threads meanwhile."""

from __future__ import annotations

import os
import resource
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from arena.bench.harness import Figure, Sample, figure, interleaved, ratio, timed
from arena.bench.scenarios import Bench
from arena.device.simulated import SimulatedDevice
from arena.offload import SharedOffloadRegion
from arena.shm import population, rendezvous
from arena.shm.backing import check_capacity
from arena.shm.native import lib

TICK_S = 0.005
ROW_BYTES = 1 << 20
REGISTER_S = 0.25
"""How long the simulated driver sleeps in one call; with the GIL free, as ctypes calls a real one."""


def offload_populate(bench: Bench) -> Iterator[Figure]:
    """Memory of a region's kind, populated by one plain ``MADV_POPULATE_WRITE``, by us, and by us with two threads."""
    nbytes = bench.scale.populate_bytes
    check_capacity(nbytes, "memfd")

    def plain() -> dict[str, Sample]:
        with _memory(nbytes) as base:
            return {"plain": _timed(lambda: population.advise_populate(base, nbytes))}

    def ours(threads: int) -> dict[str, Sample]:
        with _memory(nbytes) as base:
            return {f"{threads}": _timed(lambda: population.populate(base, [(0, nbytes)], nbytes, threads=threads))}

    taken = interleaved([plain, lambda: ours(1), lambda: ours(2)], bench.scale.populate_rounds, warm_up=0)
    name = f"populate {nbytes / 1e9:.2g} GB"
    yield ratio(f"{name} ÷ one madvise", taken["1"], taken["plain"], limit=1.05, one_thread=True)
    yield ratio(f"{name}, 2 threads ÷ one madvise", taken["2"], taken["plain"], limit=0.7)


def offload_ticker(bench: Bench) -> Iterator[Figure]:
    """A Python thread that wants to run every 5 ms, while a region is populated and pinned."""
    nbytes = bench.scale.populate_bytes // ROW_BYTES * ROW_BYTES
    check_capacity(nbytes, "memfd")
    name = f"longest delay of another thread, {nbytes / 1e9:.2g} GB"
    with _memory(nbytes) as base:
        yield figure(f"{name} by one madvise", [_longest_ms(lambda: population.advise_populate(base, nbytes))], "ms", None)
    for threads in (1, 2):
        longest_ms = _longest_ms(lambda threads=threads: _construct(nbytes, threads))  # type: ignore[misc]
        yield figure(f"{name} populated by {threads} and pinned", [longest_ms], "ms", 50.0)


def _construct(nbytes: int, threads: int) -> None:
    device = SimulatedDevice(register_s=REGISTER_S)
    SharedOffloadRegion(
        f"bench-{uuid.uuid4().hex}", nbytes // ROW_BYTES, None, ROW_BYTES, 0,
        pin="eager", device=device, populate_threads=threads,
    ).cleanup()  # fmt: skip


def _timed(action: Callable[[], object]) -> Sample:
    """`timed`, but with the processor time, and the disturbance, of all threads of this process."""
    switches, cpu_ns = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, time.process_time_ns()
    sample = timed(action)
    cpu_ns = time.process_time_ns() - cpu_ns
    return replace(sample, cpu_ns=cpu_ns, disturbed=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw > switches)


@contextmanager
def _memory(nbytes: int) -> Iterator[Any]:
    """A mapping without any page."""
    fd = os.memfd_create("arena-bench")
    try:
        os.ftruncate(fd, nbytes)
        mapping = rendezvous.map_memory(fd)
    finally:
        os.close(fd)  # a mapping outlives it
    try:
        yield mapping.data
    finally:
        lib.arena_map_release(mapping)


def _longest_ms(action: Callable[[], object]) -> float:
    """How late, at most, a thread woke that sleeps for a few milliseconds at a time, while the action went on."""
    late_ms: list[float] = []
    stop = threading.Event()
    thread = threading.Thread(target=_tick, args=(stop.is_set, late_ms))
    thread.start()
    try:
        action()
    finally:
        stop.set()
        thread.join()
    return max(late_ms)


def _tick(stopped: Callable[[], bool], late_ms: list[float]) -> None:
    while not stopped():
        before = time.perf_counter()
        time.sleep(TICK_S)
        late_ms.append((time.perf_counter() - before - TICK_S) * 1e3)


OFFLOAD_SCENARIOS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    scenario.__name__: scenario for scenario in (offload_populate, offload_ticker)
}
