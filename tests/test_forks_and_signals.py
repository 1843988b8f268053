"""Forks at any time, and signals in the middle of things (cases 9, 10, 40; a fork while another thread is at work)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cut_support import interrupted_at as interrupted_at_place
from support import SMALL, in_thread, may_be_lost, python, queue_of, wait_until

from arena import MessageQueue, ObjectCache
from arena.errors import Cancelled, ForkedError
from arena.shm.native import lib

MB = 1 << 20


def in_child(work: Callable[[], None], leave: Callable[[int], Any]) -> int:
    """Forks, has the child work and leave; returns its wait status as an exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(99)
        leave(0)
        os._exit(98)
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

        assert in_child(use_and_drop, os._exit) == 0
        assert writer.statistics().slots_free == free
        assert int(held[0].sum()) == MB
        writer.enqueue("the parent goes on")
        assert reader.dequeue(5) == "the parent goes on"


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
            assert in_child(use, os._exit) == 0
        over.set()
        for end in ends:
            end()
        assert writer.statistics().slots_free == SMALL.slots


class Interrupted(Exception):
    """Raised by the signal handlers of these tests."""


@pytest.fixture
def interrupting() -> Any:
    """SIGUSR1 raises Interrupted in the main thread."""

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)
    lib.arena_steps_arm(-1, 0)


def test_an_exception_at_every_step_of_enqueue_loses_no_slot(interrupting: Any) -> None:
    """A handler that raises behind any native access: the message is out or it is not, and the next one settles it."""
    with queue_of(1) as (writer, (reader,)):
        message = {"image": torch.ones(MB, dtype=torch.uint8), "gaps": torch.ones(2, MB, dtype=torch.uint8)[:, ::2]}
        lib.arena_steps_arm(-1, 0)
        writer.enqueue(message)
        steps = lib.arena_steps_taken()
        reader.dequeue(5)
        assert steps > 10
        for at in range(steps):
            lib.arena_steps_arm(at, signal.SIGUSR1)
            try:
                writer.enqueue(message, timeout=5)
                lib.arena_steps_arm(-1, 0)
            except Interrupted:
                lib.arena_steps_arm(-1, 0)
            writer.enqueue(at, timeout=5)
            received = reader.dequeue(5)
            while not isinstance(received, int):
                assert int(received["image"].sum()) == MB  # type: ignore[index]
                received = reader.dequeue(5)
            assert received == at
            assert writer.statistics().slots_free == SMALL.slots


def test_an_exception_at_every_step_of_dequeue_loses_no_slot(interrupting: Any) -> None:
    with queue_of(1) as (writer, (reader,)):
        message = torch.ones(MB, dtype=torch.uint8)
        writer.enqueue(message)
        lib.arena_steps_arm(-1, 0)
        reader.dequeue(5)
        for at in range(lib.arena_steps_taken()):
            writer.enqueue(message, timeout=5)
            lib.arena_steps_arm(at, signal.SIGUSR1)
            try:
                reader.dequeue(5)
                lib.arena_steps_arm(-1, 0)  # still inside: the last step's exception comes behind the drop
            except Interrupted:
                lib.arena_steps_arm(-1, 0)
            writer.enqueue(at, timeout=5)
            received = reader.dequeue(5)
            while not isinstance(received, int):
                received = reader.dequeue(5)
            del received
            assert writer.statistics().slots_free == SMALL.slots


def test_a_signal_ends_a_wait_and_the_queue_goes_on(interrupting: Any) -> None:
    with queue_of(1) as (writer, (reader,)):
        main = threading.main_thread().ident
        assert main is not None
        for _ in range(5):
            timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
            timer.start()
            with pytest.raises(Interrupted):
                reader.dequeue(30)
            timer.join()
            writer.enqueue("still here")
            assert reader.dequeue(5) == "still here"


