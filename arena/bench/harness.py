"""Measuring on a machine that is never quite quiet.

What is compared is measured in turns within one run, and only the ratio is judged. A sample during which the kernel
took the processor away (`ru_nivcsw` of the thread) is dropped, its partner of the same round with it, and rounds are
added until enough are left. A ratio is the median of the rounds' ratios; next to it stand the quartiles.

If the machine is too busy for that, the figure says so and is made in another way: where all the work is the
measuring thread's, from processor times; otherwise from the shortest time of each, because foreign load only ever
adds.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

CLEAN_MIN = 7
ROUNDS_MORE = 1
"""How many times the wanted rounds may be added in search of clean ones."""


@dataclass(frozen=True)
class Sample:
    """One measured action: its start, wall time and thread's processor time; whether the kernel interrupted it."""

    start_ns: int
    wall_ns: int
    cpu_ns: int
    disturbed: bool

    def until(self, end_ns: int) -> Sample:
        """The same with a later end, which another process has told."""
        return replace(self, wall_ns=end_ns - self.start_ns, cpu_ns=0)


@dataclass(frozen=True)
class Figure:
    """One line of the report; without a limit it is only told."""

    name: str
    value: float
    unit: str
    limit: float | None
    low: float
    high: float
    samples: int
    note: str = ""
    is_judged: bool = True

    @property
    def verdict(self) -> str:
        """Whether the value is within its limit."""
        if self.limit is None:
            return ""
        if not self.is_judged:
            return "not judged"
        return "met" if self.value <= self.limit else "over"

    def as_json(self) -> dict[str, object]:
        """All fields and the verdict."""
        return {**asdict(self), "verdict": self.verdict}


def timed(action: Callable[[], object]) -> Sample:
    """Run `action` once."""
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    cpu_ns, start_ns = time.thread_time_ns(), time.monotonic_ns()
    action()
    end_ns = time.monotonic_ns()
    cpu_ns = time.thread_time_ns() - cpu_ns
    disturbed = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw > switches
    return Sample(start_ns, end_ns - start_ns, cpu_ns, disturbed)


def interleaved(
    measurements: Sequence[Callable[[], Mapping[str, Sample]]], rounds: int, warm_up: int = 2
) -> dict[str, list[Sample]]:
    """Take all measurements in every round, in alternating order; the first rounds are thrown away."""
    taken: list[dict[str, Sample]] = []
    with collector_off():
        for number in range(warm_up + rounds * (1 + ROUNDS_MORE)):
            in_turn = measurements if number % 2 else measurements[::-1]
            one = {name: sample for measure in in_turn for name, sample in measure().items()}
            if number >= warm_up:
                taken.append(one)
            if len(taken) >= rounds and sum(map(_is_clean, taken)) >= min(CLEAN_MIN, rounds):
                break
    return {name: [one[name] for one in taken] for name in taken[0]}


def _is_clean(samples: Mapping[str, Sample]) -> bool:
    return not any(sample.disturbed for sample in samples.values())


@contextmanager
def collector_off() -> Iterator[None]:
    """Without Python's garbage collector, after one collection."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def ratio(
    name: str, measured: Sequence[Sample], peer: Sequence[Sample], limit: float | None, *, one_thread: bool = False
) -> Figure:
    """Median of the clean rounds' ratios of wall times, or what stands in for it if there are too few."""
    pairs = list(zip(measured, peer, strict=True))
    clean = [a.wall_ns / b.wall_ns for a, b in pairs if not (a.disturbed or b.disturbed)]
    if len(clean) >= min(CLEAN_MIN, len(pairs)):
        return figure(name, clean, "x", limit)
    if one_thread:
        return figure(name, [a.cpu_ns / b.cpu_ns for a, b in pairs], "x", limit, "processor time")
    spread = figure(name, [a.wall_ns / b.wall_ns for a, b in pairs], "x", limit, "least of each")
    return replace(spread, value=min(a.wall_ns for a in measured) / min(b.wall_ns for b in peer))


def figure(name: str, values: Sequence[float], unit: str, limit: float | None, note: str = "") -> Figure:
    """The median of `values`, and their quartiles."""
    if len(values) == 1:
        return Figure(name, values[0], unit, limit, values[0], values[0], 1, note)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Figure(name, middle, unit, limit, low, high, len(values), note)


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    import torch

    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
