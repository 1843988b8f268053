"""A soak over time: a table, a plot, and whether it was flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import numpy

from fuzz.session import Session, expect

WARM_UP = 0.2
"""The share of a run in which memory may still grow: heaps and the interpreter's caches fill up."""

GROWTH_MAX_MIB = 8.0
"""Of one process over the whole run."""

CPU_FACTOR_MAX = 1.6
THROUGHPUT_FACTOR_MAX = 3.0
"""The machine is shared: what others do shows in the throughput, and hardly in the processor time per message."""

THIRD_MIN = 20
"""Samples in a third of a run below which their medians say nothing."""

POINTS_MAX = 400


@dataclass
class Sample:
    """The soak at one moment; ``writer`` and ``reader`` are those that live through the whole run.

    Attributes:
        seconds: since the start.
        messages_per_s: of the writer, by its own clock.
        writer_us: processor time of the writer per message.
        writer_mib: its own memory.
        reader_mib: the reader's own memory.
        others_mib: own memory of all other writers and readers.
        arena_mib: in use.
        slots_busy: in the writer's arena.
        descriptors: of the writer.
        kills: so far, of readers and writers.
    """

    seconds: float
    messages_per_s: float
    writer_us: float
    writer_mib: float
    reader_mib: float
    others_mib: float
    arena_mib: float
    slots_busy: int
    descriptors: int
    kills: int


def show(samples: Sequence[Sample], output: str | None) -> None:
    """A table of ten lines, and ``soak.png`` in the directory that is named."""
    from rich.console import Console
    from rich.table import Column, Table

    heads = [Column(field.name.replace("_", " "), justify="right", overflow="fold") for field in fields(Sample)]
    table = Table(*heads, box=None)
    for sample in [*samples[: -1 : -(-len(samples) // 9)], samples[-1]]:
        table.add_row(*[f"{value:.1f}" if isinstance(value, float) else str(value) for value in astuple(sample)])
    Console(stderr=True).print(table)
    if output is not None:
        _plot(samples, Path(output) / "soak.png")


def _plot(samples: Sequence[Sample], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(5, 1, sharex=True, figsize=(8, 11))
    seconds = [sample.seconds for sample in samples]
    for axis, names, unit in (
        (axes[0], ("messages_per_s",), "messages/s"),
        (axes[1], ("writer_us",), "us per message"),
        (axes[2], ("writer_mib", "reader_mib", "others_mib", "arena_mib"), "MiB"),
        (axes[3], ("slots_busy", "descriptors"), ""),
        (axes[4], ("kills",), "kills"),
    ):
        for name in names:
            axis.plot(seconds, [getattr(sample, name) for sample in samples], label=name.replace("_", " "))
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower right")
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)


def judge(session: Session, samples: Sequence[Sample]) -> None:
    """Memory and descriptors must be flat after the warm-up; so must throughput and processor time in a run of a minute.

    Raises:
        Failure: one of them is not.
    """
    steady = samples[int(WARM_UP * len(samples)) :]
    third = max(1, len(steady) // 3)
    first, last = steady[:third], steady[-third:]
    for who in ("writer", "reader"):
        grown_mib = growth([s.seconds for s in steady], [getattr(s, f"{who}_mib") for s in steady])
        session.count(f"KiB that the {who} grew by", round(1024 * grown_mib))
        expect(grown_mib < GROWTH_MAX_MIB, f"the {who}'s own memory grew by {grown_mib:.1f} MiB")
    more = median(s.descriptors for s in last) - median(s.descriptors for s in first)
    expect(more <= 4, f"the writer has {more} descriptors more")
    if third < THIRD_MIN:
        return
    throughput = median(s.messages_per_s for s in last) / median(s.messages_per_s for s in first)
    cpu = median(s.writer_us for s in last) / median(s.writer_us for s in first)
    session.count("percent of the first third's throughput in the last", round(100 * throughput))
    session.count("percent of its processor time per message", round(100 * cpu))
    expect(throughput > 1 / THROUGHPUT_FACTOR_MAX, f"throughput fell to {100 * throughput:.0f} percent")
    expect(cpu < CPU_FACTOR_MAX, f"the writer's processor time per message rose to {100 * cpu:.0f} percent")


def growth(at: Sequence[float], values: Sequence[float]) -> float:
    """By how much the values grow from the first to the last: the median of the slopes between any two of them.

    That is Theil and Sen's line: a quarter of the values may be anything.
    """
    step = -(-len(at) // POINTS_MAX)
    x, y = numpy.asarray(at[::step]), numpy.asarray(values[::step])
    i, j = numpy.triu_indices(len(x), 1)
    return float(numpy.median((y[j] - y[i]) / (x[j] - x[i])) * (at[-1] - at[0]))
