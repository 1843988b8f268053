"""Arbitrary object graphs through a queue, held to what plain pickle makes of them."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy
import torch

from arena import ArenaConfig, MessageQueue
from arena.shm.native import lib
from fuzz.session import Failure, Session, expect

ARENA = ArenaConfig(capacity_bytes=256 << 10, slots=6, divert_bytes=512)  # small: much of it does not fit
CHUNK_BYTES = 16 << 10
LIMIT_S = 30.0

_NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
DTYPES = [getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)]
ARRAYS = ("?", "u1", "i2", "<i4", ">i4", "u8", "f2", "f4", "f8", "c8", "c16", "S7", "U3", "M8[s]", "m8[ms]", "i4,f8", "O")


@dataclass
class Pair:
    """An object of a class of ours."""

    left: Any
    right: Any


class FailsToPickle:
    """Its reduction raises."""

    def __reduce__(self) -> Any:
        raise ZeroDivisionError("a reduction that fails")


class FailsToUnpickle:
    """Its pickle raises when it is read."""

    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise LookupError("a rebuild that fails")


class Buffered:
    """Its bytes are a buffer of the pickle's."""

    def __init__(self, data: bytes) -> None:
        self.data = bytes(data)

    def __reduce__(self) -> Any:
        return Buffered, (pickle.PickleBuffer(self.data),)


class Tagged(torch.Tensor):
    """A subclass, which keeps its own reduction."""


def graphs(session: Session) -> None:
    """Object graphs (tensors of every dtype and stride kind, numpy, containers, cycles, failures) against plain pickle."""
    with MessageQueue(1, 1, None, CHUNK_BYTES, 4, arena=ARENA) as writer:
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as reader:
            writer.wait_until_ready(LIMIT_S)
            for case in session.cases(2000):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of numpy's and torch's about what we give them, not of ours
                    try:
                        one(session, case, writer, reader)
                    except Failure as failure:
                        raise Failure(f"case {case}: {failure}") from None


def one(session: Session, case: int, writer: MessageQueue, reader: MessageQueue) -> None:
    """One graph there, and nothing left of it here."""
    before = lib.arena_grants_live()
    _send_and_receive(session, case, writer, reader)
    if lib.arena_grants_live() != before:  # a cycle holds them
        gc.collect()
    now = writer.statistics()
    expect(now.slots_free == now.slots_total and not now.bytes_in_use, f"{now.slots_total - now.slots_free} slots are lost")
    expect(lib.arena_grants_live() == before, "a grant is left")


def _send_and_receive(session: Session, case: int, writer: MessageQueue, reader: MessageQueue) -> None:
    rng = session.rng(case)
    torch.manual_seed(rng.randrange(2**62))
    thing = Builder(rng).value(rng.randrange(5))
    try:
        plain = pickle.dumps(thing, protocol=5)
    except Exception as error:
        session.count("refused by pickle")
        _expect_error(lambda: writer.enqueue(thing, LIMIT_S), error, "enqueue")
    else:
        writer.enqueue(thing, LIMIT_S)
        _receive(session, thing, plain, reader)


def _receive(session: Session, thing: object, plain: bytes, reader: MessageQueue) -> None:
    try:
        expected = pickle.loads(plain)
    except LookupError as error:
        session.count("refused by unpickling")
        _expect_error(lambda: reader.dequeue(LIMIT_S), error, "dequeue")
        return
    except AttributeError:  # torch cannot read what it wrote, of some dtypes: the same error, or the thing itself
        expected = thing
    try:
        found = reader.dequeue(LIMIT_S)
    except (AttributeError, LookupError):
        expect(expected is thing, "dequeue raised what unpickling does not")
        session.count("refused by torch")
        return
    difference = Comparison(is_pickled=expected is not thing).difference(found, expected, "")
    expect(not difference, difference)


def _expect_error(call: Callable[[], object], expected: Exception, what: str) -> None:
    try:
        call()
    except Exception as error:
        expect(type(error) is type(expected), f"{what} raised {error!r}, plain pickle {expected!r}")
        return
    raise Failure(f"{what} raised nothing, plain pickle {expected!r}")


