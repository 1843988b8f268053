"""Transparent huge pages, for a mapping that has no reserved ones."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from arena.shm.capacity import HUGE_PAGE
from arena.shm.native import lib

log = logging.getLogger("arena.shm")

SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
SIZE_SETTING = SETTING.parent / f"hugepages-{HUGE_PAGE >> 10}kB" / SETTING.name  # newer kernels, for memory without a name
MOUNTS = Path("/proc/self/mountinfo")


def advise_huge_pages(mapping: Any, fd: int) -> None:
    """Asks for transparent huge pages, unless the file has reserved ones; one line in the log says why there are none."""
    if os.fstatvfs(fd).f_bsize == HUGE_PAGE:
        return
    code = lib.arena_advise_huge(mapping.data, mapping.geometry.data_bytes)
    reason = os.strerror(code) if code else _why_none(fd)
    if reason:
        log.warning("huge_pages: no transparent huge pages (%s); continuing with small ones", reason)


def _why_none(fd: int) -> str | None:
    """What the kernel's documentation (admin-guide/mm/transhuge.rst) says of a file; None if it may have them."""
    setting = _chosen(SETTING)
    if setting in ("deny", "force"):
        return f"{SETTING} is deny" if setting == "deny" else None
    if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
        return None if _mount_allows(os.fstat(fd).st_dev) else "its file system is mounted without huge=advise"
    of_size = _chosen(SIZE_SETTING)
    path, setting = (SETTING, setting) if of_size in (None, "inherit") else (SIZE_SETTING, of_size)
    return f"{path} is never" if setting == "never" else None


def _chosen(setting: Path) -> str | None:
    """The word in brackets; None where there is no such setting."""
    try:
        words = setting.read_text().split()
    except OSError:
        return None
    return next((word[1:-1] for word in words if word.startswith("[")), None)


def _mount_allows(device: int) -> bool:
    """Whether the file system of this device number was mounted so; also where that cannot be found out."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return True
    options = [fields[-1] for fields in mounts if fields[2] == f"{os.major(device)}:{os.minor(device)}"]
    return not options or any(option.startswith("huge=") and option != "huge=never" for option in options[-1].split(","))
