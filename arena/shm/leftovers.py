"""What runs that are over have left, by proofs and not by guesses: see ``names.py``, and the survivors of ``backing.py``."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arena.errors import ArenaError, AttachError
from arena.shm import capacity, layout, names
from arena.shm.backing import entry_path, memory_path, remove_memory, survivors
from arena.shm.directory import ENTRY_PREFIX, MEMORY_PREFIX, check_directory, directory, remove_directory
from arena.shm.entry import Entry
from arena.shm.membership import Wanted
from arena.shm.outcome import is_awaited, lives

_MAGIC = layout.MAGIC.to_bytes(8, "little")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Leftover:
    """Something that is provably nobody's: where it is, what it was, and how many bytes of memory or disk it takes."""

    path: Path
    what: str
    nbytes: int


def collect(*, remove: bool, entries: Path | None = None, places: tuple[Path, ...] | None = None) -> list[Leftover]:
    """Finds what is provably nobody's, and removes it if asked to.

    What belongs to another user, cannot be looked at, or is not what arena makes, whatever its name, is passed over.

    Args:
        remove: False: only look.
        entries: the directory of the entries of offload regions; by default this user's.
        places: where segments and sockets have names; by default ``/dev/shm`` and the temporary directories.
    """
    if places is None:
        places = default_places()
    found = [*_regions(directory() if entries is None else entries, remove=remove)]
    for place in dict.fromkeys(places):
        for path in sorted(place.glob(f"{names.PREFIX}*-*")):
            with contextlib.suppress(OSError, ArenaError), names.dead(path) as fd:
                if fd is not None and (what := _what(path, fd)):
                    if remove:
                        names.remove_directory(path) if what == "socket" else os.unlink(path)
                    found.append(Leftover(path, what, os.fstat(fd).st_blocks * 512))
    return found


def default_places() -> tuple[Path, ...]:
    """Wherever a process with any ``TMPDIR`` that this one can know of has made names."""
    return Path(capacity.SHM_DIRECTORY), Path(tempfile.gettempdir()), Path("/tmp")


def _what(path: Path, fd: int) -> str | None:
    """What a name that nobody has a lock on is, or None if arena has not made it: by name, mode and content."""
    mode = os.fstat(fd).st_mode
    if mode & _OTHERS:
        return None
    if stat.S_ISREG(mode) and names.FILE.fullmatch(path.name):
        head = os.pread(fd, layout.HEADER_BYTES, 0)  # zeros, or nothing: its writer was killed before it wrote there
        return "segment" if head.startswith(_MAGIC) or not any(head) else None
    if stat.S_ISDIR(mode) and names.DIRECTORY.fullmatch(path.name):
        with os.scandir(fd) as inside:
            return "socket" if all(_is_socket(each) for each in inside) else None
    return None


def _is_socket(inside: os.DirEntry[str]) -> bool:
    return inside.name == names.SOCKET and stat.S_ISSOCK(inside.stat(follow_symlinks=False).st_mode)


def remove_failure(wanted: Wanted) -> None:
    """Removes the entry with the failure that a process of this instance left, unless somebody is still to read it."""
    _if_dead(wanted.path, remove=True)


def _regions(where: Path, *, remove: bool) -> Iterator[Leftover]:
    try:
        check_directory(where)
    except AttachError:  # no region was ever there
        return
    for path in sorted(where.glob(f"{ENTRY_PREFIX}*")):
        data = memory_path(path)
        with contextlib.suppress(OSError, ArenaError):
            nbytes = sum(each.stat().st_blocks * 512 for each in (path, data) if each.exists())
            if _if_dead(path, remove=remove):
                yield Leftover(path, "offload region", nbytes)
    for data in sorted(where.glob(f"{MEMORY_PREFIX}*")):
        path = entry_path(data)
        with contextlib.suppress(OSError, ArenaError):
            nbytes = data.stat().st_blocks * 512
            if not path.exists() and _if_without_entry(path, remove=remove):
                yield Leftover(data, "offload region", nbytes)


def _if_dead(path: Path, *, remove: bool) -> bool:
    try:
        entry = Entry.open(path, create=False)
    except FileNotFoundError:
        return False
    try:
        entry.lock()
        failure = entry.read().failure
        counts = failure is not None and lives(entry, failure)
        if counts or is_awaited(entry) or survivors(entry) or not entry.is_at_path():
            return False
        if remove:
            remove_memory(memory_path(path))
            entry.unlink()
            remove_directory(path.parent)
        return True
    finally:
        entry.close()


def _if_without_entry(path: Path, *, remove: bool) -> bool:
    """Whether memory whose entry is gone is nobody's.  It gets an entry for a moment: nobody comes to it meanwhile."""
    entry = Entry.open(path, create=True)
    try:
        entry.lock()
        if not entry.is_at_path() or not entry.is_empty():
            return False
        try:
            is_dead = not survivors(entry)
            if is_dead and remove:
                remove_memory(memory_path(path))
            return is_dead
        finally:
            entry.unlink()
            remove_directory(path.parent)
    finally:
        entry.close()
