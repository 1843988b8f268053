"""Descriptors that a forked child must not keep.

A file lock belongs to the open file, which parent and child share: a child that keeps the descriptor keeps a dead
parent's lock, and a child that unlocks it drops the living parent's.  Closing it in the child is right.

An application may close numbers that are not its own (``os.closerange``), and have files of its own there by now: only
what is still the file that was opened is closed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from itertools import starmap
from typing import Any

_lock = threading.RLock()
_kept: dict[int, tuple[int, int]] = {}  # the device and inode of each


class Owned(int):
    """A descriptor that is closed when nobody has it any more, if nobody has closed it before (`open_owned`)."""

    identity: tuple[int, int] | None = None

    def __del__(self) -> None:
        close_kept(self)


def open_kept(open_file: Callable[[], int]) -> int:
    """Opens a file whose descriptor every forked child closes; no fork can come between the two."""
    with _lock:
        fd = open_file()
        try:
            status = os.fstat(fd)
            _kept[fd] = status.st_dev, status.st_ino
        except BaseException:
            os.close(fd)
            raise
        return fd


def open_owned(open_file: Callable[..., int], *args: Any) -> Owned:
    """The same, for a descriptor that no exception loses, not even a signal handler's before anybody has it.

    Args:
        open_file: a function of the operating system's, such as ``os.open``: a handler can raise in one of Python's,
            between the opening and the return.
        args: its arguments.
    """
    with _lock:
        opened: list[Owned] = []
        try:
            opened.extend(map(Owned, starmap(open_file, (args,))))  # one step, as handlers see it
            status = os.fstat(opened[0])
            opened[0].identity = _kept[int(opened[0])] = status.st_dev, status.st_ino
        except BaseException:
            for fd in opened:
                _kept.pop(fd, None)
                os.close(fd)
            raise
        return opened.pop()


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """Around descriptors that are open for a moment: no child is forked meanwhile."""
    with _lock:
        yield


def close_kept(fd: int) -> None:
    """Closes a descriptor from `open_kept`; nothing in a forked child, which has it no more, or if it is another file."""
    with _lock:
        identity = _kept_as(fd)
        if identity is None:
            return
        _close_if(fd, identity)
        _kept.pop(fd)  # only now: where a handler raises, it is still an `Owned` one's to close


def is_kept(fd: int) -> bool:
    """Whether a descriptor from `open_kept` still leads to that file; else writing to it might be to the application's."""
    with _lock:
        identity = _kept_as(fd)
        return identity is not None and _leads_to(fd, identity)


def _kept_as(fd: int) -> tuple[int, int] | None:
    """What it was opened as; None if it is closed, or another one has its number."""
    identity = _kept.get(fd)
    return None if isinstance(fd, Owned) and fd.identity is not identity else identity


def _leads_to(fd: int, identity: tuple[int, int]) -> bool:
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


def _close_if(fd: int, identity: tuple[int, int]) -> None:
    if _leads_to(fd, identity):
        with contextlib.suppress(OSError):
            os.close(fd)


def _close_in_child() -> None:
    try:
        for fd, identity in _kept.items():
            _close_if(fd, identity)
        _kept.clear()
    finally:
        _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_in_child)
