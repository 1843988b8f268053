"""Unpickling where the bytes lie, in shared memory, and the end of it in a child that an object forks meanwhile.

The child does not have the memory, and the unpickler runs on in it.  It finds zeros instead, with which no pickle goes on,
and the child is told what it is.  Of the ring it has zeros anyway (`Segment`); of an object's extent, while that is in use.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from typing import Any

from arena.errors import ForkedError
from arena.shm.native import Lease, ffi, lib

in_place: dict[int, Lease] = {}
"""The extents that hold pickles which are being read, by a mark of each reading."""

_process = object()  # another one in each child


def loads(pickled: Any, buffers: Iterable[Any] | None = None) -> object:
    """``pickle.loads`` of shared memory.

    Raises:
        ForkedError: this is a child, forked inside.
        whatever unpickling raises.
    """
    process = _process
    try:
        loaded: object = pickle.loads(pickled, buffers=buffers)
    except Exception as error:
        if _process is not process:
            raise ForkedError from error
        raise
    if _process is not process:
        raise ForkedError
    return loaded


def _run_on_in_child() -> None:
    global _process
    _process = object()
    for lease in in_place.values():
        lib.arena_map_zeros(ffi.cast("char *", lease.data), lease.nbytes)
    in_place.clear()


os.register_at_fork(after_in_child=_run_on_in_child)
