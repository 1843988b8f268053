"""Every kind of object that a message may hold, and what it means for two of them to be the same."""

from __future__ import annotations

import datetime
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

ROWS, COLUMNS = 96, 128  # with four bytes each well above the divert_bytes of the tests
COUNT = ROWS * COLUMNS

KINDS: dict[str, Callable[[], Any]] = {}


def kind(make: Callable[[], Any]) -> Callable[[], Any]:
    KINDS[make.__name__] = make
    return make


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (ROWS, COLUMNS)))


def bytes_as(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bits as a tensor of any dtype that can be viewed as bytes."""
    shape = shape or (ROWS, COLUMNS)
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8).view(dtype).view(shape)


# ---- dtypes ---------------------------------------------------------------------------------------------------------

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)  # all that torch has, the exotic ones too


def _empty(dtype: torch.dtype) -> torch.Tensor:
    try:
        return bytes_as(dtype)
    except (RuntimeError, TypeError, NotImplementedError):  # no view of bytes: uint4, quint8 ...
        return torch.empty(ROWS, COLUMNS, dtype=dtype)


for _dtype in DTYPES:
    KINDS[f"dtype_{str(_dtype).removeprefix('torch.')}"] = lambda dtype=_dtype: _empty(dtype)


# ---- shapes and strides ---------------------------------------------------------------------------------------------


@kind
def zero_dim() -> torch.Tensor:
    return torch.tensor(2.5)


@kind
def zero_dim_bfloat16() -> torch.Tensor:
    return torch.tensor(2.5, dtype=torch.bfloat16)


@kind
def no_elements() -> torch.Tensor:
    return torch.empty(0)


@kind
def no_elements_3d() -> torch.Tensor:
    return torch.empty(3, 0, 2, dtype=torch.float16)


@kind
def channels_last() -> torch.Tensor:
    return floats(2, 3, 64, 64).to(memory_format=torch.channels_last)


@kind
def channels_last_one_channel() -> torch.Tensor:
    return floats(2, 1, 64, 64).to(memory_format=torch.channels_last)


@kind
def transposed() -> torch.Tensor:
    return floats().t()


@kind
def permuted_float8() -> torch.Tensor:
    return bytes_as(torch.float8_e4m3fn, 8, 32, 64).permute(2, 0, 1)


@kind
def expanded() -> torch.Tensor:
    return floats(1, COLUMNS).expand(ROWS, COLUMNS)


@kind
def scalar_expanded() -> torch.Tensor:
    return torch.tensor(3.0).expand(ROWS, COLUMNS)


@kind
def size_one_with_odd_stride() -> torch.Tensor:
    return floats(COUNT).as_strided((1, COUNT // 2, 1), (7, 1, 999))


@kind
def sliced_with_gaps() -> torch.Tensor:
    return floats()[:, ::2]


@kind
def sliced_with_gaps_float8() -> torch.Tensor:
    return bytes_as(torch.float8_e5m2)[:, 3:-3]


@kind
def sliced_with_gaps_bool() -> torch.Tensor:
    return (floats() > 0)[::3]


@kind
def overlapping() -> torch.Tensor:
    return floats(COUNT).as_strided((COUNT // 2, 4), (1, 1))


@kind
def small_view_of_a_large_storage() -> torch.Tensor:
    return floats(COUNT * 4)[COUNT : 2 * COUNT]


@kind
def many_dimensions() -> torch.Tensor:
    return floats(COUNT).view([2] * 12 + [3])


# ---- flags ----------------------------------------------------------------------------------------------------------


@kind
def conjugated() -> torch.Tensor:
    return torch.randn(COUNT, dtype=torch.complex64).conj()


@kind
def negative_bit() -> torch.Tensor:
    return torch.randn(COUNT, dtype=torch.complex64).conj().imag


@kind
def needs_grad_leaf() -> torch.Tensor:
    return floats().requires_grad_()


@kind
def needs_grad_not_leaf() -> torch.Tensor:
    return floats().requires_grad_() * 2


@kind
def has_grad() -> torch.Tensor:
    t = floats().requires_grad_()
    (t * 3).sum().backward()
    return t.detach()


@kind
def inference() -> torch.Tensor:
    with torch.inference_mode():
        return floats()


@kind
def hooked() -> torch.Tensor:
    t = floats().requires_grad_()
    t.register_hook(_no_change)
    return t


@torch.utils.hooks.unserializable_hook
def _no_change(grad: torch.Tensor) -> torch.Tensor:
    return grad


@kind
def with_attribute() -> torch.Tensor:
    t = floats()
    t.tag = {"request": 7}  # type: ignore[attr-defined]
    return t


@kind
def zero_tensor() -> torch.Tensor:
    return torch._efficientzerotensor(COUNT)


# ---- other layouts --------------------------------------------------------------------------------------------------


@kind
def quantized_per_tensor() -> torch.Tensor:
    return torch.quantize_per_tensor(floats(), 0.1, 3, torch.quint8)


@kind
def quantized_per_channel() -> torch.Tensor:
    return torch.quantize_per_channel(floats(4, COUNT), torch.rand(4) + 0.1, torch.arange(4), 0, torch.qint8)


@kind
def nested_strided() -> torch.Tensor:
    return torch.nested.nested_tensor([floats(3, 64), floats(COUNT // 64, 64)])


@kind
def nested_jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([floats(3), floats(COUNT)], layout=torch.jagged)


@kind
def meta() -> torch.Tensor:
    return torch.empty(ROWS, COLUMNS, device="meta")


@kind
def sparse_coo() -> torch.Tensor:
    return torch.eye(2000).to_sparse()


@kind
def sparse_csr() -> torch.Tensor:
    return torch.eye(512).to_sparse_csr()


@kind
def mkldnn() -> torch.Tensor:
    return floats().to_mkldnn()


# ---- types ----------------------------------------------------------------------------------------------------------


class Marked(torch.Tensor):
    """A subclass as users write them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return super().__torch_function__(func, types, args, kwargs or {})


@kind
def subclass() -> torch.Tensor:
    return floats().as_subclass(Marked)


@kind
def parameter_with_grad() -> torch.Tensor:
    return torch.nn.Parameter(floats())


@kind
def parameter_without_grad() -> torch.Tensor:
    return torch.nn.Parameter(floats(), requires_grad=False)


@kind
def parameter_with_attribute() -> torch.Tensor:
    p = torch.nn.Parameter(floats(), requires_grad=False)
    p.weight_loader = "row"  # type: ignore[attr-defined]
    return p


@kind
def parameter_of_bytes() -> torch.Tensor:
    return torch.nn.Parameter(bytes_as(torch.float8_e4m3fn), requires_grad=False)


@kind
def module() -> Any:
    return torch.nn.Linear(64, 64)


@kind
def buffer_of_a_module() -> torch.Tensor:
    return torch.nn.Buffer(floats())


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


# ---- making, sending, comparing -------------------------------------------------------------------------------------


def make(name: str) -> Any:
    """An object of that kind; what torch says while making an unusual one is no concern of these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[name]()


def plain_pickle(value: Any) -> Any:
    """The oracle: what a plain pickle of protocol 5 makes of a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pickle.loads(pickle.dumps(value, protocol=5))


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
    if a.layout is torch.sparse_csr:
        return difference([a.crow_indices(), a.col_indices(), a.values()], [b.crow_indices(), b.col_indices(), b.values()])
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
    if a.dtype == object:
        return difference(a.tolist(), b.tolist())
    return None if a.tobytes() == b.tobytes() else "bytes"
