"""Forks at any time (cases 13, 40), also while another thread is at work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import SMALL, in_thread, python, queue_of, wait_until

from arena import MessageQueue, ObjectCache
from arena.errors import ForkedError
from arena.shm.descriptors import close_kept, open_kept

MB = 1 << 20


def in_child(work: Callable[[], None]) -> int:
    """Forks and has the child work; its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(99)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("end", ["writer", "reader"])
def test_a_forked_child_changes_nothing(end: str) -> None:
    """Use raises; drops, collection and the end of the child release nothing of the parent's."""
    with queue_of(1) as (writer, (reader,)):
        writer.enqueue(torch.ones(MB, dtype=torch.uint8))
        held = [reader.dequeue(5)]
        free = writer.statistics().slots_free
        queue = writer if end == "writer" else reader

        def use_and_drop() -> None:
            for call in (lambda: queue.shutdown(), held.clear):
                call()
            uses: tuple[tuple[str, tuple[Any, ...]], ...] = (("enqueue", ("x",)), ("dequeue", (0.1,)), ("statistics", ()))
            for name, arguments in uses:
                try:
                    getattr(queue, name)(*arguments)
                except (ForkedError, ValueError):
                    continue
                raise AssertionError(name)

        assert in_child(use_and_drop) == 0
        assert writer.statistics().slots_free == free
        assert int(held[0].sum()) == MB
        writer.enqueue("the parent goes on")
        assert reader.dequeue(5) == "the parent goes on"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_an_application_that_closes_what_is_not_its_own(tmp_path: Path) -> None:
    """Its own file by that number stays open, in child and parent; the child has none of ours."""
    names = [tmp_path / name for name in ("gone", "taken", "kept", "own")]
    for name in names:
        name.touch()
    gone, taken, kept = (open_kept(partial(os.open, name, os.O_RDONLY)) for name in names[:3])
    other = os.open(names[3], os.O_RDONLY)
    try:
        os.dup2(other, taken)
        os.close(gone)

        def look() -> None:
            assert os.fstat(taken).st_ino == names[3].stat().st_ino
            assert not any(Path(f"/proc/self/fd/{fd}").exists() for fd in (gone, kept))
            in_thread(lambda: close_kept(kept))()

        assert in_child(look) == 0
        for fd in (gone, taken, kept):
            close_kept(fd)
        assert os.fstat(taken).st_ino == names[3].stat().st_ino
    finally:
        os.close(other)
        os.close(taken)


def test_children_that_exit_as_interpreters_do() -> None:
    """sys.exit runs the finalizers in the child, exec keeps no descriptor: the parent's queue stays whole."""
    done = python(
        """
import os, sys, torch, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from arena import MessageQueue
writer = MessageQueue(1, 1)
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
writer.wait_until_ready(30)
writer.enqueue(torch.ones(1 << 20, dtype=torch.uint8))
held = reader.dequeue(5)
for how in ("exit", "exec", "drop"):
    pid = os.fork()
    if pid == 0:
        warnings.simplefilter("ignore", ResourceWarning)  # pyzmq's, of sockets that a child must not close
        if how == "exec":
            os.execv("/bin/true", ["true"])
        if how == "drop":
            del held, reader, writer
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, how
    assert writer.statistics().slots_free == writer.statistics().slots_total - 1
    writer.enqueue(how)
    assert reader.dequeue(5) == how
assert int(held.sum()) == 1 << 20
""",
        warnings="ignore::ResourceWarning",  # pyzmq's, of sockets that a child inherits and must not close
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_may_join_on_its_own() -> None:
    with MessageQueue(2, 2, arena=SMALL) as writer:
        reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
        handle = writer.export_handle()
        pid = os.fork()
        if pid == 0:
            try:
                own = MessageQueue.create_from_handle(handle, 1)
                right = int(own.dequeue(30).numpy().sum()) == MB  # type: ignore[attr-defined] # torch's threads are gone here
                own.shutdown()
                os._exit(0 if right else 1)
            except BaseException:
                os._exit(99)
        writer.wait_until_ready(30)
        writer.enqueue(torch.ones(MB, dtype=torch.uint8))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        reader.shutdown()
        wait_until(lambda: writer.reap() == 0 and writer.statistics().slots_free == SMALL.slots, "all slots free")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_while_other_threads_are_inside_calls() -> None:
    """The child inherits locks in whatever state they are: it is told so at once, and waits for none of them."""
    with queue_of(1) as (writer, (reader,)):
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                writer.enqueue(torch.ones(8192, dtype=torch.uint8), timeout=30)
            writer.enqueue("end", timeout=30)

        def read() -> None:
            while not isinstance(reader.dequeue(30), str):
                pass

        def use() -> None:
            calls: list[Callable[[], Any]] = [
                lambda: writer.enqueue(1), lambda: reader.dequeue(), writer.statistics, writer.reap, writer.wait_until_ready,
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(ForkedError):
                    call()
            writer.shutdown()
            reader.shutdown()

        ends = [in_thread(write), in_thread(read)]
        for _ in range(5):
            assert in_child(use) == 0
        over.set()
        for end in ends:
            end()
        assert writer.statistics().slots_free == SMALL.slots


def test_a_forked_child_keeps_no_descriptor_of_the_memory() -> None:
    with MessageQueue(1, 1) as writer:
        path = f"/proc/self/fd/{writer._end.segment.fd}"
        target = os.readlink(path)

        def look() -> None:
            assert not os.path.exists(path) or os.readlink(path) != target

        assert in_child(look) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_cache_in_a_forked_child_raises_while_another_thread_has_its_locks() -> None:
    with ObjectCache(1 << 20, 0) as cache, queue_of(1) as (writer, _):
        handle = cache.put("key", 1)
        uses: list[Callable[[], Any]] = [
            lambda: cache.get_handle("key"), lambda: cache.hold("key"), lambda: cache.release("key"),
            lambda: cache.touch(["key"]), lambda: cache.contains("key"), lambda: len(cache),
            lambda: cache.get(handle), lambda: cache.put("key", 2), cache.statistics, writer.object_cache,
        ]  # fmt: skip
        locked, done = threading.Event(), threading.Event()

        def keep_locks() -> None:
            with cache._lock, cache._end._closing:
                locked.set()
                done.wait(60)

        def use() -> None:
            signal.alarm(10)
            for call in uses:
                with pytest.raises(ForkedError):
                    call()

        keeper = in_thread(keep_locks)
        try:
            assert locked.wait(60)
            assert in_child(use) == 0
        finally:
            done.set()
            keeper()
