"""What killed processes leave is found and removed; what somebody has is not, in whatever PID namespace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import WATCHDOG_S, wait_until

from arena import ArenaConfig, MessageQueue
from arena.shm import leftovers, names
from arena.tools import gc

SHM = Path("/dev/shm")

WRITER = """
import sys, time
from arena import ArenaConfig, MessageQueue, SharedOffloadRegion
queue = MessageQueue(2, 2, max_chunk_bytes=4096, arena=ArenaConfig(capacity_bytes=1 << 20, slots=4, backing="shm"))
region = SharedOffloadRegion(sys.argv[1], 4, 0, 4096, 4096, backing="shm")
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def process(engine_id: str, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A writer that no reader has joined, and a region: both have names."""
    command = [*before, sys.executable, "-W", "error", "-c", WRITER, engine_id]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        if child.stdout.readline() != "ready\n":
            pytest.skip(f"no process here: {child.stderr.read().strip()}")
        yield child
    finally:
        child.kill()
        child.communicate(timeout=WATCHDOG_S)


def found(engine_id: str, pid: int, *, remove: bool) -> list[str]:
    """What of this test is nobody's."""
    all_found = leftovers.collect(remove=remove, places=(SHM,))
    ours = [each for each in all_found if each.path.name.startswith(f"arena-{pid}-") or engine_id in each.path.name]
    assert all(each.nbytes >= 0 for each in ours)
    return sorted(each.what for each in ours)


def names_of(engine_id: str, pid: int) -> list[str]:
    return sorted(str(path) for path in [*SHM.glob(f"arena-{pid}-*"), *SHM.glob(f"arena-*/offload-{engine_id}*")])


EVERYTHING = ["offload region", "segment", "socket"]


@pytest.fixture
def engine_id() -> str:
    return f"leftovers-{os.getpid()}"


def test_what_a_killed_writer_left_is_removed_and_a_living_one_keeps_its_names(engine_id: str) -> None:
    with process(engine_id) as child:
        assert len(names_of(engine_id, child.pid)) == 4  # the region has an entry and its memory
        assert found(engine_id, child.pid, remove=True) == []
        os.kill(child.pid, signal.SIGSTOP)
        assert found(engine_id, child.pid, remove=True) == []
        assert len(names_of(engine_id, child.pid)) == 4
        os.kill(child.pid, signal.SIGKILL)
        child.wait(WATCHDOG_S)
        assert found(engine_id, child.pid, remove=False) == EVERYTHING
        assert len(names_of(engine_id, child.pid)) == 4
        assert found(engine_id, child.pid, remove=True) == EVERYTHING
        assert names_of(engine_id, child.pid) == []
        assert found(engine_id, child.pid, remove=True) == []


def test_a_pid_that_means_another_process_here_proves_nothing(engine_id: str) -> None:
    """In its own PID namespace the writer is process 1, which lives here, too: its locks say whether it does there."""
    with process(engine_id, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc") as child:
        assert len(names_of(engine_id, 1)) == 4
        assert found(engine_id, 1, remove=True) == []
        child.kill()
        child.wait(WATCHDOG_S)
        wait_until(lambda: found(engine_id, 1, remove=False) == EVERYTHING, "its death")
        assert found(engine_id, 1, remove=True) == EVERYTHING
        assert names_of(engine_id, 1) == []


def test_nobody_elses_files_are_touched(tmp_path: Path) -> None:
    """What only looks like ours, is a link, or cannot be opened."""
    (tmp_path / "arena-1-fifo").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "arena-2-fifo")
    (tmp_path / "arena").touch()
    (tmp_path / "other-1-x").touch()
    before = sorted(tmp_path.iterdir())
    assert leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path, tmp_path / "none")) == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_that_is_taken_for_a_dead_ones_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep comes between the making and the lock."""
    real = names._lock
    swept: list[list[leftovers.Leftover]] = []

    def sweep_first(path: str, fd: int) -> bool:
        if not swept:
            swept.append(leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path,)))
        return real(path, fd)

    monkeypatch.setattr(names, "_lock", sweep_first)
    for make in (lambda: names.new_file(str(tmp_path), "x"), lambda: names.new_directory(str(tmp_path))):
        swept.clear()
        path, fd = make()
        assert [str(each.path) for each in swept[0]] == [path]
        assert names.is_at(path, fd)
        assert leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path,)) == []
        names.close_kept(fd)
        assert [str(each.path) for each in leftovers.collect(remove=True, places=(tmp_path,), entries=tmp_path)] == [path]


def test_the_command_lists_and_removes(engine_id: str) -> None:
    with process(engine_id) as child:
        child.kill()
        child.wait(WATCHDOG_S)
        listed = CliRunner().invoke(gc.command, ["--dry-run", "--json"])
        assert listed.exit_code == 0
        answer = json.loads(listed.output)
        assert answer["removed"] is False
        assert {each["path"] for each in answer["leftovers"]} >= {str(p) for p in SHM.glob(f"arena-{child.pid}-*")} != set()
        removed = CliRunner().invoke(gc.command, [])
        assert removed.exit_code == 0
        assert f"arena-{child.pid}-" in removed.output
        assert "removed, " in removed.output
        assert names_of(engine_id, child.pid) == []


def test_a_start_sweeps_nothing_by_itself(engine_id: str) -> None:
    """What others have left is theirs to look at, until somebody says so."""
    with process(engine_id) as child:
        child.kill()
        child.wait(WATCHDOG_S)
        left = names_of(engine_id, child.pid)
        with MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=4, backing="shm")):
            assert names_of(engine_id, child.pid) == left != []
        assert found(engine_id, child.pid, remove=True) == EVERYTHING
