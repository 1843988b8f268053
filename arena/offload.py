"""One region of KV blocks in host memory, shared by all workers of an engine instance.

The region is ``num_chunks`` rows of ``kv_bytes_per_chunk`` bytes.  In a row, worker ``r`` owns ``cpu_page_size`` bytes
at ``r * cpu_page_size``; canonical tensors, which all workers share, are carved from the row's start instead.

The processes find each other by the engine's id, through a small file that is locked for moments; the memory itself
has no name, so no crash can leak it (`arena.shm.rendezvous`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

log = logging.getLogger("arena.offload")

Barrier = Callable[[], None]
"""Returns when every process of the instance has called it."""
MemoryCheck = Callable[[int], None]
"""Called with the region's size by its creator; raises if there is not enough memory."""

_DL_INT = 0
