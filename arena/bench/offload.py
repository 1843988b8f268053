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
from functools import partial
from typing import Any

from arena.bench.harness import Figure, Sample, figure, interleaved, ratio, timed
from arena.bench.scenarios import Bench
from arena.device.simulated import SimulatedDevice
from arena.offload import SharedOffloadRegion
from arena.shm import population, rendezvous
from arena.shm.backing import check_capacity
from arena.shm.native import lib

TICK_S = 0.005
TURN_BYTES = 128 << 20
ROW_BYTES = 1 << 20
REGISTER_S = 0.25
"""How long the simulated driver sleeps in one call; with the GIL free, as ctypes calls a real one."""


def offload_populate(bench: Bench) -> Iterator[Figure]:
    """Memory of a region's kind, populated by plain ``MADV_POPULATE_WRITE`` and by us, with one thread and with two."""
    nbytes = bench.scale.populate_bytes
    check_capacity(2 * nbytes, "memfd")
    for threads, limit in ((1, 1.05), (2, 0.7)):
        taken = interleaved([partial(_populate_by_turns, nbytes, threads)], bench.scale.populate_rounds, warm_up=0)
        name = f"populate {nbytes / 1e9:.2g} GB{', 2 threads' if threads == 2 else ''} ÷ one madvise"
        yield ratio(name, taken["ours"], taken["plain"], limit, one_thread=threads == 1)


def _populate_by_turns(nbytes: int, threads: int) -> dict[str, Sample]:
    """Two mappings, filled stretch by stretch in turns: new pages do not all cost the same.

    A hypervisor that takes free pages back (``page_reporting``) has to find the memory again at the first touch.  Two
    mappings that were filled one after the other differed by up to 45 % here, though both were filled in the same way.
    """
    taken: dict[str, list[Sample]] = {"plain": [], "ours": []}
    with _memory(nbytes) as plain, _memory(nbytes) as ours:
        actions: dict[str, Callable[[int, int], object]] = {
            "plain": lambda start, length: population.advise_populate(plain + start, length),
            "ours": lambda start, length: population.populate(ours, [(start, length)], length, threads=threads),
        }
        for turn, start in enumerate(range(0, nbytes, TURN_BYTES)):
            for name in list(actions)[:: 1 if turn % 2 else -1]:
                taken[name].append(_timed(partial(actions[name], start, min(TURN_BYTES, nbytes - start))))
    return {name: _sum(samples) for name, samples in taken.items()}


def _sum(samples: list[Sample]) -> Sample:
    return Sample(
        samples[0].start_ns,
        sum(sample.wall_ns for sample in samples),
        sum(sample.cpu_ns for sample in samples),
        any(sample.disturbed for sample in samples),
    )


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
