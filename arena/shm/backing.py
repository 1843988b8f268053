"""The memory of a region, and what proves that somebody still has it.

* ``memfd``: no name, so no death can leak it.  A member is alive while its process has the memory open.
* ``shm``: a named file, for members in several PID namespaces, where process numbers say nothing.  Every member holds a
  shared lock on it for life; an exclusive lock that succeeds proves that nobody is left.

All of it is used under the lock of the entry.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
from pathlib import Path
from typing import Protocol

from arena.errors import AttachError, CapacityError
from arena.shm import capacity, process
from arena.shm.capacity import HUGE_PAGE
from arena.shm.descriptors import Owned, close_kept, is_kept, no_fork, open_owned
from arena.shm.directory import ENTRY_PREFIX, MEMORY_PREFIX
from arena.shm.entry import BACKINGS, Entry, Record
from arena.shm.layout import align
from arena.shm.shortage import lock

log = logging.getLogger("arena.shm")

Records = dict[int, Record]
"""Members by the place of their record in the entry."""


class Backing(Protocol):
    """Where a region's memory comes from."""

    def open(self, member: Record) -> Owned | None:
        """The memory, through a live member; None if it has died meanwhile.

        Raises:
            AttachError: the member lives, and its memory cannot be reached from here.
        """

    def create(self, nbytes: int, *, huge_pages: bool) -> Owned:
        """New memory of at least that many bytes."""

    def close(self, fd: Owned) -> None:
        """Gives up this process's hold of the memory; tensors may keep it mapped."""


class MemfdBacking:
    """Memory without a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def survivors(entry: Entry, records: Records) -> Records:
        """Those of the members that are alive."""
        here = process.pid_namespace()
        return {
            offset: record
            for offset, record in records.items()
            if (_has_memory(record) if record.namespace == here else bool(entry.is_held(offset)))
        }

    def open(self, member: Record) -> Owned | None:
        if member.namespace != process.pid_namespace():
            raise AttachError(
                f"the region belongs to process {member.pid} of another PID namespace, or time namespace "
                f"({member.namespace}, here {process.pid_namespace()}), where /proc/<pid>/fd leads elsewhere: they all need "
                "backing='shm'"
            )
        try:
            fd = open_owned(os.open, _path_of(member), os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except PermissionError as error:
            raise AttachError(
                f"{_path_of(member)}: {error.strerror}: only the same user can open it, and not if process "
                f"{member.pid} is not dumpable (PR_SET_DUMPABLE 0) or ptrace is restricted: run as the same user, or, as "
                "the same one, use backing='shm'"
            ) from error
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (member.device, member.inode):
            close_kept(fd)
            return None
        return fd

    def create(self, nbytes: int, *, huge_pages: bool) -> Owned:
        if huge_pages and (fd := self._create_huge(nbytes)) is not None:
            return fd
        return self._create_sealed(nbytes, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def _create_huge(self, nbytes: int) -> Owned | None:
        free = capacity.free_huge_bytes()
        needed = align(nbytes, HUGE_PAGE)
        if free < needed:
            log.info("huge_pages: %d bytes reserved, %d needed; asking for transparent ones instead", free, needed)
            return None
        try:
            fd = self._create_sealed(needed, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
            try:
                with no_fork(), mmap.mmap(fd, needed):  # reserves the pages, or fails now
                    return fd
            except BaseException:
                close_kept(fd)
                raise
        except (OSError, CapacityError) as error:
            log.info("huge_pages: no hugetlb memfd (%s); asking for transparent ones instead", error)
        check_capacity(nbytes, "memfd")
        return None

    def _create_sealed(self, nbytes: int, flags: int) -> Owned:
        try:
            fd = open_owned(os.memfd_create, self._name, flags)
            try:
                _set_size(fd, nbytes)
                # No peer can shrink it under our feet.
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            except BaseException:
                close_kept(fd)
                raise
        except OSError as error:
            if flags & os.MFD_HUGETLB or error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
                raise
            raise CapacityError(
                f"a region of {nbytes} bytes cannot be made: {error.strerror} (errno {error.errno}): this kernel or sandbox "
                "lacks memfd_create or its seals; backing='shm' needs neither"
            ) from error
        return fd

    def close(self, fd: Owned) -> None:
        close_kept(fd)


class ShmBacking:
    """Memory under a name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def survivors(self, entry: Entry, records: Records) -> Records:
        """Those of the members that are alive.

        Raises:
            AttachError: somebody has the memory, and the entry does not say who.
        """
        try:
            os.lstat(self._path)  # says that it is not there even where no descriptor is left to open it
            fd = open_owned(os.open, self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return {}
        try:
            lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self._path)
            return {}
        except BlockingIOError:
            inode = os.fstat(fd).st_ino
        finally:
            close_kept(fd)
        members = {
            offset: record
            for offset, record in records.items()
            if record.inode == inode and self._may_live(record, entry.is_held(offset))
        }
        if not members:
            raise AttachError(f"{self._path} is in use, and {entry.path} does not say by whom: end its users (fuser)")
        return members

    @staticmethod
    def _may_live(member: Record, held: bool | None) -> bool:
        if held is not None:
            return held
        return member.namespace != process.pid_namespace() or process.start_time(member.pid) == member.start

    def open(self, member: Record) -> Owned | None:
        try:
            fd = open_owned(os.open, self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, self._path)
        except BaseException:
            close_kept(fd)
            raise
        return fd

    def create(self, nbytes: int, *, huge_pages: bool) -> Owned:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = open_owned(os.open, self._path, flags, 0o600)
        try:
            lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, self._path)
            _set_size(fd, nbytes)
        except BaseException:
            remove_memory(self._path)
            close_kept(fd)
            raise
        return fd

    def close(self, fd: Owned) -> None:
        if is_kept(fd):
            fcntl.flock(fd, fcntl.LOCK_UN)  # a mapping that somebody still holds would keep the lock
        close_kept(fd)


