"""The only door to ``csrc/``: every shared word is read and written through one of these calls.

Each native call drops the GIL.  ``lib`` has the functions of ``csrc/arena_native.h``, ``ffi`` makes its structs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from typing import Any, Protocol

import torch

import arena._native
from arena._native import ffi, lib
from arena.errors import CorruptError
from arena.shm import layout

__all__ = ["NULL", "Lease", "MakeCapsule", "address_of", "capsules", "check_layout", "ffi", "geometry", "lib", "to_tensor"]

NULL = ffi.NULL
_ADDRESS = ffi.typeof("uintptr_t")
_from_dlpack = torch._C._from_dlpack

MakeCapsule = Callable[[tuple[int, int], tuple[int, ...], "tuple[int, ...] | None"], object]
"""``(code, bits), shape, strides`` to a DLPack capsule: of a copy of some bytes, or over memory that it holds.

One of ``capsules``' functions with its first three arguments: ``of_lease`` takes a lease, ``of_mapping`` a mapping's
address, each with a place in it and a length; ``of_copy`` takes None, the address of the bytes and their length.
"""


class Lease(Protocol):
    """A process's hold on a slot, made by ``capsules``; each tensor over it has one of its own, and the last releases."""

    @property
    def grant(self) -> int:
        """The C grant's address; 0 once dropped."""

    @property
    def data(self) -> int:
        """The address of the first byte."""

    @property
    def nbytes(self) -> int: ...

    def drop(self) -> None:
        """Gives the hold back, now and not only when the object goes; once, however often it is called."""


class _Capsules(Protocol):
    """``csrc/arena_tensors.c`` and ``arena_lease_type.c`` say what each takes."""

    LeaseType: Any
    lease_of_message: Callable[..., Lease]
    lease_of_object: Callable[..., Lease]
    of_lease: Callable[..., object]
    of_mapping: Callable[..., object]
    of_copy: Callable[..., object]


def _load_capsules() -> Any:
    """The second module in the same library: cffi cannot return a Python object."""
    loader = ExtensionFileLoader("_capsules", arena._native.__file__)
    module = module_from_spec(ModuleSpec("_capsules", loader, origin=loader.path))
    loader.exec_module(module)
    return module


capsules: _Capsules = _load_capsules()


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


def address_of(pointer: Any) -> int:
    """A C pointer as a number."""
    return int(ffi.cast(_ADDRESS, pointer))


def to_tensor(
    make: MakeCapsule, dtype: tuple[int, int], shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> torch.Tensor:
    """A tensor whose storage is what ``make`` gives: torch owns it from then on.  Strides in elements; None: contiguous.

    Raises:
        MemoryError: the native allocation failed.
        CorruptError: the shape does not fit the bytes.
    """
    try:
        return _from_dlpack(make(dtype, shape, strides))
    except (BufferError, OverflowError) as error:
        raise CorruptError(f"dtype {dtype}, shape {shape}, strides {strides}: {error}") from None


check_layout()
