"""What a reader needs to find a queue."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields

from arena.config import Pin, ReaderAccess, as_integer
from arena.errors import InvalidHandle
from arena.shm.segment import SegmentHandle


@dataclass(frozen=True)
class Handle:
    """A queue's address: picklable, to be sent to each reader over any channel that both trust.

    Attributes:
        segment: where the shared memory is.
        endpoint: where out-of-band messages come from.
        local_reader_ranks: the ranks that attach to the segment, in the order of its member table.
        reader_access: how readers map the data.
        spin_us: how long a reader looks again before it parks.
        pin: when readers pin the memory for their devices.
        checksum: over all the other fields: a handle that was altered on its way says so.
    """

    segment: SegmentHandle
    endpoint: str
    local_reader_ranks: tuple[int, ...]
    reader_access: ReaderAccess
    spin_us: int
    pin: Pin = "off"
    checksum: int = 0

    def sealed(self) -> Handle:
        """The same handle with its checksum."""
        return Handle(**{**self._values(), "checksum": self._sum()})  # type: ignore[arg-type]

    def check(self) -> None:
        """Raises:
        InvalidHandle: the handle was altered or cut short.
        """
        if not isinstance(self.segment, SegmentHandle) or self.checksum != self._sum():
            raise InvalidHandle(f"a handle's checksum is {self.checksum!r}: it was altered; call export_handle() again")

    def _values(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "checksum"}

    def _sum(self) -> int:
        return zlib.crc32(repr(self._values()).encode())


def checked_handle(handle: object) -> Handle:
    """Refuses what is no handle, with a ValueError that says what to do with a pickled one."""
    if isinstance(handle, Handle):
        return handle
    if isinstance(handle, (bytes, bytearray, memoryview)):
        raise ValueError(f"handle is {type(handle).__name__}: of a pickled Handle, give pickle.loads(handle)")
    raise ValueError(f"handle={handle!r:.100}: must be what export_handle() returned")


def local_rank(handle: Handle, rank: object) -> int:
    """A rank as Python's integer.

    Raises:
        ValueError: the handle has no such local reader.
    """
    number = as_integer(rank)
    if number is None or number not in handle.local_reader_ranks:
        raise ValueError(f"rank={rank!r}: this handle's local readers are {list(handle.local_reader_ranks)}")
    return number
