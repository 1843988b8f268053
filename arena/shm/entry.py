"""The entry file of a rendezvous: what stands in it, byte by byte, and its lock.

A mark that the memory is populated, the first failure, then one record of 128 bytes per member.  Each is written by one
``pwrite`` and ends in a checksum: one that is torn is nobody's, for its writer died before it was in.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from arena.errors import ArenaError, AttachError, CapacityError
from arena.shm.descriptors import Owned, close_kept, is_kept, open_owned
from arena.shm.names import is_at
from arena.shm.shortage import SHORTAGES, lock, refusal

POPULATED_BYTES = 64
FAILURE_BYTES = 960
RECORDS_OFFSET = POPULATED_BYTES + FAILURE_BYTES
RECORD_BYTES = 128
ENTRY_BYTES_MAX = 1 << 20  # 8,000 members: more is not an entry of ours
FAILURE_PLACES = 1 << 40  # nothing is ever written there: one may lock bytes that a file has not
MEETING_PLACES = 1 << 50  # nor there
MEETING_BYTES = RECORD_BYTES << 32  # of all of them
NO_RANK = -1
LOCK_TIMEOUT_S = 1.0

BACKINGS = ("memfd", "shm")

_RECORD = struct.Struct("<4sIiIQQQQQQ16sB")
_FAILURE = struct.Struct("<4sIIQQI16s")
_CHECKSUM = struct.Struct("<I")
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of fcntl(2)
_RECORD_MAGIC = b"ARDV"
_FAILURE_MAGIC = b"ARDF"
_POPULATED_MAGIC = b"ARDP"


@dataclass(frozen=True)
class Record:
    """One member: who it is, and where it has which memory open."""

    pid: int
    start: int
    namespace: int
    rank: int
    fd: int
    device: int
    inode: int
    size: int
    row_bytes: int
    nonce: bytes
    backing: str

    @property
    def rank_text(self) -> str:
        return "none" if self.rank == NO_RANK else str(self.rank)

    def pack(self) -> bytes:
        body = _RECORD.pack(
            _RECORD_MAGIC, self.pid, self.rank, self.fd, self.start, self.namespace, self.device, self.inode,
            self.size, self.row_bytes, self.nonce, BACKINGS.index(self.backing),
        )  # fmt: skip
        return (body + _CHECKSUM.pack(zlib.crc32(body))).ljust(RECORD_BYTES, b"\0")

    @staticmethod
    def unpack(raw: bytes) -> Record | None:
        """The record, or None if it is torn, erased or none of ours."""
        body, checksum = raw[: _RECORD.size], raw[_RECORD.size : _RECORD.size + _CHECKSUM.size]
        if len(raw) != RECORD_BYTES or checksum != _CHECKSUM.pack(zlib.crc32(body)):
            return None
        magic, pid, rank, fd, start, namespace, device, inode, size, row_bytes, nonce, backing = _RECORD.unpack(body)
        if magic != _RECORD_MAGIC or backing >= len(BACKINGS):
            return None
        return Record(pid, start, namespace, rank, fd, device, inode, size, row_bytes, nonce, BACKINGS[backing])


@dataclass(frozen=True)
class Failure:
    """The first error of a process of an instance, and which process it was.

    It counts for those who come as long as somebody whom it concerns holds its place (`Entry.hold`), wherever that process
    is: at a barrier, all who are to meet there hold their instance's; without one, the process that failed holds its own.
    """

    nonce: bytes
    pid: int
    start: int
    namespace: int
    text: str
    number: int = field(default_factory=lambda: secrets.randbits(32))  # tells it from the same error at another time

    @property
    def place(self) -> int:
        return FAILURE_PLACES + self.number * RECORD_BYTES

    def pack(self) -> bytes:
        room = FAILURE_BYTES - _FAILURE.size - _CHECKSUM.size
        text = self.text.encode(errors="backslashreplace")[:room]
        who = self.pid, len(text), self.start, self.namespace, self.number, self.nonce
        body = _FAILURE.pack(_FAILURE_MAGIC, *who) + text
        return (body + _CHECKSUM.pack(zlib.crc32(body))).ljust(FAILURE_BYTES, b"\0")

    @staticmethod
    def unpack(raw: bytes) -> Failure | None:
        """The failure, or None if it is torn or was never written."""
        if len(raw) < FAILURE_BYTES:
            return None
        magic, pid, text_bytes, start, namespace, number, nonce = _FAILURE.unpack_from(raw)
        end = _FAILURE.size + text_bytes
        if magic != _FAILURE_MAGIC or end + _CHECKSUM.size > FAILURE_BYTES:
            return None
        if raw[end : end + _CHECKSUM.size] != _CHECKSUM.pack(zlib.crc32(raw[:end])):
            return None
        return Failure(nonce, pid, start, namespace, raw[_FAILURE.size : end].decode(errors="replace"), number)


def meeting_place(nonce: bytes) -> int:
    """What the processes of an instance that meet at a barrier hold, from their coming until they know how it went."""
    return MEETING_PLACES + int.from_bytes(nonce[:4], "little") * RECORD_BYTES


def _populated(nonce: bytes) -> bytes:
    """What the creator writes when it has populated the memory; needs no lock, as nobody else writes there."""
    body = _POPULATED_MAGIC + nonce
    return (body + _CHECKSUM.pack(zlib.crc32(body))).ljust(POPULATED_BYTES, b"\0")


def free_offset(alive: Container[int]) -> int:
    """Where a new record goes: the first place that is no live member's.  A dead one's record is nobody's.

    Raises:
        CapacityError: no entry is that large: who comes next would not see the record.
    """
    for offset in range(RECORDS_OFFSET, ENTRY_BYTES_MAX - RECORD_BYTES + 1, RECORD_BYTES):
        if offset not in alive:
            return offset
    raise CapacityError(f"a region has {(ENTRY_BYTES_MAX - RECORDS_OFFSET) // RECORD_BYTES} members at most")


@dataclass(frozen=True)
class Content:
    """All that an entry says."""

    populated_mark: bytes
    failure: Failure | None
    records: dict[int, Record]  # by offset

    def is_populated(self, nonce: bytes) -> bool:
        """Whether the creator of that instance has populated the memory."""
        return self.populated_mark == _populated(nonce)


class Entry:
    """An open entry file.  Only the holder of its lock may edit or unlink it, and only while the path leads to it."""

    def __init__(self, path: Path, fd: Owned) -> None:
        self.path = path
        self.fd = fd

    @staticmethod
    def open(path: Path, *, create: bool) -> Entry:
        """Opens the entry at a path, making an empty one if there is none and ``create``.

        Raises:
            AttachError: what stands there is not a file of this user.
            FileNotFoundError: there is none, and ``create`` is False.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        try:
            fd = open_owned(os.open, path, flags, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in SHORTAGES:
                raise refusal(f"the entry {path}", error) from error
            raise AttachError(f"{path} cannot be opened as this user: {error.strerror}") from error
        entry = Entry(path, fd)
        try:
            entry._check()
        except BaseException:
            entry.close()
            raise
        return entry

    def _check(self) -> None:
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise AttachError(f"{self.path} is not a regular file of user {os.geteuid()}: somebody else made it; remove it")

    def lock(self, timeout_s: float | None = None) -> None:
        """Takes the lock.  Sections are short, and a dead holder's lock is dropped by the kernel.

        Raises:
            TimeoutError: it is held for longer than that; the text names the holder.
            CapacityError: locks cannot be had there.
        """
        timeout_s = LOCK_TIMEOUT_S if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0002
        while True:
            try:
                lock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self.path)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"{self.path} is locked for more than {timeout_s} s by {self._holder()}: "
                        "let that process go on, or end it"
                    ) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.005)

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Closes the file, which drops the lock."""
        close_kept(self.fd)

    @property
    def is_open(self) -> bool:
        return is_kept(self.fd)

    def is_at_path(self) -> bool:
        """Whether the path leads to this file (and not to a successor, or nowhere)."""
        return is_at(self.path, self.fd)

    def is_empty(self) -> bool:
        return os.fstat(self.fd).st_size == 0

    def read(self) -> Content:
        raw = os.pread(self.fd, ENTRY_BYTES_MAX, 0)
        records = {}
        for offset in range(RECORDS_OFFSET, len(raw), RECORD_BYTES):
            record = Record.unpack(raw[offset : offset + RECORD_BYTES])
            if record is not None:
                records[offset] = record
        failure = Failure.unpack(raw[POPULATED_BYTES:RECORDS_OFFSET])
        return Content(raw[:POPULATED_BYTES], failure, records)

    def hold(self, offset: int) -> None:
        """Locks a place until the entry is closed: a sign of life that other PID namespaces can see.

        Raises:
            OSError: it cannot be locked, and whoever asks would be told that nobody has it.
        """
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _byte_lock(fcntl.F_RDLCK, offset))
        except OSError:
            if self.is_held(offset) is not None:
                raise

    def let_go(self, offset: int) -> None:
        """Gives back a place that this open entry holds."""
        with suppress(OSError):  # there are no such locks here
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _byte_lock(fcntl.F_UNLCK, offset))

    def is_held(self, offset: int, nbytes: int = RECORD_BYTES) -> bool | None:
        """Whether another open entry holds a place, or one of several; None: there are no such locks here to tell by."""
        try:
            found = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _byte_lock(fcntl.F_WRLCK, offset, nbytes))
        except OSError:
            return None
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def write_record(self, offset: int, record: Record) -> None:
        _write_at(self.fd, record.pack(), offset)

    def erase_record(self, offset: int) -> None:
        _write_at(self.fd, bytes(RECORD_BYTES), offset)

    def write_populated(self, nonce: bytes) -> None:
        _write_at(self.fd, _populated(nonce), 0)

    def write_failure(self, failure: Failure) -> None:
        _write_at(self.fd, failure.pack(), POPULATED_BYTES)

    def erase_failure(self) -> None:
        _write_at(self.fd, bytes(FAILURE_BYTES), POPULATED_BYTES)

    def truncate(self) -> None:
        os.ftruncate(self.fd, 0)

    def unlink(self) -> None:
        os.unlink(self.path)

    def _holder(self) -> str:
        """Who has the lock, as /proc/locks says."""
        inode = os.fstat(self.fd).st_ino
        try:
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return "another process"
        for line in lines:
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                return f"process {fields[4]} ({_state_of(fields[4])})"
        return "another process"


def _byte_lock(kind: int, offset: int, nbytes: int = RECORD_BYTES) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, offset, nbytes, 0)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    if written != len(data):
        raise ArenaError(f"only {written} of {len(data)} bytes fit into the entry: its file system is full")


def _state_of(pid: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "ended by now"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), "unknown state")
