"""Where the entries of offload regions are, and under which names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from urllib.parse import quote

from arena.errors import AttachError
from arena.shm.capacity import SHM_DIRECTORY
from arena.shm.shortage import SHORTAGES

ENTRY_PREFIX = "offload-"
MEMORY_PREFIX = "memory-"
"""Not a suffix: some engine's id may end in any."""


def directory() -> Path:
    """The one directory for all processes of this user, whatever their environments say: two would split a region."""
    return Path(SHM_DIRECTORY) / f"arena-{os.geteuid()}"


def entry_name(engine_id: str) -> str:
    """A file name for any engine id."""
    name = quote(engine_id, safe="")
    if len(name) > 150:
        name = hashlib.blake2b(engine_id.encode(), digest_size=32).hexdigest()
    return ENTRY_PREFIX + name


def make_directory(path: Path) -> None:
    """Makes the directory of the entries, unless it is there.

    Raises:
        AttachError: it is somebody else's, or open to others, or cannot be made there.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise AttachError(
            f"{path}, where the processes of a region find each other, cannot be made: {error.strerror} (errno "
            f"{error.errno}): mount a tmpfs at {path.parent} that user {os.geteuid()} can write to; it needs a few pages"
        ) from error
    check_directory(path)


def check_directory(path: Path) -> None:
    """Also after the entry is open: the directory may have been removed, and made again by somebody else."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return  # nor is there an entry in it, which is looked at next
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise AttachError(f"{path} must be a directory of user {os.geteuid()} that nobody else can enter (0700)")


def remove_directory(path: Path) -> None:
    """Removes the directory if nothing is in it."""
    with contextlib.suppress(OSError):  # other regions are in it
        path.rmdir()
