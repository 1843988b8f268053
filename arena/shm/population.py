"""Taking the pages of a range now, in bounded pieces, with the GIL free.

A piece is one system call.  The kernel holds the address space's lock for as long as a piece takes, and other threads
that map memory wait for it: so pieces are small enough not to be felt, and large enough for their overhead not to be.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from arena.errors import CapacityError
from arena.shm.layout import PAGE, align
from arena.shm.native import lib
from arena.shm.numa import Policy

log = logging.getLogger("arena.shm")

PIECE_BYTES = 8 << 20
THREADS_MAX = 8

Range: TypeAlias = tuple[int, int]
"""Offset and length in bytes."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""
Advise: TypeAlias = Callable[[Any, int], int]
"""Populates a range once; returns 0 or an errno."""
Touch: TypeAlias = Callable[[Any, int], None]


def advise_populate(address: Any, nbytes: int) -> int:
    """``MADV_POPULATE_WRITE``."""
    return int(lib.arena_populate_once(address, nbytes, 1))


def touch_pages(address: Any, nbytes: int) -> None:
    """An atomic read-modify-write in each page, which changes no byte, not even one that somebody is writing."""
    lib.arena_touch_pages(address, nbytes, 1)


def default_threads() -> int:
    """As many as this process has CPUs, up to the number beyond which the kernel's own locks decide."""
    return min(THREADS_MAX, len(os.sched_getaffinity(0)))


def own_pages(n_rows: int, row_bytes: int, offset: int, nbytes: int) -> Iterator[Range]:
    """The whole pages that hold ``nbytes`` at ``offset`` of each row; what touches is joined."""
    start = stop = 0
    for row in range(n_rows):
        first = (row * row_bytes + offset) // PAGE * PAGE
        end = align(row * row_bytes + offset + nbytes, PAGE)
        if first > stop or stop == 0:
            if stop > start:
                yield start, stop - start
            start = first
        stop = end
    if stop > start:
        yield start, stop - start


def pieces(ranges: Iterable[Range]) -> Iterator[Range]:
    """The same bytes in pieces of at most `PIECE_BYTES`."""
    for offset, nbytes in ranges:
        for start in range(offset, offset + nbytes, PIECE_BYTES):
            yield start, min(PIECE_BYTES, offset + nbytes - start)


def populate(
    base: Any,
    ranges: Iterable[Range],
    total_bytes: int,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    policy: Policy | None = None,
    advise: Advise = advise_populate,
    touch: Touch = touch_pages,
    keep: Callable[[], object] | None = None,
) -> None:
    """Takes the pages of some ranges of a mapping.

    Args:
        base: where the mapping begins.
        ranges: what to populate, in whole pages.
        total_bytes: their sum, for ``progress``.
        threads: how many threads work at it; this one only waits for them.
        progress: called in this thread as it goes on, and at the end.
        policy: a NUMA policy for those threads.
        advise: populates a piece.
        touch: populates a piece where ``advise`` is unknown to the kernel.
        keep: makes something that keeps the mapping until no thread is at work.  Where a signal handler raises, and once
            more while the threads are waited for, that is later than this returns.

    Raises:
        CapacityError: the memory is not there.
        OSError: the kernel refuses for another reason.
    """
    work = _Work(base, pieces(ranges), advise, touch)
    work.keep = keep() if keep is not None else None
    helpers: list[threading.Thread] = []
    try:
        for _ in range(threads):
            helpers.append(threading.Thread(target=work.run, args=(policy,), name="arena-populate", daemon=True))
            _start(helpers[-1])
        done_bytes = 0
        while done_bytes < total_bytes and work.error is None:
            done_bytes = work.wait_beyond(done_bytes)
            if progress is not None:
                progress(done_bytes, total_bytes)
    finally:
        work.stop()
        for helper in helpers:
            with suppress(RuntimeError):  # it never started; or it is about to, and finds nothing to do
                helper.join()
        work.keep = None
    if work.error is not None:
        raise work.error


def _start(helper: threading.Thread) -> None:
    try:
        helper.start()
    except RuntimeError as error:
        raise CapacityError(
            f"no thread to populate memory with ({error}): raise ulimit -u or ulimit -v, or the container's limits"
        ) from error


class _Work:
    """Pieces that several threads share."""

    def __init__(self, base: Any, todo: Iterator[Range], advise: Advise, touch: Touch) -> None:
        self._base = base
        self._todo = todo
        self._advise = advise
        self._touch = touch
        self._lock = threading.RLock()  # not through the Condition, whose __enter__ a signal handler can end
        self._changed = threading.Condition(self._lock)
        self._is_advice_known = True
        self._done_bytes = 0
        self.error: BaseException | None = None
        self.keep: object = None

    def stop(self) -> None:
        """No piece is begun after this."""
        self._todo = iter(())

    def wait_beyond(self, done_bytes: int) -> int:
        """Waits until more than that is done, or an error stops it; returns how much is."""
        with self._lock:
            self._changed.wait_for(lambda: self._done_bytes > done_bytes or self.error is not None)
            return self._done_bytes

    def run(self, policy: Policy | None) -> None:
        """Works until nothing is left.  The first error of any thread stops all."""
        try:
            if policy is not None:
                policy.bind_thread()
            while (piece := self._next()) is not None:
                self._take(*piece)
                with self._lock:
                    self._done_bytes += piece[1]
                    self._changed.notify_all()
        except BaseException as error:
            with self._lock:
                self.stop()
                self.error = self.error or error
                self._changed.notify_all()

    def _next(self) -> Range | None:
        with self._lock:
            return next(self._todo, None)

    def _take(self, offset: int, nbytes: int) -> None:
        address = self._base + offset
        while self._is_advice_known:
            code = self._advise(address, nbytes)
            if code == 0:
                return
            if code == errno.EINVAL:
                self._advice_is_unknown()
            elif code not in (errno.EINTR, errno.EAGAIN):  # these two: once more
                raise _refusal(code, offset, nbytes)
        self._touch(address, nbytes)

    def _advice_is_unknown(self) -> None:
        with self._lock:
            first, self._is_advice_known = self._is_advice_known, False
        if first:
            log.warning("this kernel has no MADV_POPULATE_WRITE (it came with 5.14): touching each page, which is slower")


def _refusal(code: int, offset: int, nbytes: int) -> Exception:
    what = f"{nbytes} bytes at offset {offset} cannot be populated: {os.strerror(code)} (errno {code})"
    if code in (errno.ENOMEM, errno.EFAULT):
        return CapacityError(f"{what}; no more memory in the machine, container or file system: make the region smaller")
    return OSError(code, what)
