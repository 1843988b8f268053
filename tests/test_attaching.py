"""Processes that attach, and go again as they like: the segment is its creator's and everybody else's."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch
from support import WATCHDOG_S, python

from arena import ArenaConfig, Handle, MessageQueue

BACKINGS = pytest.mark.parametrize("backing", ["memfd", "shm"])


def config(backing: str) -> ArenaConfig:
    return ArenaConfig(capacity_bytes=1 << 20, slots=4, divert_bytes=4096, backing=backing)  # type: ignore[arg-type]


def attached(handle: Handle, rank: int, then: str = "") -> Any:
    """A process of another family attaches, does something, and ends without a shutdown."""
    return python(
        f"""
import pickle
from arena import MessageQueue
queue = MessageQueue.create_from_handle(pickle.loads({pickle.dumps(handle)!r}), {rank})
print("attached")
{then}
"""
    )


@BACKINGS
def test_an_attached_process_that_exits_unlinks_nothing(backing: str) -> None:
    """No resource tracker of any process knows the segment: none removes it, and none warns of it."""
    with MessageQueue(1, 1, arena=config(backing), max_chunk_bytes=4096) as writer:
        handle = writer.export_handle()
        for _ in range(2):
            done = attached(handle, 0)
            assert (done.returncode, done.stdout, done.stderr) == (0, "attached\n", "")
            writer.reap()
        with MessageQueue.create_from_handle(handle, 0) as reader:
            writer.wait_until_ready(WATCHDOG_S)
            writer.enqueue(torch.arange(10_000))
            assert torch.equal(reader.dequeue(WATCHDOG_S), torch.arange(10_000))  # type: ignore[arg-type]


@BACKINGS
def test_a_reader_that_comes_and_goes_leaves_the_segment_to_the_others(backing: str) -> None:
    """One is done before the other starts; the handle, pickled twice, opens for both, and for the first again."""
    with MessageQueue(2, 2, arena=config(backing), max_chunk_bytes=4096) as writer:
        first, second = (pickle.loads(pickle.dumps(writer.export_handle())) for _ in range(2))
        assert attached(first, 0, "queue.shutdown()").returncode == 0
        writer.reap()
        with MessageQueue.create_from_handle(second, 1) as late, MessageQueue.create_from_handle(first, 0) as again:
            writer.wait_until_ready(WATCHDOG_S)
            writer.enqueue(torch.arange(10_000))
            for reader in (late, again):
                assert torch.equal(reader.dequeue(WATCHDOG_S), torch.arange(10_000))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["Exception", "SystemExit", "KeyboardInterrupt"])
def test_an_error_in_a_worker_is_the_last_word_on_stderr(kind: str) -> None:
    """Whatever ends it between attach and close: no warning of leaked memory stands behind the error."""
    with MessageQueue(1, 1, arena=config("memfd"), max_chunk_bytes=4096) as writer:
        done = attached(writer.export_handle(), 0, f"raise {kind}('the true error')")
        assert done.returncode != 0
        last = done.stderr.rstrip().splitlines()[-1]
        assert last == ("the true error" if kind == "SystemExit" else f"{kind}: the true error")
        assert "leaked" not in done.stderr
        writer.reap()


def said_by_a_reader(writer: MessageQueue, *prefix: str, before: str = "") -> str:
    """What a reader in a process that begins like that has received, or why it cannot attach."""
    program = f"""
import os, pickle
from arena import MessageQueue
from arena.errors import AttachError
{before}
try:
    with MessageQueue.create_from_handle(pickle.loads({pickle.dumps(writer.export_handle())!r}), 0) as reader:
        print(reader.dequeue(60), end="")
except AttachError as error:
    print(error, end="")
"""
    command = [*prefix, sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not writer.statistics().messages_total:
            with suppress(TimeoutError):
                writer.enqueue(b"a" * 5000, timeout=0.1)  # beside the ring: it takes the socket as well
        said, errors = process.communicate(timeout=WATCHDOG_S)
    if "unshare" in errors:
        pytest.skip(f"no new PID namespace here: {errors.strip()}")
    assert errors == ""
    return said


@BACKINGS
def test_a_reader_of_another_pid_namespace(backing: str) -> None:
    with MessageQueue(1, arena=config(backing), max_chunk_bytes=1024) as writer:
        said = said_by_a_reader(writer, "unshare", "--pid", "--fork", "--kill-child")
        if backing == "shm":
            assert said == str(b"a" * 5000)
        else:
            assert re.search(r"belongs to another PID namespace.*create it with backing='shm' and share /dev/shm", said)


@BACKINGS
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_reader_of_another_user(backing: str) -> None:
    """The way out that is named is not the one that was taken already."""
    with MessageQueue(1, arena=config(backing), max_chunk_bytes=1024) as writer:
        said = said_by_a_reader(writer, before="os.setuid(65534)")
        assert re.search(r"Permission denied: only the same user can open it.*run as .* user", said)
        assert ("backing='shm'" in said) == (backing == "memfd")
