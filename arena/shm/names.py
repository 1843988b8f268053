"""Names in a file system that say whether their creator lives: it holds a lock on what it named, until the name is gone.

The kernel drops the locks of a dead process, in whatever PID namespace it was: a lock that is free proves that a name is
nobody's, which its pid could not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from arena.shm.descriptors import close_kept, open_kept

PREFIX = "arena-"


def new_file(directory: str, name: str) -> tuple[str, int]:
    """Makes a file ``arena-<pid>-<name>`` that only its owner can open: its path, and the descriptor that holds the lock."""
    path = f"{directory}/{PREFIX}{os.getpid()}-{name}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        fd = open_kept(lambda: os.open(path, flags, 0o600))
        if _lock(path, fd):
            return path, fd
        close_kept(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def new_directory(directory: str) -> tuple[str, int]:
    """Makes a directory ``arena-<pid>-...`` that only its owner can enter, as above."""
    path = f"{directory}/{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    while True:
        os.mkdir(path, 0o700)
        try:
            fd = open_kept(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except BaseException:
            os.rmdir(path)
            raise
        if _lock(path, fd):
            return path, fd
        close_kept(fd)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)


def is_at(path: str | Path, fd: int) -> bool:
    """Whether a path leads to an open file (and not to a successor, or nowhere)."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


@contextlib.contextmanager
def dead(path: Path) -> Iterator[os.stat_result | None]:
    """Locks what a name leads to, if its creator is dead: what it is; None if the creator lives, or it is another user's.

    Raises:
        OSError: it cannot be looked at.
    """
    fd = open_kept(lambda: os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK))
    try:
        status = os.fstat(fd)
        is_free = status.st_uid == os.geteuid() and _try_lock(fd, fcntl.LOCK_EX) and is_at(path, fd)
        yield status if is_free else None
    finally:
        close_kept(fd)


def _lock(path: str, fd: int) -> bool:
    """False: it was taken for a dead one's in the moment before, and is to be made anew."""
    return _try_lock(fd, fcntl.LOCK_SH) and is_at(path, fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
