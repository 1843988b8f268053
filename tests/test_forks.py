"""Forks at any time (cases 13, 40), also while another thread is at work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support import SMALL, in_thread, python, queue_of, wait_until

from arena import CacheHandle, MessageQueue, ObjectCache
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


class Forks:
    """Forks where it is pickled, or where it is unpickled; parent and child go on from there."""

    children: ClassVar[list[int]] = []  # as fork returned them: 0 in the child

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        if self.where == "pickled":
            return int, (_fork(),)
        return _fork, ()


def _fork() -> int:
    Forks.children.append(os.fork())
    return 0


def outcome_in_child(call: Callable[[], Any]) -> type[BaseException] | None:
    """Calls what forks; what the call raised in the child, where nothing may hang.  In the parent it succeeds."""
    Forks.children.clear()
    try:
        signal.alarm(20)
        call()
    except BaseException as error:
        if 0 in Forks.children:
            os._exit(OUTCOMES.index(type(error)) if type(error) in OUTCOMES else 99)
        raise
    finally:
        signal.alarm(0)
    (child,) = Forks.children
    if child == 0:
        os._exit(0)
    return OUTCOMES[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


OUTCOMES: list[type[BaseException] | None] = [None, ForkedError, SystemExit]

AROUND: dict[str, Callable[[], Any]] = {
    "small": lambda: "a few bytes",
    "large": lambda: bytes(100_000),
    "tensor": lambda: torch.ones(100_000, dtype=torch.uint8),
    "gaps": lambda: torch.ones(100_000, 2, dtype=torch.uint8)[:, 0],
    "inline": lambda: bytearray(1000),
}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("max_chunk_bytes", [1024, 1 << 20], ids=["out_of_band", "in_the_ring"])
@pytest.mark.parametrize("around", AROUND)
def test_a_fork_inside_a_message(around: str, max_chunk_bytes: int) -> None:
    """In a reduction, or in the unpickling: the child is told so, and nothing of the parent's changes."""
    make = AROUND[around]
    with queue_of(1, max_chunk_bytes=max_chunk_bytes) as (writer, (reader,)):
        pickled, unpickled = [make(), Forks("pickled"), make()], [make(), Forks("unpickled"), make()]
        assert outcome_in_child(lambda: writer.enqueue(pickled, 10)) is ForkedError
        assert len(reader.dequeue(10)) == 3  # type: ignore[arg-type]
        for _ in range(2):
            writer.enqueue(unpickled, 10)
            assert outcome_in_child(lambda: reader.dequeue(10)) is ForkedError
        assert writer.statistics().slots_free == SMALL.slots
        writer.enqueue("the parent goes on")
        assert reader.dequeue(5) == "the parent goes on"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("around", AROUND)
def test_a_fork_inside_an_object(around: str) -> None:
    make = AROUND[around]
    with queue_of(1) as (writer, (reader,)):
        cache, cache_reader = writer.object_cache(), reader.cache_reader()
        assert outcome_in_child(lambda: cache.put("pickled", [make(), Forks("pickled"), make()])) is ForkedError
        handle = cache.put("unpickled", [make(), Forks("unpickled"), make()])
        assert isinstance(handle, CacheHandle)
        for each in (cache, cache_reader):
            assert outcome_in_child(partial(each.get, handle)) is ForkedError
        assert cache.clear() == 2
        assert writer.statistics().slots_free == SMALL.slots


class ExitsInChild:
    """Forks, and has the child leave."""

    def __reduce__(self) -> Any:
        if _fork() == 0 and Forks.children == [0]:
            raise SystemExit
        return int, ()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_forked_inside_a_reduction_leaves_while_other_threads_have_our_locks() -> None:
    tensor = torch.ones(MB, dtype=torch.uint8)
    with queue_of(1) as (writer, (reader,)):
        locked, done = threading.Event(), threading.Event()

        def keep_locks() -> None:
            with writer._end._closing, writer._end.slots.lock:  # type: ignore[union-attr]
                locked.set()
                done.wait(60)

        class LocksAndForks(ExitsInChild):
            def __reduce__(self) -> Any:
                keeper = in_thread(keep_locks)
                assert locked.wait(60)
                reduced = super().__reduce__()
                done.set()
                keeper()
                return reduced

        assert outcome_in_child(lambda: writer.enqueue([tensor, LocksAndForks()], 10)) is SystemExit
        assert torch.equal(reader.dequeue(10)[0], tensor)  # type: ignore[index]


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
