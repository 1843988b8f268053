"""What runs that are over have left, by proofs and not by guesses: see ``names.py``, and the survivors of ``backing.py``."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arena.errors import ArenaError
from arena.shm import names
from arena.shm.backing import Backing, MemfdBacking, ShmBacking
from arena.shm.capacity import SHM_DIRECTORY
from arena.shm.directory import directory, remove_directory
from arena.shm.entry import Entry
from arena.shm.membership import Wanted


@dataclass(frozen=True)
class Leftover:
    """Something that is provably nobody's: where it is, what it was, and how many bytes of memory or disk it takes."""

    path: Path
    what: str
    nbytes: int


def collect(*, remove: bool, entries: Path | None = None, places: tuple[Path, ...] | None = None) -> list[Leftover]:
    """Finds what is provably nobody's, and removes it if asked to.

    What belongs to another user, or cannot be looked at, is passed over.

    Args:
        remove: False: only look.
        entries: the directory of the entries of offload regions; by default this user's.
        places: where segments and sockets have names; by default ``/dev/shm`` and the temporary directories.
    """
    if places is None:
        places = Path(SHM_DIRECTORY), Path(tempfile.gettempdir()), Path("/tmp")
    found = [*_regions(directory() if entries is None else entries, remove=remove)]
    for place in dict.fromkeys(places):
        for path in sorted(place.glob(f"{names.PREFIX}*-*")):
            with contextlib.suppress(OSError), names.dead(path) as status:
                if status is not None and (what := _KINDS.get(stat.S_IFMT(status.st_mode))):
                    if remove:
                        shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else os.unlink(path)
                    found.append(Leftover(path, what, status.st_blocks * 512))
    return found


_KINDS = {stat.S_IFREG: "segment", stat.S_IFDIR: "socket"}


def remove_failure(wanted: Wanted) -> None:
    """Removes the failure that a process of this instance left, unless somebody lives who has yet to read it."""
    _if_dead(wanted.path, wanted.make_backing(), nonce=wanted.nonce, remove=True)


def _regions(where: Path, *, remove: bool) -> Iterator[Leftover]:
    paths = sorted(where.glob("offload-*")) if where.is_dir() else []
    for path in (each for each in paths if each.suffix != ".data"):
        data = path.with_name(path.name + ".data")
        backing: Backing = ShmBacking(data) if data.exists() else MemfdBacking("")
        with contextlib.suppress(OSError, ArenaError):
            nbytes = sum(each.stat().st_blocks * 512 for each in (path, data) if each.exists())
            if _if_dead(path, backing, nonce=None, remove=remove):
                yield Leftover(path, "offload region", nbytes)


def _if_dead(path: Path, backing: Backing, *, nonce: bytes | None, remove: bool) -> bool:
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
        if remove:
            backing.remove()
            entry.unlink()
            remove_directory(path.parent)
        return True
    finally:
        entry.close()
