"""A segment: one shared mapping, created by the writer and attached by its readers.

Backings:

* ``memfd``: no name in any file system, so no death can leak it.  A peer opens ``/proc/<pid>/fd/<n>`` of the creator.
* ``shm``: a 0600 file under ``/dev/shm``, for peers in another PID namespace; its name goes when all have mapped it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import struct
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from arena.config import Backing, Prefault, ReaderAccess
from arena.errors import ArenaError, AttachError, CapacityError, CorruptError, InvalidHandle
from arena.shm import capacity, layout, names, process
from arena.shm.capacity import HUGE_PAGE
from arena.shm.descriptors import close_kept, open_kept
from arena.shm.hugepages import advise_huge_pages
from arena.shm.layout import Layout, MemberWord, State
from arena.shm.native import ffi, geometry, lib
from arena.shm.shortage import SHORTAGES, refusal

log = logging.getLogger("arena.shm")

ID_BYTES = 16
_HEADER = struct.Struct("<QII16sQIIQQQ")
_ACCESS = {
    "shared": lib.ARENA_ACCESS_SHARED,
    "readonly": lib.ARENA_ACCESS_READONLY,
    "private": lib.ARENA_ACCESS_PRIVATE,
}


@dataclass(frozen=True)
class SegmentHandle:
    """Where a segment is and what it looks like; picklable.  Every field is checked when it is used to attach."""

    segment_id: bytes
    backing: Backing
    path: str  # /proc/<pid>/fd/<n> of the creator, or the name under /dev/shm
    device: int
    inode: int
    creator_pid: int
    creator_start: int
    boot_id: str
    pid_namespace: int
    layout: Layout


class Segment:
    """A mapped segment.  ``mapping`` is the C struct that native calls take; leases keep it mapped after ``close``.

    Thread-safe; not usable in a forked child, where ``alive`` is False.
    """

    def __init__(self, mapping: Any, fd: int, handle: SegmentHandle, *, writable_file: bool = True) -> None:
        self.mapping = mapping
        self.fd = fd
        self.handle = handle
        self.layout = handle.layout
        self.writable_file = writable_file  # write(2) into new pages works: not on hugetlbfs
        self._lock = threading.Lock()
        self._closed = False
        self._control = mapping.control
        _segments.add(self)

    @property
    def alive(self) -> bool:
        """False in a process that inherited this object through fork, and after ``close``."""
        return not self._closed and bool(self.mapping.alive[0])

    @property
    def data_address(self) -> int:
        """Where the data area is mapped in this process."""
        return int(ffi.cast("uintptr_t", self.mapping.data))

    def secret(self) -> bytes:
        """What authenticates cache handles: readable by whoever can map the segment, and no one else."""
        return bytes(ffi.buffer(self.mapping.control + layout.HEADER_SECRET, layout.SECRET_BYTES))

    def zero_in_child(self) -> None:
        """Zeros where the ring and the tables were; the data area stays a fault."""
        if not self._closed:
            lib.arena_map_zeros(self._control, self.layout.control_bytes)

    def close(self) -> None:
        """Gives up this object's hold of the mapping and its descriptor; idempotent."""
        with self._lock:
            if not self.alive:
                return
            self._closed = True
        lib.arena_map_release(self.mapping)
        close_kept(self.fd)


_segments: weakref.WeakSet[Segment] = weakref.WeakSet()


def _zero_in_child() -> None:
    """A call inside which an object forked runs on in the child for a while: it reads zeros, and not what is not mapped."""
    for segment in _segments:
        segment.zero_in_child()


os.register_at_fork(after_in_child=_zero_in_child)


def create(of: Layout, *, backing: Backing = "memfd", prefault: Prefault = "lazy", huge_pages: bool = False) -> Segment:
    """Makes a segment of this layout; the caller is its creator.

    Raises:
        CapacityError: the memory is not there; the text has the numbers and the ways out.
    """
    populated = prefault != "lazy"
    less = "use a smaller capacity_bytes" + (", or prefault='lazy'" if populated else "")
    demand = capacity.Demand("a segment", of.total_bytes, less)
    if backing == "shm":
        capacity.check_file_system(demand)
    if not (huge_pages and backing == "memfd" and capacity.are_huge_pages_reserved(of.total_bytes)):
        if populated:
            capacity.check_machine(demand)
        capacity.check_cgroups(demand, populated=populated)
    segment_id = secrets.token_bytes(ID_BYTES)
    fd, of, path, writable_file = _open_new(of, backing, segment_id, huge_pages)
    try:
        handle = _handle(segment_id, backing, path, fd, of)
        mapping = _map(fd, of, "shared")
        try:
            segment = Segment(mapping, fd, handle, writable_file=writable_file)
            _write_header(segment)
            if huge_pages and of.data_bytes:
                advise_huge_pages(mapping, fd)
            _prefault(segment, prefault)
        except BaseException:
            lib.arena_map_release(mapping)
            raise
    except BaseException:
        if backing == "shm":
            names.remove_file(path, fd)
        close_kept(fd)
        raise
    return segment


