"""What processes have, and what they have left behind."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from arena.shm.native import lib

_PAGE = os.sysconf("SC_PAGE_SIZE")


def own() -> dict[str, int]:
    """What this process has that a closed queue must not leave: mappings, grants, descriptors."""
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"mappings": lib.arena_maps_live(), "grants": lib.arena_grants_live(), "descriptors": descriptors}


def more_than(before: dict[str, int]) -> dict[str, int]:
    """What there is more of now."""
    return {what: n - before[what] for what, n in own().items() if n > before[what]}


def files_of(pids: Iterable[int]) -> list[str]:
    """Files and directories that these processes left in the places where there may be any."""
    names = set(map(str, pids))
    places = {"/dev/shm", "/tmp", tempfile.gettempdir()}
    found = [path for place in places for path in Path(place).glob("arena-*-*")]
    return sorted(str(path) for path in found if path.name.split("-")[1] in names)


def private_bytes(pid: int | str = "self") -> int:
    """Memory that the process alone has; 0 if it has ended."""
    try:
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


def shared_memory_bytes() -> int:
    """What memfds and /dev/shm of the whole machine take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) << 10
    return 0
