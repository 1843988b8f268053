"""Signals in the middle of things: a handler that raises loses no slot, and one that shuts down ends the call."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cut_support import interrupted_at
from support import SMALL, may_be_lost, python, queue_of

from arena.errors import Cancelled
from arena.shm.native import lib

MB = 1 << 20


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


def interrupted_after(us: float, call: Callable[[], Any]) -> Any:
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
                interrupted_after(us, lambda message=message: writer.enqueue(message, timeout=30))
            else:
                writer.enqueue(message, timeout=30)
                whole_or_none(interrupted_after(us, lambda: reader.dequeue(30)))
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
        while interrupted_at(place, calls[what]):
            assert mapping.grants == 0, place
            place += 1
            with contextlib.suppress(TimeoutError):
                reader.dequeue(0)
        assert place > 20
