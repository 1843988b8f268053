"""The benchmark, tiny: that it works, and that the arithmetic of its figures is right. Nothing timed is judged here."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from arena.bench import harness, offload, peers, readers, scenarios
from arena.bench.registry import ALL_SCENARIOS
from arena.errors import CapacityError
from arena.shm import capacity, rendezvous
from arena.tools.commands import arena

BENCH = [sys.executable, "-c", "from arena.tools.cli import main; main()", "bench", "--quick"]


def test_every_scenario_runs_and_gives_figures_with_limits() -> None:
    done = subprocess.run([*BENCH, "--json"], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["quick"]
    assert told["environment"]["cpus"] > 0
    figures = {figure["name"]: figure for figure in told["figures"]}
    assert len(figures) == len(told["figures"]), "names are unique"
    assert all(math.isfinite(figure["value"]) for figure in figures.values())
    limited = [figure for figure in figures.values() if figure["limit"] is not None]
    assert len(limited) >= len(ALL_SCENARIOS)
    assert {figure["verdict"] for figure in limited} == {"not judged"}


def test_markdown_is_one_table() -> None:
    shown = CliRunner().invoke(arena, ["bench", "--quick", "--markdown", "loan"])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == "| figure | value | quartiles | at most |  | samples |"
    assert lines[2].startswith("| publish a loan of 2 MB | ")
    assert {line.count("|") for line in lines[:3]} == {7}


def test_full_takes_the_sizes_of_the_promises_and_says_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (scenarios.FULL.populate_bytes, scenarios.Scale().populate_bytes) == (8 << 30, 1 << 30)
    monkeypatch.setattr(capacity, "available_bytes", lambda: 15 << 30)  # it takes two regions, by turns
    shown = CliRunner().invoke(arena, ["bench", "--full", "offload_populate"])
    assert shown.exit_code == 3
    assert f"a region of {16 << 30} bytes does not fit" in shown.output
    assert CliRunner().invoke(arena, ["bench", "--full", "--quick"]).exit_code == 2


def test_two_formats_at_once_are_a_usage_error() -> None:
    shown = CliRunner().invoke(arena, ["bench", "--quick", "--json", "--markdown", "loan"])
    assert shown.exit_code == 2
    assert "--json and --markdown: one of them" in shown.output


def test_an_unknown_scenario_is_named_with_the_known_ones() -> None:
    shown = CliRunner().invoke(arena, ["bench", "speed"])
    assert shown.exit_code == 2
    assert "no scenario speed; there are enqueue, " in shown.output


def sample(wall_ns: int, disturbed: bool = False) -> harness.Sample:
    return harness.Sample(0, wall_ns, wall_ns, disturbed)


def test_a_disturbed_round_is_dropped_with_its_partner() -> None:
    measured = [sample(20)] * 7 + [sample(900, disturbed=True), sample(20)]
    peer = [sample(10)] * 7 + [sample(10), sample(1, disturbed=True)]
    told = harness.ratio("r", measured, peer, limit=2.0)
    assert (told.value, told.samples, told.note, told.verdict) == (2.0, 7, "", "met")


def test_with_too_few_clean_rounds_the_shortest_times_are_compared_and_the_figure_says_so() -> None:
    measured = [sample(40)] * 6 + [sample(60, disturbed=True), sample(30, disturbed=True)]
    told = harness.ratio("r", measured, [sample(10)] * 7 + [sample(90)], limit=2.0)
    assert (told.value, told.samples, told.note, told.verdict) == (3.0, 8, "least of each", "over")


def test_without_quiet_processor_time_stands_in_for_the_work_of_one_thread() -> None:
    measured = [harness.Sample(0, 900, 30, disturbed=True)] * 3
    told = harness.ratio("r", measured, [sample(10)] * 3, limit=None, one_thread=True)
    assert (told.value, told.note) == (3.0, "processor time")


def test_rounds_are_added_until_enough_are_clean() -> None:
    disturbed = iter([True] * 5 + [False] * 100)
    taken = harness.interleaved([lambda: {"a": sample(1, next(disturbed))}], rounds=4, warm_up=1)
    assert len(taken["a"]) == 8, "4 were disturbed after the warm-up, and 4 are wanted"
    never = harness.interleaved([lambda: {"a": sample(1, disturbed=True)}], rounds=4, warm_up=1)
    assert len(never["a"]) == 4 * (1 + harness.ROUNDS_MORE)


def test_a_ratio_is_taken_round_by_round() -> None:
    measured, peer = [sample(n) for n in (10, 200, 3000, 40, 50)], [sample(n) for n in (10, 100, 1000, 10, 10)]
    assert harness.ratio("r", measured, peer, limit=None).value == 3.0


def test_figure_gives_median_and_quartiles() -> None:
    told = harness.figure("f", [5, 1, 3, 2, 4], "us", None)
    assert (told.low, told.value, told.high, told.verdict) == (2, 3, 4, "")


def test_measurements_alternate_and_warm_up_is_thrown_away() -> None:
    order: list[str] = []

    def measure(name: str) -> dict[str, harness.Sample]:
        order.append(name)
        return {name: sample(len(order))}

    taken = harness.interleaved([lambda: measure("a"), lambda: measure("b")], rounds=3, warm_up=1)
    assert order == list("baabbaab")
    assert [one.wall_ns for one in taken["a"]] == [3, 6, 7]
    assert [one.wall_ns for one in taken["b"]] == [4, 5, 8]


def test_memcpy_peer_copies_and_checks() -> None:
    source = torch.arange(5000, dtype=torch.int32)
    with peers.shared_buffer(20_000, warm=True) as target:
        target.copy_from(source)
        assert bytes(target.view()) == source.numpy().tobytes()
        with pytest.raises(ValueError, match="at most 20000 bytes"):
            target.copy_from(torch.zeros(5001, dtype=torch.int32))


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_afterwards_as_it_was(is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "gc", collector := Collector(is_on))
    with harness.collector_off():
        assert not collector.isenabled()
    assert collector.isenabled() == is_on


class Collector:
    """Stands in for `gc`, whose state is the whole process's."""

    def __init__(self, is_on: bool) -> None:
        self._is_on = is_on

    def isenabled(self) -> bool:
        return self._is_on

    def enable(self) -> None:
        self._is_on = True

    def disable(self) -> None:
        self._is_on = False

    def collect(self) -> None:
        pass


def test_a_reader_leaves_an_interrupt_to_the_bench_from_its_start() -> None:
    """It ignores Ctrl-C once it has imported what tells it to: until then it told of it with a traceback."""
    pool = readers.Pool()
    try:
        pool._grow(1)
        status = Path(f"/proc/{pool.pids(1)[0]}/status").read_text()
    finally:
        pool.close()
    blocked = re.search(r"SigBlk:\s*(\w+)", status)
    assert blocked is not None
    assert int(blocked[1], 16) >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_memory_that_cannot_be_mapped_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int) -> None:
        raise CapacityError("no address space")

    monkeypatch.setattr(rendezvous, "map_memory", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(CapacityError), offload._memory(4096):
        pass
    assert set(os.listdir("/proc/self/fd")) == before
