"""What it means for two objects of a kind to be the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def difference(a: Any, b: Any) -> str | None:
    """In what ``b`` differs from ``a``, both as received; None if they are the same."""
    if isinstance(a, (bytes, bytearray)) and not isinstance(b, type(a)):
        return _buffer_difference(a, b)
    if type(a) is not type(b):
        return f"type: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        return _tensor_difference(a, b)
    if isinstance(a, np.ndarray):
        return _array_difference(a, b)
    if isinstance(a, torch.nn.Module):
        return difference(dict(a.named_parameters()), dict(b.named_parameters()))
    if isinstance(a, dict):
        return difference(list(a.keys()), list(b.keys())) or difference(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"length: {len(a)} and {len(b)}"
        return next((found for x, y in zip(a, b) if (found := difference(x, y))), None)
    return None if a == b else f"value: {a!r} and {b!r}"


def _buffer_difference(a: Any, b: Any) -> str | None:
    """A bare PickleBuffer arrives in-band as bytes or bytearray, out of band as some buffer of the same bytes."""
    view = memoryview(b)
    if view.readonly is not isinstance(a, bytes):
        return f"readonly: {isinstance(a, bytes)} and {view.readonly}"
    return None if view.tobytes() == bytes(a) else "bytes"


_FACTS = ("dtype", "shape", "layout", "device", "requires_grad", "is_leaf", "is_quantized", "is_nested", "__dict__")


def _tensor_difference(a: torch.Tensor, b: torch.Tensor) -> str | None:
    for fact in _FACTS:
        if fact == "shape" and a.is_nested:
            continue
        x, y = getattr(a, fact), getattr(b, fact)
        if fact == "__dict__" and a.is_nested:
            continue
        if x != y:
            return f"{fact}: {x} and {y}"
    if a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return "lazy bits"
    if a.device.type == "meta":
        return None if a.stride() == b.stride() else "stride"
    if a.is_nested:
        return difference(list(a.unbind()), list(b.unbind()))
    if a.layout is torch.sparse_coo:
        return difference([a._indices(), a._values()], [b._indices(), b._values()])
    if a.layout in (torch.sparse_csr, torch.sparse_bsr):
        return difference([a.crow_indices(), a.col_indices(), a.values()], [b.crow_indices(), b.col_indices(), b.values()])
    if a.layout is torch.sparse_csc:
        return difference([a.ccol_indices(), a.row_indices(), a.values()], [b.ccol_indices(), b.row_indices(), b.values()])
    if a.is_quantized:
        return _quantized_difference(a, b)
    if _is_dense(a) and a.stride() != b.stride():
        return f"stride: {a.stride()} and {b.stride()}"
    return None if raw(a) == raw(b) else "bytes"


def _is_dense(t: torch.Tensor) -> bool:
    """Torch keeps the strides of what has neither gaps nor overlaps."""
    return t.stride() == torch.empty_like(t, dtype=torch.uint8, device="meta").stride()


def _quantized_difference(a: torch.Tensor, b: torch.Tensor) -> str | None:
    try:
        scheme = a.qscheme()
    except RuntimeError:  # made without a quantizer
        return None
    if scheme != b.qscheme():
        return "qscheme"
    if scheme is torch.per_tensor_affine:
        parameters = [[t.q_scale(), t.q_zero_point()] for t in (a, b)]
    else:
        parameters = [[t.q_per_channel_scales(), t.q_per_channel_zero_points(), t.q_per_channel_axis()] for t in (a, b)]
    return difference(*parameters) or difference(a.int_repr(), b.int_repr())


def raw(t: torch.Tensor) -> bytes:
    """A tensor's elements as bytes, in the order of its dimensions."""
    flat = t.detach().resolve_conj().resolve_neg().contiguous().flatten()
    if type(flat) is not torch.Tensor:
        flat = flat.as_subclass(torch.Tensor)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _array_difference(a: Any, b: Any) -> str | None:
    for fact in ("dtype", "shape"):
        if getattr(a, fact) != getattr(b, fact):
            return f"{fact}: {getattr(a, fact)} and {getattr(b, fact)}"
    for flag in ("writeable", "c_contiguous", "f_contiguous"):
        if getattr(a.flags, flag) != getattr(b.flags, flag):
            return f"{flag}: {getattr(a.flags, flag)} and {getattr(b.flags, flag)}"
    if isinstance(a, np.ma.MaskedArray):
        return difference([a.data, a.mask, a.fill_value], [b.data, b.mask, b.fill_value])
    if a.dtype.hasobject:  # the bytes are addresses
        return difference(a.tolist(), b.tolist())
    return None if a.tobytes() == b.tobytes() else "bytes"
