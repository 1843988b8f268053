"""The only door to ``csrc/``: every shared word is read and written through one of these calls.

Each native call drops the GIL.  ``lib`` has the functions of ``csrc/arena_native.h``, ``ffi`` makes its structs.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from itertools import starmap
from typing import Any

import torch

from arena._native import ffi, lib
from arena.errors import CorruptError
from arena.shm import layout

__all__ = ["NULL", "check_layout", "ffi", "geometry", "lib", "to_tensor"]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NULL = ffi.NULL
_from_dlpack = torch._C._from_dlpack
_CAPSULE_NAME = (b"dltensor",)
_CAPSULE_DESTRUCTOR = (ctypes.c_void_p(lib.arena_capsule_destructor()),)


def check_layout() -> None:
    """Compares ``layout.py`` with the C structs.

    Raises:
        ImportError: they differ: the extension was built from other sources.
    """
    compiled = tuple(lib.arena_layout_constant(i) for i in range(len(layout.C_CONSTANTS)))
    if compiled != layout.C_CONSTANTS:
        raise ImportError(f"arena._native has the layout {compiled}, layout.py {layout.C_CONSTANTS}: build it again")


def geometry(of: layout.Layout) -> Any:
    """The C form of a layout."""
    return ffi.new(
        "arena_geometry *",
        {
            name: getattr(of, name)
            for name in (
                "n_readers", "n_slots", "slots_offset", "done_offset", "hold_offset", "row_bytes", "ring_offset",
                "ring_bytes", "control_bytes", "data_bytes",
            )
        },
    )  # fmt: skip


def to_tensor(make: Callable[..., int], *arguments: Any) -> torch.Tensor:
    """Hands what ``arena_grant_tensor`` or its like makes to torch, which owns it from then on.

    One chain of native calls, between which no signal handler runs: its exception would lose what was made, and the slot.

    Raises:
        MemoryError: the native allocation failed.
        CorruptError: the shape does not fit the bytes.
    """
    capsules = map(_new_capsule, starmap(make, (arguments,)), _CAPSULE_NAME, _CAPSULE_DESTRUCTOR)
    try:
        (tensor,) = map(_from_dlpack, capsules)
    except ValueError:  # of a capsule of nothing
        if ffi.errno == errno.EINVAL:
            raise CorruptError("a tensor's shape and strides do not fit its bytes") from None
        raise MemoryError("no memory for a tensor's descriptor") from None
    return tensor


check_layout()
