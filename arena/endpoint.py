"""What the two ends of a queue share: one call at a time, deadlines, fork, and a shutdown from anywhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar

from arena.errors import Cancelled, ForkedError
from arena.protocol.ring import SLICE_US
from arena.shm.segment import Segment

log = logging.getLogger("arena.queue")

T = TypeVar("T")

LONG_WAIT_S = 60.0
_CLOSE_WAIT_S = 5.0


class Deadline:
    """A point in time, or never."""

    __slots__ = ("_end", "timeout_s")

    def __init__(self, timeout_s: float | None, end: float | None) -> None:
        self.timeout_s = timeout_s
        self._end = end

    @classmethod
    def after(cls, timeout_s: float | None) -> Deadline:
        """In ``timeout_s`` seconds; None: never; negative: at once, as what is left until a time that is past."""
        if timeout_s is None:
            return NEVER
        if type(timeout_s) is float and 0.0 <= timeout_s < threading.TIMEOUT_MAX:  # nearly all: the rest takes a microsecond
            return cls(timeout_s, time.monotonic() + timeout_s)
        if not isinstance(timeout_s, Real) or isinstance(timeout_s, bool) or timeout_s != timeout_s:
            raise ValueError(f"timeout={timeout_s!r}: must be None or a number of seconds")
        timeout_s = max(0, timeout_s)
        if timeout_s >= threading.TIMEOUT_MAX:
            return cls(timeout_s, None)  # more than a lock can wait is never, infinity too
        return cls(timeout_s, time.monotonic() + float(timeout_s))

    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def left_s(self) -> float | None:
        """Seconds that are left; None for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def slice_us(self) -> int:
        """How long to sleep at most before looking around again."""
        return SLICE_US if self._end is None else min(SLICE_US, int(1e6 * (self.left_s() or 0.0)))


NEVER = Deadline(None, None)  # most calls have no deadline, and share this one
AT_ONCE = Deadline(0, 0.0)


class LongWait:
    """Made when a wait begins: when to say again that it is long."""

    def __init__(self) -> None:
        self._start = self._said = time.monotonic()

    def due_s(self) -> float | None:
        """Asked after each slice: once a minute, for how long the wait has lasted by now."""
        now = time.monotonic()
        if now - self._said < LONG_WAIT_S:
            return None
        self._said = now
        return now - self._start


class TurnTaken(TimeoutError):
    """Another call on the same end did not end in time."""


class Endpoint:
    """Base of both ends.  Calls from different threads take turns; ``shutdown`` ends a blocked one within a slice.

    A signal handler may call ``shutdown`` while its own thread is inside a call: what the call uses is then closed when
    the call returns.  It may also raise: turns and visits are given back by native calls, first in a ``finally`` that
    covers the taking, and before such a call no handler runs.
    """

    def __init__(self, segment: Segment, cancel: Callable[[], None]) -> None:
        self.segment = segment
        self.closed = False  # nothing more may start
        self._cancel = cancel  # ends a blocked native call, from any thread
        self._released = False  # the resources are gone
        self._alive = segment.mapping.alive  # a page that outlives the mapping
        self._turn: Any = threading.RLock()  # held by the thread inside a call: an RLock knows whose it is
        self._closing = threading.RLock()  # a cancel before the release: later it would touch unmapped memory
        self._cancelled = False
        self._visits: list[threading.Lock] = []  # uses that take no turn, each locked while it lasts

    def in_turn(self, deadline: Deadline, call: Callable[..., T], *arguments: Any) -> T:
        """Calls a function as the one call under way.

        Raises:
            ForkedError: in a forked child.
            Cancelled: after shutdown.
            TimeoutError: another thread's call did not end in time.
            RuntimeError: from inside a call of the same thread (an object's reduction).
        """
        self.check_turn()
        try:
            self.take_turn(deadline)
            return call(*arguments)
        finally:
            try:  # noqa: SIM105 - Python code before the release is a place for a signal handler
                self._turn.release()
            except RuntimeError:  # it was not taken
                pass
            if self.closed:
                self._release_once()

    def if_free(self, call: Callable[[], T]) -> T | None:
        """Calls a function as the one call under way; None if there is another."""
        if self._turn._is_owned():
            return None
        try:
            return self.in_turn(AT_ONCE, call)
        except TurnTaken:
            return None

    def check_turn(self) -> None:
        """Before ``take_turn``: refuses a call in a forked child, and one from inside another."""
        if not self._alive[0]:
            self.check_usable()
        if self._turn._is_owned():
            raise RuntimeError("a queue was used from inside its own enqueue or dequeue")

    def take_turn(self, deadline: Deadline) -> None:
        """Inside the ``try`` whose ``finally`` gives it back, also if this raises: then it may have been taken or not."""
        if not self._turn.acquire(False):
            self._wait_for_turn(deadline)
        if self.closed:
            self.check_usable()

    def _wait_for_turn(self, deadline: Deadline) -> None:
        left = deadline.left_s()
        if not self._turn.acquire(timeout=-1 if left is None else left):
            raise TurnTaken(f"another thread's call on this queue did not end within {deadline.timeout_s} s")

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Around a use of the segment that takes no turn, as a copy, a look or an unpickling: the release comes after it."""
        if not self._alive[0]:
            self.check_usable()  # first: a forked child may have inherited a lock that nobody gives back
        visit = threading.Lock()
        try:
            with visit:
                with self._closing:
                    self._visits = [visit, *(other for other in self._visits if other.locked())]
                self.check_usable()
                yield
        finally:
            if self.closed:
                self._release_once()

    def check_usable(self) -> None:
        """Raises Cancelled after shutdown, ForkedError in a forked child."""
        if self.closed:
            raise Cancelled("this queue or cache was shut down")
        if not self._alive[0]:
            raise ForkedError

    def shutdown(self) -> None:
        """Ends blocked calls and gives everything back; idempotent, from any thread or signal handler."""
        if not self._alive[0]:
            return
        self.closed = True
        self._release_once()

    def _release_once(self) -> None:
        if not self._alive[0]:  # in a child that was forked inside the call: nothing here is this process's
            return
        with self._closing:
            if self._released:
                return
            if not self._cancelled:
                self._cancel()
                self._cancelled = True
            if self._turn._is_owned() or any(visit.locked() for visit in self._visits):
                return  # a signal handler's shutdown inside a call, or a visit under way: the last of them does it
        if not self._turn.acquire(timeout=_CLOSE_WAIT_S):
            log.warning("a call did not end within %s s of shutdown(); the memory stays mapped", _CLOSE_WAIT_S)
            return
        try:
            if self.segment.alive:  # else another thread has done it
                self.release()
            self._released = True
        finally:
            self._turn.release()

    def release(self) -> None:
        """Gives back what this end holds, the segment last; by one thread, with no call under way."""
        self.segment.close()
