"""Running out of descriptors, threads, locks or memory, said by a `CapacityError`.

libzmq ends the process where it cannot start a thread or open a descriptor of its own: what it will need is tried out
before it is asked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arena.errors import CapacityError
from arena.shm.descriptors import no_fork
from arena.shm.native import lib

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
"""What the kernel says where there is no more of something."""

HEADROOM_BYTES = 8 << 20
"""What a new thread allocates for a start, with room to spare."""


@contextmanager
def typed(what: str) -> Iterator[None]:
    """Around calls of the operating system; also a decorator.

    Raises:
        CapacityError: instead of an ``OSError`` that says that something has run out.
    """
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGES:
            raise refusal(what, error) from error
        raise


def refusal(what: str, error: OSError) -> CapacityError:
    """The error that names what cannot be done, why, and the ways out."""
    return CapacityError(
        f"{what} cannot be made: {error} (errno {error.errno}); close or shrink something, or raise the limit (ulimit -n, "
        "ulimit -v, the container's memory, the file system of TMPDIR)"
    )


def lock(fd: int, kind: int, path: str | Path) -> None:
    """Takes the lock of an open file, as ``flock`` does.

    Raises:
        BlockingIOError: somebody else has it, and ``kind`` has ``LOCK_NB``.
        CapacityError: locks cannot be had there.
    """
    try:
        fcntl.flock(fd, kind)
    except BlockingIOError:
        raise
    except OSError as error:
        raise CapacityError(
            f"{path} cannot be locked: {error.strerror} (errno {error.errno}): without flock its file system or this "
            "sandbox cannot say whose it is; allow flock there, or use a queue with backing='memfd', which does without"
        ) from error


def require_descriptors(n: int, what: str) -> None:
    """Makes sure that ``n`` descriptors can be opened now.

    Raises:
        CapacityError: they cannot; the text has the numbers.
    """
    with no_fork():
        found = lib.arena_try_descriptors(n)
    if found < n:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise CapacityError(
            f"{what} takes {n} descriptors, and {found} are left of {limit} (ulimit -n): close some, or raise it"
        )


def require_threads(n: int, what: str) -> None:
    """Makes sure that ``n`` threads can be started now, and that there is some memory for them.

    Raises:
        CapacityError: there is none.
    """
    error = lib.arena_try_threads(n + 1, HEADROOM_BYTES)  # one more: the kernel counts one a moment longer than it runs
    if error:
        raise CapacityError(
            f"{what} takes {n} threads, and there is no memory for them ({os.strerror(error)}): raise ulimit -v or "
            "ulimit -u, or the container's limits"
        )
