"""Turns and visits: wherever a signal handler raises, they are given back, and a shutdown inside of one is made up for."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from support import in_thread, is_in_call

from arena import endpoint
from arena.endpoint import NEVER, Deadline, Endpoint
from arena.errors import Cancelled
from arena.shm import segment
from arena.shm.layout import PAGE, Layout


class Raised(BaseException):
    """What the signal handler raises."""


class Interruption:
    """Runs ``handler`` at the ``at``-th place in endpoint.py where the interpreter runs signal handlers.

    That is where a Python function begins, where a C function has returned, and, in Python 3.10 or with a frame evaluator,
    where a Python function has: a profiler is called there, too.
    """

    def __init__(self, at: int, handler: Callable[[], None]) -> None:
        self.left = at
        self.handler = handler

    def __enter__(self) -> Interruption:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        places = ["c_return", "call", "return"]
        if frame.f_code.co_flags & inspect.CO_GENERATOR:  # it yields and goes on where no handler runs
            del places[1:]
        if frame.f_code.co_filename == endpoint.__file__ and event in places:
            self.left -= 1
            if self.left == -1:
                sys.setprofile(None)
                self.handler()


def end_of(cancel: Callable[[], None] = lambda: None) -> Endpoint:
    made = segment.create(Layout(1, 0, PAGE, 0))
    segment.unlink(made.handle)
    return Endpoint(made, cancel)


def visit(end: Endpoint) -> None:
    with end.visit():
        pass


USES: dict[str, Callable[[Endpoint], object]] = {
    "in_turn": lambda end: end.in_turn(NEVER, int),
    "if_free": lambda end: end.if_free(int),
    "visit": visit,
}


def raise_it() -> None:
    raise Raised


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_an_exception_anywhere_gives_turns_and_visits_back(use: Callable[[Endpoint], object]) -> None:
    end, places = end_of(), 0
    while True:
        interruption = Interruption(places, raise_it)
        try:
            with interruption:
                use(end)
        except Raised:
            places += 1
            assert not in_thread(lambda: is_in_call(end))()
            assert not any(other.locked() for other in end._visits)
        else:
            break
    assert places >= 5, "the profiler sees the places"
    assert interruption.left >= 0
    assert end.in_turn(NEVER, lambda: "usable") == "usable"
    end.shutdown()
    assert end._released


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_handlers_shutdown_anywhere_releases_once_the_use_is_over(use: Callable[[Endpoint], object]) -> None:
    places = 0
    while True:
        end = end_of()
        interruption = Interruption(places, end.shutdown)
        with interruption:
            with contextlib.suppress(Cancelled):
                use(end)
        if interruption.left >= 0:
            end.shutdown()
            break
        places += 1
        assert end.closed
        assert end._released, f"place {places}"
    assert places >= 5, "the profiler sees the places"


def test_a_call_inside_a_call_is_refused_and_takes_nothing() -> None:
    end = end_of()
    with pytest.raises(RuntimeError, match="from inside its own"):
        end.in_turn(NEVER, lambda: end.in_turn(NEVER, int))
    assert end.in_turn(NEVER, lambda: end.if_free(int)) is None
    assert not in_thread(lambda: is_in_call(end))()
    end.shutdown()


def test_shutdown_waits_for_visits_and_the_last_one_releases() -> None:
    end, inside, go_on = end_of(), threading.Event(), threading.Event()

    def visit_long() -> bool:
        with end.visit():
            inside.set()
            assert go_on.wait(30)
            return end._released

    visitor = in_thread(visit_long)
    assert inside.wait(30)
    end.shutdown()
    assert not end._released
    go_on.set()
    assert visitor() is False
    assert end._released


def test_a_turn_is_waited_for_as_long_as_the_deadline_says() -> None:
    end, inside, go_on = end_of(), threading.Event(), threading.Event()
    other = in_thread(lambda: end.in_turn(NEVER, lambda: (inside.set(), go_on.wait(30))))
    assert inside.wait(30)
    with pytest.raises(TimeoutError, match="another thread's call"):
        end.in_turn(Deadline.after(0.01), int)
    assert end.if_free(int) is None
    go_on.set()
    other()
    assert end.in_turn(NEVER, lambda: 1) == 1
    end.shutdown()