class Builder:
    """Makes graphs; what it has made may be met again in the same graph."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._made: list[Any] = []
        self._leaves = [self._tensor, self._tensor, self._tensor, self._array, self._scalar, self._bytes]

    def value(self, depth: int) -> Any:
        rng = self._rng
        if self._made and rng.random() < 0.15:
            return rng.choice(self._made)
        if rng.random() < 0.01:
            return rng.choice([FailsToPickle(), FailsToUnpickle(), lambda: 0])
        leaf: Callable[[], Any] = rng.choice(self._leaves)
        made = self._container(depth) if depth and rng.random() < 0.7 else leaf()
        self._made.append(made)
        return made

    def _container(self, depth: int) -> Any:
        rng = self._rng
        parts = [self.value(depth - 1) for _ in range(rng.randrange(5))]
        kind = rng.randrange(5)
        if kind == 0:
            if rng.random() < 0.1:
                parts.append(parts)
            return parts
        if kind == 1:
            return tuple(parts)
        if kind == 2:
            return {i if rng.random() < 0.5 else f"k{i}": part for i, part in enumerate(parts)}
        if kind == 3:
            return Pair(parts[0] if parts else None, parts)
        array = numpy.empty(len(parts), dtype=object)
        for i, part in enumerate(parts):
            array[i] = part
        return array

    def _scalar(self) -> Any:
        rng = self._rng
        return rng.choice([None, True, rng.randrange(-(2**70), 2**70), rng.random(), "text", ..., 1j, frozenset({1, 2})])

    def _bytes(self) -> Any:
        rng = self._rng
        data = rng.randbytes(rng.choice([0, 1, 511, 512, 4096, 40_000]))
        return rng.choice([bytes, bytearray, Buffered])(data)

    def _shape(self) -> tuple[int, ...]:
        rng = self._rng
        most = rng.choice([1, 4, 16, 40])
        return tuple(rng.randint(0 if rng.random() < 0.05 else 1, most) for _ in range(rng.randrange(4)))

    def _tensor(self) -> torch.Tensor:
        rng, dtype = self._rng, self._rng.choice(DTYPES)
        t = self._filled(self._shape(), dtype)
        for change in rng.sample(_CHANGES, rng.randrange(3)):
            t = change(t, rng)
        ending = rng.random()
        if ending < 0.05 and t.dtype.is_floating_point:
            return torch.nn.Parameter(t.detach(), requires_grad=rng.random() < 0.5)
        if ending < 0.08:
            return t.as_subclass(Tagged)
        if ending < 0.1 and t.dtype in (torch.float32, torch.int64) and not t.requires_grad:
            return t.to_sparse() if t.dim() else t
        return t

    @staticmethod
    def _filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        n = torch.Size(shape).numel()
        data = torch.randint(0, 2 if dtype is torch.bool else 256, (n * dtype.itemsize,), dtype=torch.uint8)
        return data.view(dtype).view(shape)

    def _array(self) -> Any:
        rng = self._rng
        dtype, shape = numpy.dtype(rng.choice(ARRAYS)), self._shape()
        if dtype.hasobject:
            return numpy.full(shape, "an object", dtype=dtype)
        n = int(numpy.prod(shape, dtype=int)) * dtype.itemsize
        data = bytes(n) if dtype.kind in "?U" else rng.randbytes(n)
        array = numpy.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
        kind = rng.randrange(4)
        if kind == 1:
            return numpy.asfortranarray(array)
        if kind == 2 and array.ndim:
            return array[::2]
        if kind == 3:
            array.flags.writeable = False
        return array


def _transposed(t: torch.Tensor, rng: Random) -> torch.Tensor:
    return t.permute(rng.sample(range(t.dim()), t.dim()))


def _sliced(t: torch.Tensor, rng: Random) -> torch.Tensor:
    return t[rng.randrange(2) :: rng.randint(1, 3)] if t.dim() else t


def _expanded(t: torch.Tensor, rng: Random) -> torch.Tensor:
    return t.unsqueeze(0).expand(rng.randrange(4), *t.shape)


def _narrow(t: torch.Tensor, rng: Random) -> torch.Tensor:
    return t.flatten()[: t.numel() // 2]


def _conjugate(t: torch.Tensor, rng: Random) -> torch.Tensor:
    return t.conj() if t.dtype in (torch.complex64, torch.complex128) else t


def _negative(t: torch.Tensor, rng: Random) -> torch.Tensor:
    return t.conj().imag if t.dtype in (torch.complex64, torch.complex128) else t


def _with_grad(t: torch.Tensor, rng: Random) -> torch.Tensor:
    return t.detach().requires_grad_() if t.dtype in (torch.float32, torch.float64) else t


def _attributed(t: torch.Tensor, rng: Random) -> torch.Tensor:
    t = t.view(t.shape)
    t.note = "an attribute"  # type: ignore[attr-defined]
    return t


_CHANGES = (_transposed, _sliced, _expanded, _narrow, _conjugate, _negative, _with_grad, _attributed)


class Comparison:
    """Two graphs are one: types, values, and which parts are the same object."""

    def __init__(self, *, is_pickled: bool) -> None:
        self._is_pickled = is_pickled  # else by numpy's pickle an array may have lost its byte order or read-only mark
        self._twins: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no number is used again

    def difference(self, found: Any, expected: Any, path: str) -> str:
        """Where they differ, or nothing."""
        if type(found) is not type(expected):
            return f"at {path or 'the top'}: {type(found)}, not {type(expected)}"
        if isinstance(expected, (list, dict, Pair, torch.Tensor, numpy.ndarray, bytearray)):
            twin = self._twins.setdefault(id(found), id(expected))
            if twin != id(expected) or sum(each == twin for each in self._twins.values()) > 1:
                return f"at {path}: shared where it should not be, or not where it should"
            if any(each is found for each in self._kept):
                return ""
            self._kept += [found]
        return self._inside(found, expected, path)

    def _inside(self, found: Any, expected: Any, path: str) -> str:
        if isinstance(expected, torch.Tensor):
            return _tensors(found, expected, path)
        if isinstance(expected, numpy.ndarray):
            return self._arrays(found, expected, path)
        if isinstance(expected, Pair):
            return self.difference(found.left, expected.left, path + ".left") or self.difference(
                found.right, expected.right, path + ".right"
            )
        if isinstance(expected, dict):
            if [*found] != [*expected]:
                return f"at {path}: keys {[*found]}, not {[*expected]}"
            return self._each([*found.values()], [*expected.values()], path)
        if isinstance(expected, (list, tuple)):
            return self._each(found, expected, path)
        if isinstance(expected, Buffered):
            found, expected = found.data, expected.data
        return "" if found == expected else f"at {path}: {found!r:.80}, not {expected!r:.80}"

    def _each(self, found: Any, expected: Any, path: str) -> str:
        if len(found) != len(expected):
            return f"at {path}: {len(found)} parts, not {len(expected)}"
        differences = (self.difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(found, expected)))
        return next(filter(None, differences), "")

    def _arrays(self, found: Any, expected: Any, path: str) -> str:
        order = [expected.flags.forc and a.flags.fnc for a in (found, expected)]  # one with gaps may come without
        about: list[Any] = [(a.dtype, in_order, a.flags.writeable) for a, in_order in zip((found, expected), order)]
        if found.shape != expected.shape:
            return f"at {path}: an array of shape {found.shape}, not {expected.shape}"
        if not self._is_pickled and not expected.dtype.hasobject:
            expected = expected.astype(found.dtype)
            return "" if found.tobytes() == expected.tobytes() else f"at {path}: an array has other bytes"
        if about[0] != about[1]:
            return f"at {path}: an array {about[0]}, not {about[1]}"
        if expected.dtype.hasobject:
            return self._each(found.ravel().tolist(), expected.ravel().tolist(), path)
        return "" if found.tobytes() == expected.tobytes() else f"at {path}: an array has other bytes"


def _tensors(found: torch.Tensor, expected: torch.Tensor, path: str) -> str:
    def about(t: torch.Tensor) -> Any:
        has_order = expected.layout is torch.strided and expected.is_contiguous()  # one with gaps may come without
        strides = t.stride() if has_order else None
        return t.dtype, t.shape, t.requires_grad, t.layout, strides, t.__dict__

    if about(found) != about(expected):
        return f"at {path}: a tensor {about(found)}, not {about(expected)}"
    return "" if _bytes_of(found) == _bytes_of(expected) else f"at {path}: a tensor has other bytes ({found.dtype})"


def _bytes_of(t: torch.Tensor) -> bytes:
    t = t.detach() if type(t) is torch.Tensor else t.detach().as_subclass(torch.Tensor)
    if t.layout is not torch.strided:
        t = t.to_dense()
    dense = t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    return dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