def test_shutdown_from_a_handler_ends_the_call_that_it_interrupts() -> None:
    with queue_of(1) as (_, (reader,)):

        def handler(number: int, frame: object) -> None:
            reader.shutdown()

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            timer = threading.Timer(0.1, signal.raise_signal, (signal.SIGUSR1,))
            timer.start()
            with pytest.raises(Cancelled):
                reader.dequeue()
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_threads_use_one_queue_in_turns() -> None:
    """Writers, a reader, drops, statistics and reaping from threads of their own: each message once and whole."""
    with queue_of(1) as (writer, (reader,)):
        def write(start: int) -> None:
            for number in range(start, start + 100):
                writer.enqueue((number, torch.full((8192,), number % 251, dtype=torch.uint8)), timeout=30)

        def read() -> set[int]:
            seen = set()
            while len(seen) < 300:
                number, payload = reader.dequeue(30)  # type: ignore[misc]
                assert bool((payload == number % 251).all())
                seen.add(number)
            return seen

        def look() -> None:
            for _ in range(200):
                statistics = writer.statistics()
                assert 0 <= statistics.slots_free <= statistics.slots_total
                writer.reap()

        waits = [in_thread(lambda start=start: write(start)) for start in (0, 100, 200)] + [in_thread(look)]  # type: ignore[misc]
        assert in_thread(read)() == set(range(300))
        for wait in waits:
            wait()
        assert writer.statistics().slots_free == SMALL.slots


def test_shutdown_from_a_handler_inside_statistics_unmaps_nothing_in_use() -> None:
    done = python(
        """
import signal
from arena import MessageQueue
from arena.errors import Cancelled
for _ in range(20):
    queue = MessageQueue(1, 1)
    signal.signal(signal.SIGALRM, lambda number, frame: queue.shutdown())
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)  # again and again: CPython 3.11 can miss one while threads start
    try:
        while True:
            queue.statistics()
    except Cancelled:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_keeps_no_descriptor_of_the_memory() -> None:
    with MessageQueue(1, 1) as writer:
        path = f"/proc/self/fd/{writer._end.segment.fd}"
        target = os.readlink(path)

        def look() -> None:
            assert not os.path.exists(path) or os.readlink(path) != target

        assert in_child(look, os._exit) == 0


def interrupted_at(us: float, call: Callable[[], Any]) -> Any:
    """What a call returned, or None if the exception of a timer's signal came first; once, and not afterwards."""
    armed = [True]

    def handler(number: int, frame: object) -> None:
        if armed[0]:
            armed[0] = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with may_be_lost(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, us * 1e-6)
            result = call()
            armed[0] = False
            return result
    except Interrupted:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("end", ["writer", "reader"])
def test_an_exception_at_any_moment_loses_no_slot_and_no_step(end: str, seed: int) -> None:
    """Not at native calls alone: the message arrives whole or not at all, and everything is given back."""
    rng = random.Random(seed)
    with queue_of(1, max_chunk_bytes=4096) as (writer, (reader,)):
        for number in range(300):
            message = [number, torch.full((8192,), number % 251), torch.full((2, 8192), number % 251)[:, ::2]]
            if end == "reader" and number % 3 == 0:
                message.append(bytes(6000))  # out of band
            us = rng.random() * rng.choice([50, 200, 800]) + 1
            if end == "writer":
                interrupted_at(us, lambda message=message: writer.enqueue(message, timeout=30))
            else:
                writer.enqueue(message, timeout=30)
                whole_or_none(interrupted_at(us, lambda: reader.dequeue(30)))
            writer.enqueue("next", timeout=30)
            while (received := reader.dequeue(30)) != "next":
                whole_or_none(received)
            del received
            assert writer.statistics().slots_free == SMALL.slots, f"after {us} us of message {number}"


def whole_or_none(message: Any) -> None:
    if message is not None:
        number, *tensors = message
        assert all(bool((part == number % 251).all()) for part in tensors if isinstance(part, torch.Tensor))


@pytest.mark.parametrize("what", ["loan", "gathered"])
def test_an_exception_anywhere_under_a_writers_own_view_keeps_no_grant(what: str) -> None:
    """A grant that nobody drops keeps the mapping for ever."""
    with queue_of(1) as (writer, (reader,)):
        calls = {
            "loan": lambda: writer.loan((4096,), torch.uint8),
            "gathered": lambda: writer.enqueue(torch.zeros(128, 128)[:, ::2], timeout=0.0),
        }
        mapping, place = writer._end.segment.mapping, 0
        while interrupted_at_place(place, calls[what]):
            assert mapping.grants == 0, place
            place += 1
            with contextlib.suppress(TimeoutError):
                reader.dequeue(0)
        assert place > 20


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
            assert in_child(use, os._exit) == 0
        finally:
            done.set()
            keeper()


def test_a_cache_of_a_queue_that_was_shut_down() -> None:
    with queue_of(1) as (writer, _):
        writer.shutdown()
        with pytest.raises(Cancelled):
            writer.object_cache()
