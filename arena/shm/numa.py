"""On which NUMA nodes pages are to lie: raw ``mbind`` and ``set_mempolicy``, so that libnuma is not needed."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from arena.config import as_integer
from arena.shm.native import ffi, lib

log = logging.getLogger("arena.shm")

Numa = Literal["local", "interleave"] | int | None

NODES_MAX = 1024
_PREFERRED, _INTERLEAVE, _LOCAL = 1, 3, 4  # linux/mempolicy.h


@dataclass(frozen=True)
class Policy:
    """A memory policy, and how to ask the kernel for it.

    A node is preferred, not demanded: memory that runs short there comes from another one.
    """

    text: str
    mode: int
    nodes: tuple[int, ...] = ()

    @staticmethod
    def parse(numa: Numa) -> Policy | None:
        """The policy that an option names; None for none.

        Raises:
            ValueError: it names none.
        """
        if numa is None:
            return None
        if numa == "local":
            return Policy("local", _LOCAL)
        if numa == "interleave":
            return Policy("interleave", _INTERLEAVE, online_nodes())
        if (node := as_integer(numa)) is not None and 0 <= node < NODES_MAX:
            return Policy(str(node), _PREFERRED, (node,))
        raise ValueError(f"numa={numa!r}: must be 'local', 'interleave', the number of a node, or None")

    def bind_memory(self, address: Any, nbytes: int) -> None:
        """New pages of a range follow it, whoever takes them.  If the kernel refuses: one line in the log."""
        mask, words = self._mask()
        self._report(lib.arena_bind_memory(address, nbytes, self.mode, mask, words))

    def bind_thread(self) -> None:
        """New pages that this thread takes follow it; for a thread that ends with its work."""
        mask, words = self._mask()
        self._report(lib.arena_bind_thread(self.mode, mask, words))

    def _mask(self) -> tuple[Any, int]:
        if not self.nodes:
            return ffi.NULL, 0
        words = max(self.nodes) // 64 + 1
        bits = sum(1 << node for node in self.nodes)
        return ffi.new("uint64_t[]", [bits >> 64 * i & 0xFFFFFFFFFFFFFFFF for i in range(words)]), words

    def _report(self, code: int) -> None:
        if code:
            _warn_once(self.text, code)


@cache
def _warn_once(text: str, code: int) -> None:
    log.warning("numa=%s: %s; pages lie where the kernel puts them", text, os.strerror(code))


def online_nodes(path: Path = Path("/sys/devices/system/node/online")) -> tuple[int, ...]:
    """The numbers of the nodes, from a list such as ``0-1,4``; node 0 where that cannot be read."""
    try:
        parts = path.read_text().strip().split(",")
        ranges = [[int(end) for end in part.split("-")] for part in parts]
    except (OSError, ValueError):
        return (0,)
    return tuple(node for ends in ranges for node in range(ends[0], ends[-1] + 1))