def _open_new(of: Layout, backing: Backing, segment_id: bytes, huge_pages: bool) -> tuple[int, Layout, str, bool]:
    """The new file, the layout it was sized for, the path that leads to it, and whether write(2) works on it."""
    try:
        if backing == "shm":
            path, fd = names.new_file(capacity.SHM_DIRECTORY, segment_id.hex())
            try:
                os.ftruncate(fd, of.total_bytes)
                # Taken now, because a store into a page that another segment has taken meanwhile is a SIGBUS; pages of the
                # data area come by write(2) or madvise(2), which say so.
                os.posix_fallocate(fd, 0, of.control_bytes)
            except BaseException:
                names.remove_file(path, fd)
                close_kept(fd)
                raise
            return fd, of, path, True
        if huge_pages and (opened := _open_hugetlb(of)) is not None:
            return (*opened, False)
        fd, path = _new_memfd(of)
        return fd, of, path, True
    except OSError as error:
        raise _no_memory("create", of, error) from error


def _new_memfd(of: Layout, flags: int = 0) -> tuple[int, str]:
    """A file that no peer can shrink under our feet, and the path by which peers open it."""
    fd = open_kept(lambda: os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags))
    try:
        os.ftruncate(fd, of.total_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        close_kept(fd)
        raise
    return fd, f"/proc/{os.getpid()}/fd/{fd}"


def _open_hugetlb(of: Layout) -> tuple[int, Layout, str] | None:
    """A memfd of reserved huge pages, or None where none are reserved."""
    slack = layout.align(of.control_bytes, HUGE_PAGE) - of.control_bytes
    huge = Layout(of.n_readers, of.n_slots, of.ring_bytes + slack, layout.align(of.data_bytes, HUGE_PAGE))
    try:
        fd, path = _new_memfd(huge, os.MFD_HUGETLB)
    except OSError as error:
        log.info("huge_pages: no hugetlb memfd (%s); asking for transparent huge pages instead", error)
        return None
    try:
        lib.arena_map_release(_map(fd, huge, "shared"))  # reserves the pages, or fails now
    except BaseException as error:
        close_kept(fd)
        if not isinstance(error, CapacityError):
            raise
        n_pages = huge.total_bytes // HUGE_PAGE
        log.info("huge_pages: fewer than %d are reserved; asking for transparent ones instead", n_pages)
        return None
    return fd, huge, path


def _no_memory(what: str, of: Layout, error: OSError) -> CapacityError:
    if error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
        way_out = (
            "this kernel or sandbox lacks memfd_create or its seals (backing='shm' needs neither), or MADV_DONTFORK or "
            "MADV_WIPEONFORK (Linux 4.14), without which a fork would not be safe"
        )
    elif error.errno in (errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR):
        way_out = (
            f"backing='shm' needs a tmpfs at {capacity.SHM_DIRECTORY} that this user can write to; or use backing='memfd'"
        )
    else:
        way_out = (
            "use a smaller capacity_bytes or max_chunk_bytes * max_chunks, or raise the limit (ulimit -v, ulimit -n, "
            "ulimit -f, container memory)"
        )
    return CapacityError(
        f"cannot {what} a segment of {of.total_bytes} bytes: {error.strerror} (errno {error.errno}); {way_out}"
    )


def _map(fd: int, of: Layout, access: ReaderAccess) -> Any:
    error = ffi.new("int *")
    mapping = lib.arena_map(fd, geometry(of), _ACCESS[access], error)
    if mapping == ffi.NULL:
        raise _no_memory("map", of, OSError(error[0], os.strerror(error[0])))
    return mapping


def _handle(segment_id: bytes, backing: Backing, path: str, fd: int, of: Layout) -> SegmentHandle:
    status = os.fstat(fd)
    return SegmentHandle(
        segment_id=segment_id,
        backing=backing,
        path=path,
        device=status.st_dev,
        inode=status.st_ino,
        creator_pid=os.getpid(),
        creator_start=process.own_start_time(),
        boot_id=process.boot_id(),
        pid_namespace=process.pid_namespace(),
        layout=of,
    )


def _header_of(handle: SegmentHandle) -> bytes:
    of = handle.layout
    creator = MemberWord(State.JOINED, handle.creator_pid, handle.creator_start).pack()
    return _HEADER.pack(
        layout.MAGIC, layout.VERSION, of.n_readers, handle.segment_id, creator, of.n_slots, 0, of.ring_bytes,
        of.data_bytes, of.control_bytes,
    )  # fmt: skip


def _write_header(segment: Segment) -> None:
    """Before any handle is out, so no order is needed."""
    ffi.buffer(segment.mapping.control, _HEADER.size)[:] = _header_of(segment.handle)
    secret = secrets.token_bytes(layout.SECRET_BYTES)
    ffi.buffer(segment.mapping.control + layout.HEADER_SECRET, layout.SECRET_BYTES)[:] = secret


def _prefault(segment: Segment, prefault: Prefault) -> None:
    if prefault == "lazy" or not segment.layout.data_bytes:
        return
    if prefault == "eager":
        code = lib.arena_populate(segment.mapping.data, segment.layout.data_bytes, 1)
        if code:
            raise _no_memory("populate", segment.layout, OSError(code, os.strerror(code)))
        return
    lib.arena_map_retain(segment.mapping)  # the thread's own hold: close may come first
    try:
        threading.Thread(target=_populate_in_background, args=(segment,), name="arena-prefault", daemon=True).start()
    except RuntimeError as error:
        lib.arena_map_release(segment.mapping)
        log.warning(_STOPPED, error)


def _populate_in_background(segment: Segment) -> None:
    code = lib.arena_populate(segment.mapping.data, segment.layout.data_bytes, 1)
    if code:
        log.warning(_STOPPED, os.strerror(code))
    lib.arena_map_release(segment.mapping)


_STOPPED = "prefault='background' stopped: %s; pages are taken as they are used"


def attach(handle: SegmentHandle, access: ReaderAccess = "shared") -> Segment:
    """Maps the segment that a handle leads to, after checking that it is that one.

    Raises:
        AttachError: it cannot be reached from this process; the text says why and which backing would do.
        InvalidHandle: the handle's fields cannot belong together.
        CorruptError: the segment's header does not say what the handle says.
    """
    _check_reach(handle)
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_NOFOLLOW if handle.backing == "shm" else 0)
    try:
        fd = open_kept(lambda: os.open(handle.path, flags))
    except OSError as error:
        raise _cannot_open(handle, error) from error
    try:
        _check_file(handle, fd)
        mapping = _map(fd, handle.layout, access)
        try:
            attached = Segment(mapping, fd, handle)
            expected = _header_of(handle)
            found = bytes(ffi.buffer(mapping.control, len(expected)))
            if found != expected:
                raise CorruptError(f"the header of {handle.path} is {found.hex()}, the handle says {expected.hex()}")
        except BaseException:
            lib.arena_map_release(mapping)
            raise
    except BaseException:
        close_kept(fd)
        raise
    return attached


