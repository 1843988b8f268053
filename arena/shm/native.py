"""The only door to ``csrc/``: every shared word is read and written through one of these calls.

Each native call drops the GIL.  ``lib`` has the functions of ``csrc/arena_native.h``, ``ffi`` makes its structs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from arena._native import ffi, lib
from arena.shm import layout

__all__ = ["capsule_to_tensor", "check_layout", "ffi", "geometry", "lib"]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_destructor = ctypes.c_void_p(lib.arena_capsule_destructor())


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


def shape_of(dims: Sequence[int]) -> Any:
    """A C array of dimensions or strides."""
    return ffi.new("int64_t[]", dims)


def capsule_to_tensor(managed: Any) -> torch.Tensor:
    """Hands a tensor made by ``arena_grant_tensor`` or ``arena_copied_tensor`` to torch, which owns it from then on.

    Raises:
        MemoryError: ``managed`` is NULL: the native allocation failed.
    """
    if managed == ffi.NULL:
        raise MemoryError("no memory for a tensor's descriptor")
    capsule = _new_capsule(int(ffi.cast("uintptr_t", managed)), b"dltensor", _capsule_destructor)
    return torch._C._from_dlpack(capsule)


check_layout()
