"""Every kind of tensor that a message may hold: dtypes, strides, flags, layouts and types."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from kinds_common import COLUMNS, COUNT, ROWS, Kinds, bytes_as, floats

TENSORS = Kinds()
kind = TENSORS.kind


# ---- dtypes ---------------------------------------------------------------------------------------------------------

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)  # all that torch has, the exotic ones too


for _dtype in DTYPES:
    TENSORS[f"dtype_{str(_dtype).removeprefix('torch.')}"] = partial(bytes_as, _dtype)


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


@kind
def more_dimensions_than_dlpack_has() -> torch.Tensor:
    return floats(COUNT).view([1] * 65 + [COUNT])


@kind
def more_dimensions_and_gaps() -> torch.Tensor:
    return floats().view([1] * 65 + [ROWS, COLUMNS])[..., ::2]


@kind
def sliding_window() -> torch.Tensor:
    return floats(COUNT).unfold(0, 64, 1)


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
def sparse_csc() -> torch.Tensor:
    return torch.eye(512).to_sparse_csc()


@kind
def sparse_bsr() -> torch.Tensor:
    return torch.eye(512).to_sparse_bsr((16, 16))


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


class Weight(torch.nn.Parameter):
    """A subclass of the one subclass that is diverted."""


@kind
def parameter_subclass() -> torch.Tensor:
    return Weight(floats(), requires_grad=False)


@kind
def module() -> Any:
    return torch.nn.Linear(64, 64)


@kind
def buffer_of_a_module() -> torch.Tensor:
    return torch.nn.Buffer(floats())
