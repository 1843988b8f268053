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

    def __init__(self, timeout_s: float | None) -> None:
        if timeout_s is not None and not timeout_s >= 0:
            raise ValueError(f"timeout={timeout_s!r}: must be None or a number of seconds, not negative")
        self.timeout_s = timeout_s
        self._start = time.monotonic()
        self._end = None if timeout_s is None else self._start + timeout_s
        self._next_warning = self._start + LONG_WAIT_S

    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def left_s(self) -> float | None:
        """Seconds that are left; None for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def slice_us(self) -> int:
        """How long to sleep at most before looking around again."""
        left = self.left_s()
        return SLICE_US if left is None else min(SLICE_US, int(left * 1e6))

    def waited_long_s(self) -> float | None:
        """Once per minute of waiting: for how long by now."""
        now = time.monotonic()
        if now < self._next_warning:
            return None
        self._next_warning = now + LONG_WAIT_S
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
        self._lock = threading.Lock()
        self._cancelling = threading.RLock()  # no cancel after the release: it would touch unmapped memory
        self._owner = 0  # the thread inside a call

    @contextmanager
    def call(self, deadline: Deadline) -> Iterator[None]:
        """Around every call that uses the segment.

        Raises:
            ForkedError: in a forked child.
            Cancelled: after shutdown.
            TimeoutError: another thread's call did not end in time.
            RuntimeError: from inside a call of the same thread (an object's reduction).
        """
        self._check_usable()
        if self._owner == threading.get_ident():
            raise RuntimeError("a queue was used from inside its own enqueue or dequeue")
        left = deadline.left_s()
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise TimeoutError(f"another thread's call on this queue did not end within {deadline.timeout_s} s")
        self._owner = threading.get_ident()
        try:
            self._check_usable()
            yield
        finally:
            self._leave_call()

    @contextmanager
    def glance(self) -> Iterator[None]:
        """Around a look at shared words that waits for no call: only the release waits for it."""
        with self._cancelling:
            self._check_usable()
            yield

    def _leave_call(self) -> None:
        self._owner = 0
        self._lock.release()
        if self.closed and not self._released:
            self._release_once()

    def _check_usable(self) -> None:
        if self.closed:
            raise Cancelled("the queue was shut down")
        if not self.segment.alive:
            raise ForkedError("this queue was made before a fork: open its handle anew in the child")

    def shutdown(self) -> None:
        """Ends blocked calls and gives everything back; idempotent, from any thread or signal handler."""
        if not self.segment.alive:
            return
        self.closed = True
        if self._owner == threading.get_ident():
            return  # the call that we are inside of does it when it returns
        self._release_once()

    def _release_once(self) -> None:
        with self._cancelling:
            if self._released:
                return
            self._cancel()
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
