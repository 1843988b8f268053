"""Removing what runs that are over have left."""

from __future__ import annotations

from pathlib import Path

from arena.shm.backing import Backing, MemfdBacking, ShmBacking
from arena.shm.directory import directory, remove_directory
from arena.shm.entry import Entry
from arena.shm.membership import Wanted


def remove_failure(wanted: Wanted) -> None:
    """Removes the failure that a process of this instance left, unless somebody lives who has yet to read it."""
    _remove_if_dead(wanted.path, wanted.make_backing(), nonce=wanted.nonce)


def remove_stale(where: Path | None = None) -> list[Path]:
    """Removes what runs that are over have left, the memory of ``backing="shm"`` too; returns the entries removed."""
    where = directory() if where is None else where
    names = sorted(where.glob("offload-*")) if where.is_dir() else []
    removed = []
    for path in (name for name in names if name.suffix != ".data"):
        data = path.with_name(path.name + ".data")
        backing: Backing = ShmBacking(data) if data.exists() else MemfdBacking("")
        if _remove_if_dead(path, backing, nonce=None):
            removed.append(path)
    return removed


def _remove_if_dead(path: Path, backing: Backing, *, nonce: bytes | None) -> bool:
    try:
        entry = Entry.open(path, create=False)
    except FileNotFoundError:
        return False
    try:
        entry.lock()
        failure = entry.read().failure
        wrong = nonce is not None and (failure is None or failure.nonce != nonce)
        if wrong or not entry.is_at_path() or backing.survivors(entry):
            return False
        backing.remove()
        entry.unlink()
        remove_directory(path.parent)
        return True
    finally:
        entry.close()
