"""Named kinds of objects, and what several of them are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ROWS, COLUMNS = 96, 128  # with four bytes each well above the divert_bytes of the tests
COUNT = ROWS * COLUMNS


class Kinds(dict[str, Callable[[], Any]]):
    """What makes an object of each kind, by the kind's name."""

    def kind(self, make: Callable[[], Any]) -> Callable[[], Any]:
        self[make.__name__] = make
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
