"""The writer is killed at each step, or has no memory left: readers get the right bytes or a miss, and puts say why not."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cache_support import PAGE
from support import WATCHDOG_S, python

from arena import ObjectCache
from arena.errors import CacheMiss

WRITER = f"""
import base64, pickle, signal, sys
import torch
from arena import ObjectCache
from arena.shm.native import lib

def tell(*what):
    print(base64.b64encode(pickle.dumps(what)).decode(), flush=True)

def pages(count, value):
    return torch.full((count * {PAGE} - 512,), value, dtype=torch.uint8)

cache = ObjectCache(4 * {PAGE}, 1)
handles = [cache.put("held", pages(2, 1)), cache.put("idle", pages(2, 2))]
tell(cache.export_handle(), handles)
sys.stdin.readline()
lib.arena_steps_arm(int(sys.argv[1]), signal.SIGKILL)
handle = cache.put("new", pages(2, 3))  # evicts what is idle
taken = lib.arena_steps_taken()
lib.arena_steps_arm(-1, 0)
tell(handle, taken)
sys.stdin.readline()
"""


@contextmanager
def writer_dying_at(step: int) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WRITER, str(step)], stdin=pipe, stdout=pipe, text=True) as writer:
        try:
            yield writer
        finally:
            writer.kill()


def told(writer: subprocess.Popen[str]) -> Any:
    """What the writer says next; None if it has died."""
    assert writer.stdout is not None
    line = writer.stdout.readline()
    return pickle.loads(base64.b64decode(line)) if line else None


def go_on(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin is not None
    writer.stdin.write("\n")
    writer.stdin.flush()


def steps_of_a_put() -> int:
    with writer_dying_at(-1) as writer:
        address, [held, _] = told(writer)
        with ObjectCache.attach(address, 0) as reader:
            view = reader.get(held)
            go_on(writer)
            steps: int = told(writer)[1]
            del view
    return steps


@pytest.mark.deep
def test_killed_at_every_step_of_a_put_that_evicts() -> None:
    steps = steps_of_a_put()
    assert steps > 10
    outcomes = set()
    for step in range(steps):
        with writer_dying_at(step) as writer:
            address, handles = told(writer)
            with ObjectCache.attach(address, 0) as reader:
                view: Any = reader.get(handles[0])
                go_on(writer)
                assert told(writer) is None
                writer.wait(WATCHDOG_S)
                assert (view == 1).all()
                assert (reader.get(handles[0]) == 1).all()  # type: ignore[attr-defined]
                try:
                    assert (reader.get(handles[1]) == 2).all()  # type: ignore[attr-defined]
                    outcomes.add("there")
                except CacheMiss:
                    outcomes.add("gone")
                del view
    assert outcomes == {"there", "gone"}


def test_no_memory_behind_the_capacity() -> None:
    """The kernel refuses pages from some size on, as a full container does: a put says so, and smaller ones go on."""
    program = f"""
import resource, signal
import torch
from arena import ObjectCache, Uncached
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with ObjectCache(1024 * {PAGE}, 1, max_objects=16) as cache:
    control_bytes = cache.export_handle().segment.layout.control_bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (control_bytes + 8 * {PAGE}, resource.RLIM_INFINITY))
    small = cache.put("small", torch.ones({PAGE}))
    assert small, small
    large = cache.put("large", torch.ones(16 * {PAGE}))
    assert large == Uncached("no_memory", large.nbytes), large
    assert cache.statistics().bytes_in_use == 5 * {PAGE}
    assert dict(cache.statistics().uncached_total) == {{"no_memory": 1}}
    assert cache.put("other", torch.ones({PAGE} // 2))
    assert (cache.get(small) == 1).all()
"""
    done = python(program)
    assert done.returncode == 0, done.stderr
