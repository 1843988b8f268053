"""What the two ends of a queue share: one call at a time, deadlines, fork, and a shutdown from anywhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arena.errors import Cancelled, ForkedError
from arena.protocol.ring import SLICE_US
from arena.shm.segment import Segment

log = logging.getLogger("arena.queue")

LONG_WAIT_S = 60.0
_CLOSE_WAIT_S = 5.0


class Deadline:
    """A point in time, or never; and when to say again that a wait is long."""

    # Class attributes: most calls have no deadline and never wait, and then there is nothing to set.
    timeout_s: float | None = None
    _end: float | None = None
    _start = _said = 0.0

    def __init__(self, timeout_s: float | None) -> None:
        if timeout_s is not None:
            self.timeout_s = timeout_s
            if not timeout_s >= 0:
                raise ValueError(f"timeout={timeout_s!r}: must be None or a number of seconds, not negative")
            if timeout_s < threading.TIMEOUT_MAX:  # more is never, infinity too
                self._end = time.monotonic() + timeout_s

    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def left_s(self) -> float | None:
        """Seconds that are left; None for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def slice_us(self) -> int:
        """How long to sleep at most before looking around again."""
        return SLICE_US if self._end is None else min(SLICE_US, int(1e6 * (self.left_s() or 0.0)))

    def waited_long_s(self) -> float | None:
        """Asked after each slice of a wait: once a minute, for how long it has lasted by now."""
        now = time.monotonic()
        if not self._start:
            self._start = self._said = now
        if now - self._said < LONG_WAIT_S:
            return None
        self._said = now
        return now - self._start


class Endpoint:
    """Base of both ends.  Calls from different threads take turns; ``shutdown`` ends a blocked one within a slice.

    A signal handler may call ``shutdown`` while its own thread is inside a call: what the call uses is then closed when
    the call returns.
    """

    def __init__(self, segment: Segment, cancel: Callable[[], None]) -> None:
        self.segment = segment
        self.closed = False  # nothing more may start
        self._cancel = cancel  # ends a blocked native call, from any thread
        self._released = False  # the resources are gone
        self._alive = segment.mapping.alive  # a page that outlives the mapping
        self._lock = threading.Lock()
        self._cancelling = threading.RLock()  # no cancel after the release: it would touch unmapped memory
        self._owner = 0  # the thread inside a call
        self._visits = 0  # uses that take no turn
        self._glancing = 0  # the thread inside a glance

    def enter(self, deadline: Deadline) -> None:
        """Before every call that uses the segment; ``leave`` follows in a ``finally``.

        Raises:
            ForkedError: in a forked child.
            Cancelled: after shutdown.
            TimeoutError: another thread's call did not end in time.
            RuntimeError: from inside a call of the same thread (an object's reduction).
        """
        if self.closed or not self._alive[0]:
            self.check_usable()
        if not self._lock.acquire(False):
            self._wait_for_turn(deadline)
        self._owner = threading.get_ident()
        if self.closed:
            self.leave()
            self.check_usable()

    def try_enter(self) -> bool:
        """``enter`` if no other call is under way; whether it was."""
        self.check_usable()
        if not self._lock.acquire(blocking=False):
            return False
        self._owner = threading.get_ident()
        return True

    def _wait_for_turn(self, deadline: Deadline) -> None:
        if self._owner == threading.get_ident():
            raise RuntimeError("a queue was used from inside its own enqueue or dequeue")
        left = deadline.left_s()
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise TimeoutError(f"another thread's call on this queue did not end within {deadline.timeout_s} s")

    def leave(self) -> None:
        """Ends what ``enter`` began, and does what a shutdown meanwhile left to do."""
        self._owner = 0
        self._lock.release()
        if self.closed and not self._released:
            self._release_once()

    @contextmanager
    def glance(self) -> Iterator[None]:
        """Around a look at shared words that waits for no call: only the release waits for it."""
        with self._cancelling:
            self.check_usable()
            self._glancing = threading.get_ident()
            try:
                yield
            finally:
                self._glancing = 0
        if self.closed and not self._released:
            self._release_once()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Around a use of the segment that takes no turn, as a copy or an unpickling: the release comes after it."""
        with self._cancelling:
            self.check_usable()
            self._visits += 1
        try:
            yield
        finally:
            with self._cancelling:
                self._visits -= 1
            if self.closed and not self._released:
                self._release_once()

    def check_usable(self) -> None:
        """Raises Cancelled after shutdown, ForkedError in a forked child."""
        if self.closed:
            raise Cancelled("the queue was shut down")
        if not self._alive[0]:
            raise ForkedError("this queue was made before a fork: open its handle anew in the child")

    def shutdown(self) -> None:
        """Ends blocked calls and gives everything back; idempotent, from any thread or signal handler."""
        if not self._alive[0]:
            return
        self.closed = True
        if threading.get_ident() in (self._owner, self._glancing):  # a signal handler: what it is inside of releases
            self._cancel()
            return
        self._release_once()

    def _release_once(self) -> None:
        with self._cancelling:
            if self._released:
                return
            self._cancel()
            if self._visits:
                return  # the last of them does it
        if not self._lock.acquire(timeout=_CLOSE_WAIT_S):
            log.warning("a call did not end within %s s of shutdown(); the memory stays mapped", _CLOSE_WAIT_S)
            return
        try:
            with self._cancelling:
                first, self._released = not self._released, True
            if first:
                self.release()
        finally:
            self._lock.release()

    def release(self) -> None:
        """Gives back what this end holds; called once, by one thread, with no call under way."""
        self.segment.close()
