"""Memory that a test maps and unmaps itself, at page boundaries, as a segment does."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch

PAGE = mmap.PAGESIZE
SEED = int(os.environ.get("ARENA_SEED", "0"))
"""The base of all seeds here; it is part of each test's name, so a failure prints it."""


class Memory:
    """Anonymous pages, their address, and tensors over them that keep nothing alive but the mapping."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, pages * PAGE)
        self.nbytes = pages * PAGE
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def tensor(self, offset: int = 0, nbytes: int | None = None) -> torch.Tensor:
        count = self.nbytes - offset if nbytes is None else nbytes
        return torch.frombuffer(self._map, dtype=torch.uint8, count=count, offset=offset)
