"""Descriptors that a forked child must not keep.

A file lock belongs to the open file, which parent and child share: a child that keeps the descriptor keeps a dead
parent's lock, and a child that unlocks it drops the living parent's.  Closing it in the child is right.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_lock = threading.RLock()
_kept: set[int] = set()


def open_kept(open_file: Callable[[], int]) -> int:
    """Opens a file whose descriptor every forked child closes; no fork can come between the two."""
    with _lock:
        fd = open_file()
        _kept.add(fd)
        return fd


@contextmanager
def no_fork() -> Iterator[None]:
    """Around descriptors that are open for a moment: no child is forked meanwhile."""
    with _lock:
        yield


def close_kept(fd: int) -> None:
    """Closes a descriptor from `open_kept`; a forked child, which has it no more, does nothing."""
    with _lock:
        if fd in _kept:
            _kept.discard(fd)
            os.close(fd)


def _close_in_child() -> None:
    for fd in _kept:
        os.close(fd)
    _kept.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_in_child)
