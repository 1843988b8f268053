"""The bytes of a record: a header, the grants, the buffer table, the pickle, the inline buffers.

The grants stand outside the pickle, so that a reader that cannot unpickle a message still releases what it carries.

::

    u32 flags, u32 n_grants, u32 n_buffers, u32 n_inline, u64 number, u64 pickle_bytes, u64 body_sum, u64 head_sum
    n_grants  x { u32 slot, u32 0, u64 generation }
    n_buffers x { u32 kind, u32 grant, u64 offset (in the extent), u64 nbytes }
    pickle, then the inline buffers one after another
    (with the flag OUT_OF_BAND all but header and grants travels over ZMQ instead: a table has no limit, a ring does)

Damage is noticed before it is acted on.  ``head_sum`` covers the header and the grants: to release a slot that the writer
did not grant could free memory in use, so if it is wrong nothing is released.  ``body_sum`` covers the table and the
pickle; the buffers themselves are not summed.  Both are XXH64: every message is summed, and it takes a
tenth of a CRC's time.

A record that is a pickle and nothing else is made and checked in C (``csrc/arena_record.c``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from arena.errors import CorruptError
from arena.protocol.slots import Grant
from arena.shm.native import ffi, lib

OUT_OF_BAND = 1
_FLAGS = OUT_OF_BAND

_FIELDS = struct.Struct("<IIIIQQQ")
_HEADER = struct.Struct("<IIIIQQQQ")
_SUM = struct.Struct("<Q")
_GRANT = struct.Struct("<IIQ")
_BUFFER = struct.Struct("<IIQQ")


Buffered: TypeAlias = "bytes | memoryview"


class Kind(IntEnum):
    """Where a buffer is, and what its unpickler wants: a tensor's storage, or an object with the buffer protocol."""

    INLINE_TENSOR = 0
    INLINE_BYTES = 1
    SLOT_TENSOR = 2
    SLOT_BYTES = 3
    UNKNOWN = 4


_KINDS = {int(kind): kind for kind in Kind if kind is not Kind.UNKNOWN}


class Buffer(NamedTuple):
    """An entry of the buffer table, in the order in which the pickle asks for them."""

    kind: Kind
    grant: int
    offset: int
    nbytes: int


def header_bytes(n_grants: int, n_buffers: int) -> int:
    """The length of a packed header."""
    return _HEADER.size + n_grants * _GRANT.size + n_buffers * _BUFFER.size


def checksum(*parts: Buffered) -> int:
    """XXH64 of the parts as one piece."""
    return lib.arena_checksum([*map(ffi.from_buffer, parts)], [*map(len, parts)], len(parts))  # type: ignore[no-any-return]


def pack(
    flags: int, number: int, pickle_parts: Sequence[bytes], grants: Sequence[Grant], buffers: Sequence[Buffer], n_inline: int
) -> tuple[bytes, bytes]:
    """The bytes of the header with the grants, and of the buffer table."""
    table = b"".join([_BUFFER.pack(*buffer) for buffer in buffers])
    pickle_bytes = sum(map(len, pickle_parts))
    fields = _FIELDS.pack(
        flags, len(grants), len(buffers), n_inline, number, pickle_bytes, checksum(table, *pickle_parts)
    )
    packed = b"".join([_GRANT.pack(slot, 0, generation) for slot, generation in grants])
    return b"".join([fields, _SUM.pack(checksum(fields, packed)), packed]), table


class Record:
    """A record as it lies in the ring.  Every number is checked before it is used.

    Raises:
        CorruptError: the header or the grants are damaged, or the record is too short for what it states.
    """

    __slots__ = ("_body_sum", "_bytes", "_n_buffers", "_n_grants", "flags", "n_inline", "number", "pickle_bytes")

    def __init__(self, record: memoryview) -> None:
        self._bytes = record
        if len(record) < _HEADER.size:
            raise CorruptError(f"a record of {len(record)} bytes is shorter than a header of {_HEADER.size}")
        header = _HEADER.unpack_from(record)
        self.flags, self._n_grants, self._n_buffers, self.n_inline, self.number, self.pickle_bytes = header[:6]
        self._body_sum, head_sum = header[6:]
        here = header_bytes(self._n_grants, 0 if self.flags & OUT_OF_BAND else self._n_buffers)
        if len(record) < here or self.flags & ~_FLAGS:
            raise CorruptError(f"a record of {len(record)} bytes states {header}")
        found = checksum(record[: _FIELDS.size], record[_HEADER.size : header_bytes(self._n_grants, 0)])
        if found != head_sum:
            raise CorruptError(f"a record's header is damaged ({found:#x}, not {head_sum:#x}): nothing is released by it")

    def plain_pickle(self) -> memoryview | None:
        """The pickle of a record that has nothing else.

        Raises:
            CorruptError: it is damaged.
        """
        if self._n_grants or self._n_buffers or self.flags:
            return None
        body = self._bytes[_HEADER.size :]
        self.check_body(b"", body)
        return body

    def check_body(self, table: Buffered, body: Buffered) -> None:
        """Raises:
        CorruptError: the buffer table or the pickle is damaged.
        """
        found = checksum(table, body)
        if len(body) != self.pickle_bytes or found != self._body_sum:
            raise CorruptError(f"message {self.number} is damaged (checksum {found:#x}, not {self._body_sum:#x})")

    def grants(self) -> list[Grant]:
        """What is owed a release, whatever else may be wrong with the record."""
        if not self._n_grants:
            return []
        end = _HEADER.size + self._n_grants * _GRANT.size
        return [Grant(slot, generation) for slot, _, generation in _GRANT.iter_unpack(self._bytes[_HEADER.size : end])]

    def table(self) -> memoryview:
        """The buffer table of a record that is not out of band."""
        start = _HEADER.size + self._n_grants * _GRANT.size
        return self._bytes[start : start + self._n_buffers * _BUFFER.size]

    def buffers(self, table: memoryview) -> list[Buffer]:
        """The entries of the buffer table.

        Raises:
            CorruptError: an entry is of no known kind, or lies in a grant that the record does not have; or there are
                more or fewer of them than the record says.
        """
        if len(table) != self._n_buffers * _BUFFER.size:
            raise CorruptError(f"a table of {len(table)} bytes for {self._n_buffers} buffers")
        rows = _BUFFER.iter_unpack(table)
        buffers = [Buffer(_KINDS.get(kind, Kind.UNKNOWN), grant, offset, nbytes) for kind, grant, offset, nbytes in rows]
        for buffer in buffers:
            if buffer.kind is Kind.UNKNOWN or (buffer.kind >= Kind.SLOT_TENSOR and buffer.grant >= self._n_grants):
                raise CorruptError(f"{buffer} in a record of {self._n_grants} grants")
        return buffers

    def payload(self, inline_bytes: Sequence[int]) -> Iterator[memoryview]:
        """The pickle, then each inline buffer.

        Raises:
            CorruptError: the lengths do not add up to the record's.
        """
        start = header_bytes(self._n_grants, self._n_buffers)
        if start + self.pickle_bytes + sum(inline_bytes) != len(self._bytes):
            raise CorruptError(f"a record of {len(self._bytes)} bytes: {start} + {self.pickle_bytes} + {inline_bytes}")
        for nbytes in (self.pickle_bytes, *inline_bytes):
            yield self._bytes[start : start + nbytes]
            start += nbytes
