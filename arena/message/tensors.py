"""Tensors as bytes and back: which can travel as bytes, and how one is built over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from arena.shm.native import MakeCapsule, to_tensor

# DLPack's (code, bits) per dtype: what a capsule can carry directly (dlpack.h, DLDataTypeCode).
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_DLPACK_NAMES = {
    "int8": (_INT, 8), "int16": (_INT, 16), "int32": (_INT, 32), "int64": (_INT, 64),
    "uint8": (_UINT, 8), "uint16": (_UINT, 16), "uint32": (_UINT, 32), "uint64": (_UINT, 64),
    "float16": (_FLOAT, 16), "float32": (_FLOAT, 32), "float64": (_FLOAT, 64), "bfloat16": (_BFLOAT, 16),
    "complex32": (_COMPLEX, 32), "complex64": (_COMPLEX, 64), "complex128": (_COMPLEX, 128), "bool": (_BOOL, 8),
}  # fmt: skip
DLPACK: dict[torch.dtype, tuple[int, int]] = {
    getattr(torch, name): pair for name, pair in _DLPACK_NAMES.items() if hasattr(torch, name)
}
BYTE = (_UINT, 8)
DIMS_MAX = 64  # of a capsule: see csrc/arena_tensors.c

# One-byte dtypes that torch can view as bytes: they travel as uint8 and are viewed back.
VIEWED: frozenset[torch.dtype] = frozenset(
    getattr(torch, name)
    for name in (
        "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    )
    if hasattr(torch, name)
)  # fmt: skip



def refusal(t: torch.Tensor) -> str | None:
    """Why a tensor keeps its own reduction; None if its bytes say everything about it.

    The type must be exactly ``torch.Tensor`` or ``torch.nn.Parameter`` (the pickler's dispatch table sees to that).
    """
    if t.device.type != "cpu":
        return "device"
    if t.layout is not torch.strided or t.is_nested:
        return "layout"
    if t.dtype not in DLPACK and t.dtype not in VIEWED:
        return "dtype"
    if t.requires_grad:
        return "requires_grad"
    if t.is_conj() or t.is_neg():
        return "lazy_bit"
    if t.__dict__ or t._backward_hooks:
        return "attributes"
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return "wrapper"
    if t.dim() > DIMS_MAX:
        return "dimensions"
    if t.numel() == 0:
        return "empty"
    if t.data_ptr() == 0:
        return "storage"  # freed by resize_, or never there
    return None


def unusual_strides(t: torch.Tensor) -> tuple[int, ...] | None:
    """The strides, if they are not those of a new tensor of this shape: also where a size of 1 makes them meaningless."""
    strides, expected = t.stride(), 1
    for size, stride in zip(reversed(t.shape), reversed(strides)):
        if stride != expected:
            return strides
        expected *= size
    return None


def refusal_of_place(t: torch.Tensor, strides: Sequence[int] | None) -> str | None:
    """Why a tensor keeps its own reduction for the sake of its strides (None: contiguous) or of its storage's size."""
    reach = t.numel()
    if strides is not None:
        reach = 1 + sum([(size - 1) * stride for size, stride in zip(t.shape, strides)])
        if reach < t.numel() or any(stride == 0 and size > 1 for stride, size in zip(strides, t.shape)):
            return "expanded"  # elements share a place: gathering it would make it larger
    cut_short = t.untyped_storage().nbytes() < (t.storage_offset() + reach) * t.itemsize  # by resize_
    return "storage" if cut_short else None


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill one range of memory, each place once, in whatever order of dimensions.

    Then the bytes travel as they lie and the strides with them (channels_last, transposed).
    """
    expected = 1
    for stride, size in sorted(zip(strides, shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def real_operations() -> AbstractContextManager[object]:
    """Around what torch is to do itself: a dispatch mode, as of fake tensors, may stand in for it and touch no byte."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def rebuild_tensor(
    make: MakeCapsule, dtype: tuple[int, int] | torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> torch.Tensor:
    """Called by the unpickler.  ``strides`` None: contiguous.

    Raises:
        CorruptError: the shape does not fit the bytes.
    """
    if isinstance(dtype, tuple):
        return to_tensor(make, dtype, shape, strides)
    with real_operations():
        return to_tensor(make, BYTE, shape, strides).view(dtype)


def rebuild_parameter(*arguments: Any) -> torch.nn.Parameter:
    """Called by the unpickler: a parameter without gradient over the same storage."""
    return torch.nn.Parameter(rebuild_tensor(*arguments), requires_grad=False)
