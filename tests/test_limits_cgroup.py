"""Real processes in a real memory cgroup that is smaller than what they ask for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import WATCHDOG_S, wait_until

MIB = 1 << 20
LIMIT_BYTES = 512 * MIB  # Python with torch takes 150 of them
ROOT = Path("/sys/fs/cgroup")

Run = Callable[[str], "subprocess.CompletedProcess[str]"]


def own_group() -> tuple[Path, str]:
    """The directory of this process's memory cgroup, and the name of a limit there."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for controllers, path in groups.items():
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
    return ROOT / groups.get("", "").lstrip("/"), "memory.max"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cgroup of that limit below this process's own, for one test."""
    parent, limit_name = own_group()
    path = parent / f"arena-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if not (path / limit_name).exists():
            pytest.skip(f"no memory controller for the children of {parent}: its cgroup.subtree_control does not have it")
        (path / limit_name).write_text(str(LIMIT_BYTES))
        yield path
    finally:
        wait_until(lambda: not (path / "cgroup.procs").read_text(), "its processes have gone")
        with suppress(FileNotFoundError):
            path.rmdir()


@pytest.fixture
def run(group: Path) -> Run:
    def run(program: str) -> subprocess.CompletedProcess[str]:
        enter = f"Path({str(group / 'cgroup.procs')!r}).write_text('0')\n"
        command = [sys.executable, "-W", "error", "-X", "dev", "-c", BEGIN + enter + program]
        return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)

    return run


BEGIN = """
import logging, os, sys
from pathlib import Path
import torch
from arena import ArenaConfig, MessageQueue, ObjectCache, SharedOffloadRegion
from arena.errors import CapacityError
MIB = 1 << 20
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
"""


def test_what_can_never_fit_is_refused_and_what_may_fit_is_one_warning(run: Run, group: Path) -> None:
    done = run("""
def refused(make):
    try:
        make()
    except CapacityError as error:
        print("REFUSED", error)
config = dict(capacity_bytes=1024 * MIB, slots=16)
for prefault in ("eager", "background"):
    refused(lambda: MessageQueue(1, 1, arena=ArenaConfig(prefault=prefault, **config)))
refused(lambda: SharedOffloadRegion(f"limits-cgroup-{os.getpid()}", 1024, 0, MIB, MIB))
with (
    MessageQueue(1, 1, arena=ArenaConfig(**config)) as writer,
    MessageQueue.create_from_handle(writer.export_handle(), 0) as reader,
):
    for value in range(50):
        writer.enqueue(torch.full((8 * MIB,), value, dtype=torch.uint8))
        received = reader.dequeue(60)
        assert bool((received == value).all())
        del received
    print("DIVERTED", writer.statistics().diverted_total)
""")
    assert (done.returncode, done.stderr) == (0, "")
    *refused, warning, diverted = done.stdout.splitlines()
    assert len(refused) == 3
    assert all(line.startswith("REFUSED") and f"memory cgroup {group}" in line for line in refused)
    assert all(f"{LIMIT_BYTES} bytes" in line and "container's memory limit" in line for line in [*refused, warning])
    assert warning.startswith("WARNING a segment of")
    assert diverted == "DIVERTED 50"


@pytest.mark.parametrize("backing", ["memfd", pytest.param("shm", marks=pytest.mark.deep)])
def test_a_group_that_is_full_ends_a_process_by_the_kernels_own_hand_or_none(run: Run, backing: str) -> None:
    """Never by a SIGBUS: a page that cannot be had is the OOM killer's matter, or the buffer travels beside the arena."""
    done = run(f"""
writer = MessageQueue(1, 1, arena=ArenaConfig(1024 * MIB, slots=128, backing={backing!r}))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
held = []
for value in range(100):
    writer.enqueue(torch.full((8 * MIB,), value, dtype=torch.uint8))
    held.append(reader.dequeue(60))
    print(value, flush=True)
assert all(bool((each == value).all()) for value, each in enumerate(held))
for end in (reader, writer):
    end.shutdown()
""")
    warning, *sent = done.stdout.splitlines()
    assert warning.startswith("WARNING a segment of")
    assert len(sent) >= 10, done  # with "shm" the ring takes half of it at once
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert done.stderr == ""
