"""Every kind of other object that a message may hold: arrays, bytes, buffers, and plain objects around them."""

from __future__ import annotations

import datetime
import pickle
import tempfile
from typing import Any

import numpy as np
import torch
from kinds_common import COLUMNS, COUNT, ROWS, Kinds, bytes_as, floats

OBJECTS = Kinds()
kind = OBJECTS.kind


# ---- numpy and bytes ------------------------------------------------------------------------------------------------


@kind
def array() -> Any:
    return np.random.rand(ROWS, COLUMNS)


@kind
def array_fortran() -> Any:
    return np.asfortranarray(np.random.rand(ROWS, COLUMNS))


@kind
def array_big_endian() -> Any:
    return np.arange(COUNT, dtype=">i4")


@kind
def array_with_gaps() -> Any:
    return np.random.rand(ROWS, COLUMNS)[:, ::2]


@kind
def array_reversed() -> Any:
    return np.arange(COUNT)[::-1]


@kind
def array_read_only() -> Any:
    a = np.arange(COUNT)
    a.flags.writeable = False
    return a


@kind
def array_broadcast() -> Any:
    return np.broadcast_to(np.float32(1.5), (ROWS, COLUMNS))


@kind
def array_zero_dim() -> Any:
    return np.array(1.5)


@kind
def array_empty() -> Any:
    return np.empty((3, 0, 2))


@kind
def array_of_structures() -> Any:
    a = np.zeros(COUNT, dtype=[("id", "i4"), ("score", "f8", (2,))])
    a["id"] = np.arange(COUNT)
    return a


@kind
def array_of_records() -> Any:
    return np.rec.array([(i, float(i)) for i in range(2000)], dtype=[("a", "i4"), ("b", "f8")])


@kind
def array_masked() -> Any:
    return np.ma.masked_array(np.arange(COUNT), np.arange(COUNT) % 3 == 0, fill_value=-7)


@kind
def array_of_objects() -> Any:
    return np.array([{"i": i} if i % 2 else None for i in range(2000)], dtype=object)


@kind
def array_of_times() -> Any:
    return np.arange("2020-01", "2080-01", dtype="datetime64[h]")


@kind
def array_of_durations() -> Any:
    return np.arange(COUNT).astype("timedelta64[ms]")


@kind
def array_of_text() -> Any:
    return np.array([f"token {i}" for i in range(2000)])


@kind
def array_complex() -> Any:
    return np.random.rand(COUNT).astype(np.complex64) * 1j


@kind
def array_float16() -> Any:
    return np.random.rand(COUNT).astype(np.float16)


class Labelled(np.ndarray):
    """An array subclass that loses what plain pickle loses."""


@kind
def array_subclass() -> Any:
    return np.arange(COUNT).view(Labelled)


@kind
def array_in_a_file() -> Any:
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype="f4", mode="w+", shape=(COUNT,))


@kind
def array_matrix() -> Any:
    return np.matrix(np.random.rand(ROWS, COLUMNS))


@kind
def array_of_structures_with_objects() -> Any:
    return np.array([(i, f"token {i}") for i in range(2000)], dtype=[("id", "i4"), ("text", "O")])


@kind
def numpy_scalar() -> Any:
    return np.float32(1.25)


@kind
def large_bytes() -> Any:
    return np.random.bytes(COUNT * 4)


@kind
def large_bytearray() -> Any:
    return bytearray(np.random.bytes(COUNT * 4))


@kind
def bare_memoryview() -> Any:
    return memoryview(b"x" * COUNT)


@kind
def buffer_read_only() -> Any:
    return pickle.PickleBuffer(np.random.bytes(COUNT * 4))


@kind
def buffer_writable() -> Any:
    return pickle.PickleBuffer(bytearray(np.random.bytes(COUNT * 4)))


@kind
def buffer_empty() -> Any:
    return pickle.PickleBuffer(b"")


@kind
def buffer_with_gaps() -> Any:
    return pickle.PickleBuffer(memoryview(bytes(COUNT * 4))[::2])


class Frame:
    """An object whose bytes travel beside its pickle, as dataframe and image libraries do it."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: int) -> Any:
        return Frame, (pickle.PickleBuffer(self.data),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and bytes(self.data) == bytes(other.data)


@kind
def object_with_buffer() -> Any:
    return Frame(bytearray(np.random.bytes(COUNT * 4)))


# ---- plain objects --------------------------------------------------------------------------------------------------


@kind
def plain() -> Any:
    return {"int": 1 << 200, "float": float("inf"), "text": "é🙂", "set": {1, None}, "day": datetime.date(2024, 2, 29)}


@kind
def function_without_name() -> Any:
    return {"tensor": floats(), "not_picklable": lambda: 0}


@kind
def mixed() -> Any:
    return {
        "pixels": bytes_as(torch.bfloat16),
        "mask": (floats() > 0)[:, 5:],
        "array": np.arange(COUNT),
        "ids": list(range(300)),
        "small": torch.arange(5),
        "nested": [{"grid": torch.tensor([[1, 2, 3]])}, (floats(), np.float64(0.5))],
    }