def survivors(entry: Entry) -> Records:
    """The members that are alive, whatever memory they have, in the order of the entry.

    Raises:
        AttachError: somebody has the named memory, and the entry does not say who.
    """
    records = entry.read().records
    of = {backing: {offset: each for offset, each in records.items() if each.backing == backing} for backing in BACKINGS}
    found = MemfdBacking.survivors(entry, of["memfd"]) | ShmBacking(memory_path(entry.path)).survivors(entry, of["shm"])
    return dict(sorted(found.items()))


def memory_path(entry: Path) -> Path:
    """Where the memory of that entry is, if it has a name."""
    return entry.with_name(MEMORY_PREFIX + entry.name.removeprefix(ENTRY_PREFIX))


def entry_path(memory: Path) -> Path:
    """The other way round."""
    return memory.with_name(ENTRY_PREFIX + memory.name.removeprefix(MEMORY_PREFIX))


def remove_memory(path: Path) -> None:
    """Removes the name of memory that nobody has any more, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def check_capacity(nbytes: int, backing: str, *, huge_pages: bool = False) -> None:
    """Refuses memory that is not there: all of it is taken at once, and the kernel's answer would be the OOM killer.

    Where there are huge pages for all of it (``huge_pages``), those are there.

    Raises:
        CapacityError: with the numbers and the ways out.
    """
    if huge_pages and backing == "memfd" and capacity.are_huge_pages_reserved(nbytes):
        return
    demand = capacity.Demand("a region", nbytes, "make the region smaller")
    capacity.check_machine(demand)
    if backing == "shm":
        capacity.check_file_system(demand)
    capacity.check_cgroups(demand, populated=True)


def _has_memory(member: Record) -> bool:
    if process.start_time(member.pid) != member.start:
        return False
    try:
        status = os.stat(_path_of(member))
    except PermissionError:
        return True  # it lives; whoever tries to open the memory gets the reason
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (member.device, member.inode)


def _path_of(member: Record) -> str:
    return f"/proc/{member.pid}/fd/{member.fd}"


def _set_size(fd: int, nbytes: int) -> None:
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EINVAL):
            raise
        raise CapacityError(f"a region of {nbytes} bytes cannot be made: {error.strerror}") from error
