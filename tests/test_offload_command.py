"""`arena offload populate`: takes a region's pages, shows how far it is, and gives everything back."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import rich.progress
from click.testing import CliRunner
from offload_support import what_is_left

from arena.offload import SharedOffloadRegion
from arena.shm import population
from arena.tools.commands import arena

POPULATE = ["offload", "populate", "--gib", "0.0625"]


def test_it_takes_all_pages_and_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    cleanup = SharedOffloadRegion.cleanup

    def watch(region: SharedOffloadRegion) -> None:
        taken.append(os.fstat(region._use().member.memory_fd).st_blocks * 512)
        cleanup(region)

    monkeypatch.setattr(SharedOffloadRegion, "cleanup", watch)
    shown = CliRunner().invoke(arena, [*POPULATE, "--threads", "2", "--json"])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert [told["bytes"]] == taken == [64 << 20]
    assert told["gib_per_s"] == pytest.approx(0.0625 / told["seconds"])
    assert what_is_left(f"populate-{os.getpid()}") == []


def test_the_bar_goes_from_nothing_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    update = rich.progress.Progress.update

    def watch(self: Any, task: Any, **changes: Any) -> None:
        told.append(changes["completed"])
        update(self, task, **changes)

    monkeypatch.setattr(rich.progress.Progress, "update", watch)
    shown = CliRunner().invoke(arena, POPULATE)
    assert shown.stdout.startswith("0.06 GiB in ")
    assert told == sorted(told)
    assert len(told) > 1
    assert told[-1] == 64 << 20


def test_memory_that_is_not_there_is_one_line_and_ends_with_3() -> None:
    shown = CliRunner().invoke(arena, ["offload", "populate", "--gib", "1e6"])
    assert shown.exit_code == 3
    assert "Error: a region of" in shown.output
    assert "does not fit" in shown.output
    assert what_is_left(f"populate-{os.getpid()}") == []


def test_an_interrupt_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_args: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(population, "populate", interrupt)
    assert CliRunner().invoke(arena, POPULATE).exit_code == 130
    assert what_is_left(f"populate-{os.getpid()}") == []


@pytest.mark.parametrize("options", [["--numa", "fast"], ["--numa", "-1"], ["--gib", "0"], ["--threads", "0"]])
def test_options_that_mean_nothing_are_refused(options: list[str]) -> None:
    assert CliRunner().invoke(arena, [*POPULATE, *options]).exit_code == 2


def test_the_version_is_told() -> None:
    shown = CliRunner().invoke(arena, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, "arena 0.1.0\n")
