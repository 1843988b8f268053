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


def advise_huge_pages(mapping: Any, fd: int) -> None:
    """Asks for transparent huge pages, unless the file has reserved ones; one line in the log says why there are none."""
    if os.fstatvfs(fd).f_bsize == HUGE_PAGE:
        return
    try:
        setting = SETTING.read_text()
    except OSError:
        setting = ""
    code = lib.arena_advise_huge(mapping.data, mapping.geometry.data_bytes)
    if code or "[never]" in setting or "[deny]" in setting:
        reason = os.strerror(code) if code else f"shmem_enabled is {setting.strip()}"
        log.warning("huge_pages: no transparent huge pages (%s); continuing with small ones", reason)
