"""What every test gets: a printed seed, a watchdog (pytest-timeout), and a check that nothing of ours is left."""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import numpy
import pytest
import torch
import zmq
from hypothesis import settings
from offload_support import fresh_id, what_is_left

from arena.shm.native import lib

SETTLE_S = 5.0
"""How long a process that was just ended, or a ZMQ thread, may take to go."""


settings.register_profile("untimed", deadline=None)  # how long an example takes is no property of the code
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of everything random; printed at the start")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seed") is None:
        config.option.seed = random.SystemRandom().randrange(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')} (repeat with --seed)"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, already given to random, numpy and torch."""
    value: int = request.config.getoption("--seed")
    return value


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


@dataclass(frozen=True)
class Belongings:
    """What this process and the file systems have of ours."""

    children: frozenset[int]
    descriptors: frozenset[tuple[int, str]]
    threads: int
    names: frozenset[str]
    mappings: int
    grants: int

    @staticmethod
    def now() -> Belongings:
        gc.collect()
        counts = lib.arena_maps_live(), lib.arena_grants_live()
        return Belongings(_children(), _descriptors(), threading.active_count(), _names(), *counts)

    def left_over(self, before: Belongings) -> str:
        parts = []
        for what in ("children", "descriptors", "names"):
            extra = getattr(self, what) - getattr(before, what)
            if extra:
                parts.append(f"{what} {sorted(extra)}")
        parts += [
            f"{what} {getattr(self, what) - getattr(before, what)}"
            for what in ("threads", "mappings", "grants")
            if getattr(self, what) > getattr(before, what)
        ]
        return ", ".join(parts)


def _children() -> frozenset[int]:
    """Child processes, without multiprocessing's own servants, which live as long as the interpreter."""
    servants = {getattr(resource_tracker._resource_tracker, "_pid", None)}
    forkserver = sys.modules.get("multiprocessing.forkserver")
    if forkserver is not None:
        servants.add(forkserver._forkserver._forkserver_pid)
    pids: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            pids.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return frozenset(pids - servants)


def _descriptors() -> frozenset[tuple[int, str]]:
    servants = {getattr(resource_tracker._resource_tracker, "_fd", None)}
    forkserver = sys.modules.get("multiprocessing.forkserver")
    if forkserver is not None:
        servants.add(forkserver._forkserver._forkserver_alive_fd)
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if int(name) not in servants and not target.startswith("/proc/"):
            found.add((int(name), target))
    return frozenset(found)


def _names() -> frozenset[str]:
    """In the run's own temporary directory, and under /dev/shm of processes that are ours or gone."""
    segments = (path for path in Path("/dev/shm").glob("arena-*-*") if _is_ours(path))
    return frozenset(map(str, [*Path(tempfile.gettempdir()).glob("arena-*"), *segments]))


def _is_ours(path: Path) -> bool:
    pid = path.name.split("-")[1]
    return pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}")


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory() -> Iterator[None]:
    """Runs side by side do not see one another's files; child processes inherit it."""
    multiprocessing.util.get_temp_dir()  # its own is made first, elsewhere: it is removed after this one
    directory = tempfile.mkdtemp(prefix="at-")  # short: a socket's path has 108 bytes
    before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), directory
    tempfile.tempdir = None
    yield
    shutil.rmtree(directory)
    tempfile.tempdir = None
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before


@pytest.fixture(scope="session", autouse=True)
def _frozen_imports() -> None:
    """What the imports left is never garbage: looking through it twice per test would take most of the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _started_servants() -> None:
    """The first large message that pyzmq does not copy starts a thread and a context of its own, for good."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://servants")
        other.connect("inproc://servants")
        one.send(bytes(1 << 20), copy=False)
        other.recv()


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """After each test no process, segment, file, descriptor, thread, mapping or lease of ours is left."""
    before = Belongings.now()
    yield
    deadline = time.monotonic() + SETTLE_S
    while (left := Belongings.now().left_over(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"left behind: {left}"


@pytest.fixture
def engine_id() -> Iterator[str]:
    """A name for an offload region, of this test's own, gone at its end."""
    name = fresh_id()
    yield name
    assert what_is_left(name) == []