def _check_reach(handle: SegmentHandle) -> None:
    of = handle.layout
    sane = (
        0 <= of.n_readers <= layout.READERS_MAX
        and of.n_slots >= 0
        and len(handle.segment_id) == ID_BYTES
        and of.ring_bytes > 0 == of.ring_bytes % layout.PAGE == of.data_bytes % layout.PAGE
        and of.data_bytes >= 0
        and handle.backing in ("memfd", "shm")
    )
    if not sane:
        raise InvalidHandle(f"not a segment's handle: {handle!r}; export it again with export_handle()")
    if handle.boot_id != process.boot_id():
        raise AttachError(
            f"segment {handle.path} is on another machine (boot {handle.boot_id}, here {process.boot_id()}): "
            "shared memory does not leave its machine; give this rank to the remote readers"
        )
    if handle.backing == "memfd" and handle.pid_namespace != process.pid_namespace():
        raise AttachError(
            f"segment {handle.path} belongs to another PID namespace, or time namespace ({handle.pid_namespace}, here "
            f"{process.pid_namespace()}), where /proc/<pid>/fd leads elsewhere: create it with backing='shm' and share "
            "/dev/shm, or share the namespace"
        )


def _cannot_open(handle: SegmentHandle, error: OSError) -> ArenaError:
    if error.errno in SHORTAGES:
        return refusal(f"a mapping of {handle.path}", error)
    if error.errno in (errno.EACCES, errno.EPERM):
        who = f"{handle.path}: {error.strerror}: only the same user can open it"
        if handle.backing == "shm":
            return AttachError(f"{who}: run as that user")
        return AttachError(
            f"{who}, and not if process {handle.creator_pid} is not dumpable (PR_SET_DUMPABLE 0) or ptrace is restricted: "
            "run as the same user, or, as the same one, use backing='shm'"
        )
    if error.errno in (errno.ENOENT, errno.ESRCH) and handle.backing == "memfd":
        return AttachError(f"{handle.path} does not exist: process {handle.creator_pid} has ended or closed the segment")
    if error.errno == errno.ENOENT:
        return AttachError(
            f"{handle.path} does not exist: it is unlinked once all expected readers have it, or the writer has ended, "
            "or /dev/shm is not shared with it; a late reader needs backing='memfd'"
        )
    return AttachError(f"{handle.path}: {error.strerror} (errno {error.errno})")


def _check_file(handle: SegmentHandle, fd: int) -> None:
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (handle.device, handle.inode):
        raise AttachError(
            f"{handle.path} is another file by now (inode {status.st_ino}, the handle's is {handle.inode}): "
            f"process {handle.creator_pid} has ended or closed the segment"
        )
    if status.st_size != handle.layout.total_bytes:
        raise InvalidHandle(f"{handle.path} has {status.st_size} bytes, the handle says {handle.layout.total_bytes}")


def unlink(handle: SegmentHandle) -> None:
    """Removes the name of an shm segment, if it is still this segment's; for memfd there is none."""
    if handle.backing != "shm":
        return
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(handle.path, follow_symlinks=False)
        if (status.st_dev, status.st_ino) == (handle.device, handle.inode):
            os.unlink(handle.path)
