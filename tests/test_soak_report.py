"""What a soak calls flat, and what it does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import python

from fuzz.session import Failure, Session
from fuzz.soak_report import Sample, growth, judge

N = 300


def samples_of(change: Callable[[Sample], Sample], seed: int) -> list[Sample]:
    """A run of a noisy machine: one sample in ten is far off."""
    rng = random.Random(seed)

    def one(i: int) -> Sample:
        noise = rng.uniform(0.9, 1.1) * (1 if rng.random() < 0.9 else rng.uniform(0.1, 3))
        own_mib = 100 + 5 * min(1.0, i / 20) + rng.uniform(-0.1, 0.1)
        return change(Sample(i / 2, 900 * noise, 300 / noise, own_mib, own_mib, 800, 0.5, 20, 24, i))

    return [one(i) for i in range(N)]


def test_noise_and_a_warm_up_are_flat(seed: int) -> None:
    session = Session(seed)
    judge(session, samples_of(lambda sample: sample, seed))
    assert session.counts["percent of its processor time per message"] > 50


FAULTS: dict[str, tuple[Callable[[Sample], Sample], str]] = {
    "a leak in the writer": (lambda s: replace(s, writer_mib=s.writer_mib + s.seconds / 10), "writer's own memory grew"),
    "a leak in a reader": (lambda s: replace(s, reader_mib=s.reader_mib + s.seconds / 10), "reader's own memory grew"),
    "lost descriptors": (lambda s: replace(s, descriptors=24 + int(s.seconds) // 10), "descriptors more"),
    "falling throughput": (lambda s: replace(s, messages_per_s=s.messages_per_s / (1 + s.seconds**2)), "throughput fell"),
    "rising cost": (lambda s: replace(s, writer_us=s.writer_us * (1 + s.seconds / 50)), "processor time per message rose"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_not_flat_with(fault: str, seed: int) -> None:
    change, text = FAULTS[fault]
    with pytest.raises(Failure, match=text):
        judge(Session(seed), samples_of(change, seed))


def test_growth_is_that_of_most_values() -> None:
    values = [2.0 * i for i in range(100)]
    values[::5] = [1e6] * 20
    assert growth([float(i) for i in range(100)], values) == pytest.approx(198)


def test_a_table_and_a_plot(tmp_path: Path) -> None:
    """In an interpreter of its own: matplotlib keeps its fonts open."""
    done = python(
        f"""
from fuzz.soak_report import Sample, show
show([Sample(i / 2, 900, 300, 100, 100, 800, 0.5, 20, 24, i) for i in range(300)], {str(tmp_path)!r})
"""
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) > 10
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
