"""Names in a file system that say whether their creator lives: it holds a lock on what it named, until the name is gone.

The kernel drops the locks of a dead process, in whatever PID namespace it was: a lock that is free proves that a name is
nobody's, which its pid could not.  It proves nothing about names that others have made: ``leftovers.py`` knows ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from arena.errors import CapacityError
from arena.shm.descriptors import close_kept, open_kept
from arena.shm.shortage import lock

PREFIX = "arena-"
FILE = re.compile(rf"{PREFIX}[0-9]+-[0-9a-f]{{32}}")
DIRECTORY = re.compile(rf"{PREFIX}[0-9]+-[0-9a-f]{{8}}")
SOCKET = "socket"
"""The only name inside a directory."""


def new_file(directory: str, name: str) -> tuple[str, int]:
    """Makes a file ``arena-<pid>-<name>`` that only its owner can open: its path, and the descriptor that holds the lock.

    Args:
        directory: where.
        name: 32 hexadecimal digits.

    Raises:
        CapacityError: that file system has no locks.
    """
    path = f"{directory}/{PREFIX}{os.getpid()}-{name}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return path, _new(path, lambda: os.open(path, flags, 0o600), os.unlink, lasting=True)


def new_directory(directory: str, *, lasting: bool) -> tuple[str, int]:
    """Makes a directory ``arena-<pid>-...`` that only its owner can enter, as above.

    One that is not ``lasting``, but gone in a moment, does without a lock where there is none.
    """
    path = f"{directory}/{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    return path, _new(path, lambda: _make_directory(path), os.rmdir, lasting=lasting)


def remove_directory(path: str | Path) -> None:
    """Removes a directory and the socket in it, and nothing else that may be in it.

    Raises:
        OSError: something else is.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}/{SOCKET}")
    os.rmdir(path)


def remove_file(path: str, fd: int) -> None:
    """Removes the name of an open file, if it still leads there; another one's that has it by now stays."""
    with contextlib.suppress(FileNotFoundError):
        if is_at(path, fd):
            os.unlink(path)


def is_at(path: str | Path, fd: int) -> bool:
    """Whether a path leads to an open file (and not to a successor, or nowhere)."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


@contextlib.contextmanager
def dead(path: Path) -> Iterator[int | None]:
    """Opens and locks what a name leads to, if its creator is dead; None if that lives, or it is another user's.

    Raises:
        OSError, CapacityError: it cannot be looked at.
    """
    fd = open_kept(lambda: os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK))
    try:
        is_free = os.fstat(fd).st_uid == os.geteuid() and _is_free(path, fd) and is_at(path, fd)
        yield fd if is_free else None
    finally:
        close_kept(fd)


def _is_free(path: Path, fd: int) -> bool:
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return False
    return True


def _new(path: str, make: Callable[[], int], remove: Callable[[str], None], *, lasting: bool) -> int:
    """Makes it and locks it; anew, if it was taken for a dead one's and removed in the moment between."""
    while True:
        fd = open_kept(make)
        try:
            if _lock(path, fd, lasting=lasting):
                return fd
        except BaseException:
            close_kept(fd)
            with contextlib.suppress(FileNotFoundError):
                remove(path)
            raise
        close_kept(fd)


def _make_directory(path: str) -> int:
    while True:
        os.mkdir(path, 0o700)
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # removed already, as above
            continue
        except BaseException:
            os.rmdir(path)
            raise


def _lock(path: str, fd: int, *, lasting: bool) -> bool:
    """Waits for one who looks whether it is a dead one's; False: that one has removed it."""
    try:
        lock(fd, fcntl.LOCK_SH, path)
    except CapacityError:
        if lasting:
            raise
    return is_at(path, fd)
