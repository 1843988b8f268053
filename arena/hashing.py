"""Keys that stand for content: equal for equal values in every process, different for different ones.

Everything that makes two values differ is in the digest: types, lengths, shapes, dtypes, strides' order, PIL modes and
palettes.  Each part is preceded by its kind and its length, so that no two sequences of parts read the same.  The hash is
BLAKE2b with 256 bits, from ``hashlib``: a collision is not to be had on purpose either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from pathlib import PurePath, PureWindowsPath
from typing import Any

import numpy as np
import torch

__all__ = ["object_key"]

DIGEST_BYTES = 32
_DEPTH_MAX = 100
_SIZE = struct.Struct("<Q")

_Feed = Callable[[Any], None]


def object_key(value: object, *context: object) -> bytes:
    """32 bytes that stand for a value in a context, as an image with the model and the processor's arguments.

    Values: None, numbers, str, bytes, enums, paths, numpy arrays and scalars, torch tensors, PIL images of one frame, and
    dataclasses, sequences, mappings and sets of such values, nested in any way.  A mapping's order does not matter, a
    sequence's does.  ``1``, ``1.0`` and ``True`` differ, as do a list and a tuple, and arrays that differ in dtype or
    shape alone.  Of an image's metadata, transparency and orientation count.

    Args:
        value: what is to be cached.
        context: whatever else the result depends on.

    Raises:
        TypeError: a value of another type, of which there is no saying what makes it equal to another: subclasses of
            numbers, strings, arrays and tensors, tensors that are not dense, or have no bytes, and images of several
            frames are among them.  The text says what to give instead.
        ValueError: values are nested more than 100 deep (or without end).
        whatever PIL raises while it decodes a damaged image.
    """
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"arena object")
    for part in (value, *context):
        _add(hasher.update, part, 0)
    return hasher.digest()


def _part(feed: _Feed, kind: bytes, *fields: bytes | memoryview) -> None:
    """One part: its kind, the number of its fields, and each with its length."""
    feed(_SIZE.pack(len(kind)) + kind + _SIZE.pack(len(fields)))
    for data in fields:
        feed(_SIZE.pack(len(data)))
        feed(data)


def _add(feed: _Feed, value: Any, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ValueError(f"values are nested more than {_DEPTH_MAX} deep: does one contain itself?")
    exact = _EXACT.get(type(value))
    if exact is not None:
        exact(feed, value)
    elif isinstance(value, torch.Tensor):
        _add_tensor(feed, value)
    elif isinstance(value, (np.ndarray, np.generic)):
        _add_array(feed, value, depth)
    elif _is_image(value):
        _add_image(feed, value, depth)
    elif isinstance(value, Enum):
        name = value.name if value.name is not None else repr(value.value)  # flags that are set together
        _part(feed, b"enum", _type_name(value), name.encode())
    elif isinstance(value, PurePath):
        kind = b"windows path" if isinstance(value, PureWindowsPath) else b"path"
        _part(feed, kind, str(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytearray):
        _part(feed, b"bytearray", memoryview(value))
    elif isinstance(value, memoryview):
        _add_memoryview(feed, value)
    elif isinstance(value, (str, bytes, int, float, complex)):
        raise TypeError(f"{type(value)!r}: a subclass may mean anything; give its plain value")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        _part(feed, b"dataclass", _type_name(value))
        _add_mapping(feed, fields, depth)
        if isinstance(value, (Mapping, Set, Sequence)):  # with elements besides
            _add_elements(feed, value, depth)
    elif isinstance(value, (Mapping, Set, Sequence)):
        _add_elements(feed, value, depth)
    else:
        raise TypeError(f"{type(value)!r}: no key for values of this type; give their parts, or an id of your own as str")


def _add_elements(feed: _Feed, value: Mapping[Any, Any] | Set[Any] | Sequence[Any], depth: int) -> None:
    if isinstance(value, Mapping):
        _add_mapping(feed, value, depth)
    elif isinstance(value, Set):
        _part(feed, b"set", _SIZE.pack(len(value)), *sorted(_digest(each, depth + 1) for each in value))
    else:
        _part(feed, b"sequence", _type_name(value), _SIZE.pack(len(value)))
        for each in value:
            _add(feed, each, depth + 1)


def _add_float(feed: _Feed, value: float) -> None:
    _part(feed, b"float", struct.pack("<d", value))


_EXACT: dict[type, Callable[[_Feed, Any], None]] = {
    type(None): lambda feed, value: _part(feed, b"none"),
    bool: lambda feed, value: _part(feed, b"bool", b"1" if value else b"0"),
    int: lambda feed, value: _part(feed, b"int", b"%x" % value),  # of any size: decimal digits are limited
    float: _add_float,
    complex: lambda feed, value: _part(feed, b"complex", struct.pack("<dd", value.real, value.imag)),
    str: lambda feed, value: _part(feed, b"str", value.encode("utf-8", "surrogatepass")),
    bytes: lambda feed, value: _part(feed, b"bytes", value),
    range: lambda feed, value: _part(feed, b"range", b"%x %x %x" % (value.start, value.stop, value.step)),
}


def _type_name(value: object) -> bytes:
    return f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _digest(value: object, depth: int) -> bytes:
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"arena object")
    _add(hasher.update, value, depth)
    return hasher.digest()


def _add_mapping(feed: _Feed, value: Mapping[Any, Any], depth: int) -> None:
    """In the order of the digests: the order of keyword arguments does not matter."""
    items = sorted((_digest(key, depth + 1), _digest(each, depth + 1)) for key, each in value.items())
    _part(feed, b"mapping", *(digest for item in items for digest in item))


# ---- arrays ---------------------------------------------------------------------------------------------------------

_ARRAYS = (np.ndarray, np.memmap, np.recarray, np.matrix, np.ma.MaskedArray)
_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _add_memoryview(feed: _Feed, view: memoryview) -> None:
    if "O" in view.format:
        raise TypeError(f"{type(view)!r} of format {view.format!r}: no key for references to objects; give the objects")
    data = pickle.PickleBuffer(view).raw() if view.c_contiguous else view.tobytes()
    _part(feed, b"memoryview", view.format.encode(), repr(view.shape).encode(), data)


def _add_array(feed: _Feed, value: np.ndarray[Any, Any] | np.generic, depth: int) -> None:
    is_scalar = isinstance(value, np.generic)
    if type(value) not in ((value.dtype.type,) if is_scalar else _ARRAYS):
        raise TypeError(f"{type(value)!r}: a subclass may mean anything; give its plain value")
    array = np.asarray(value)
    kind, shape = b"scalar" if is_scalar else _type_name(value), repr(array.shape).encode()
    dtype = str(array.dtype).encode()
    if array.dtype.names is not None:  # between the fields there may be bytes that mean nothing
        _part(feed, b"fields", kind, dtype, shape)
        for name in array.dtype.names:
            _add_array(feed, np.asarray(array[name]), depth + 1)
    elif array.dtype.hasobject:
        _part(feed, b"objects", kind, dtype, shape)
        for each in array.flat:
            _add(feed, each, depth + 1)
    else:
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1) if array.size else np.empty(0, np.uint8)
        _part(feed, b"array", kind, dtype, shape, data.data)
    if isinstance(value, np.ma.MaskedArray):
        _add_array(feed, np.ma.getmaskarray(value), depth)
        _add(feed, value.fill_value, depth + 1)


def _add_tensor(feed: _Feed, value: torch.Tensor) -> None:
    if type(value) not in _TENSORS:
        raise TypeError(f"{type(value)!r}: a subclass may mean anything; give value.as_subclass(torch.Tensor)")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        raise TypeError(f"{type(value)!r} of {value.layout} and {value.dtype}: no key; give a dense one that has bytes")
    tensor = value.detach().cpu().resolve_conj().resolve_neg()
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    _part(feed, b"tensor", str(tensor.dtype).encode(), repr(tuple(tensor.shape)).encode(), data.data)


# ---- images ---------------------------------------------------------------------------------------------------------


def _is_image(value: object) -> bool:
    """A PIL image, without importing PIL where nobody has."""
    return any(base.__module__ == "PIL.Image" and base.__qualname__ == "Image" for base in type(value).__mro__)


def _add_image(feed: _Feed, value: Any, depth: int) -> None:
    """Pixels mean nothing without the mode and, where they are indices, the palette; transparency stands in ``info``."""
    frames = getattr(value, "n_frames", 1)
    if frames != 1 and value.format != "MPO":  # a phone's photograph and its previews: the photograph
        raise TypeError(f"{type(value)!r} of {frames} frames: give the file's bytes, or image.copy() if this frame is all")
    palette = value.getpalette("RGBA" if value.palette.mode == "RGBA" else "RGB") if value.palette is not None else None
    width, height = value.size
    _part(feed, b"image", value.mode.encode(), b"%d x %d" % (width, height), value.tobytes())
    _add(feed, palette, depth + 1)
    _add(feed, value.info.get("transparency"), depth + 1)
    _add(feed, _orientation(value), depth + 1)


def _orientation(image: Any) -> int:
    """How the image is to be turned; what is no orientation (it comes from a client's file) turns nothing."""
    given = image.getexif().get(_EXIF_ORIENTATION)
    return next((known for known in range(2, 9) if given == known), 1)


_EXIF_ORIENTATION = 0x0112
