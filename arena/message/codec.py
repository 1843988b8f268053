"""The bytes of a record: a header, the grants, the buffer table, the pickle, the inline buffers.

The grants stand outside the pickle, so that a reader that cannot unpickle a message still releases what it carries.

::

    u32 flags, u32 n_grants, u32 n_buffers, u32 0, u64 number, u64 pickle_bytes
    n_grants  x { u32 slot, u32 0, u64 generation }
    n_buffers x { u32 kind, u32 grant, u64 offset (in the extent), u64 nbytes }
    pickle, then the inline buffers one after another
    (with the flag OUT_OF_BAND the last two travel over ZMQ instead)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from arena.errors import CorruptError
from arena.protocol.slots import Grant

OUT_OF_BAND = 1
_FLAGS = OUT_OF_BAND

_HEADER = struct.Struct("<IIIIQQ")
_GRANT = struct.Struct("<IIQ")
_BUFFER = struct.Struct("<IIQQ")


class Kind(IntEnum):
    """Where a buffer is, and what its unpickler wants: a tensor's storage, or an object with the buffer protocol."""

    INLINE_TENSOR = 0
    INLINE_BYTES = 1
    SLOT_TENSOR = 2
    SLOT_BYTES = 3


class Buffer(NamedTuple):
    """An entry of the buffer table, in the order in which the pickle asks for them."""

    kind: Kind
    grant: int
    offset: int
    nbytes: int


class Header(NamedTuple):
    """Everything of a record but its payload."""

    flags: int
    number: int
    pickle_bytes: int
    grants: Sequence[Grant]
    buffers: Sequence[Buffer]


def header_bytes(n_grants: int, n_buffers: int) -> int:
    """The length of a packed header."""
    return _HEADER.size + n_grants * _GRANT.size + n_buffers * _BUFFER.size


def pack(header: Header) -> bytes:
    """The bytes of a header."""
    fixed = _HEADER.pack(
        header.flags, len(header.grants), len(header.buffers), 0, header.number, header.pickle_bytes
    )
    if not header.buffers:
        return fixed
    grants = b"".join([_GRANT.pack(slot, 0, generation) for slot, generation in header.grants])
    return fixed + grants + b"".join([_BUFFER.pack(*buffer) for buffer in header.buffers])


def unpack_grants(record: memoryview) -> list[Grant]:
    """The grants of a record, as far as they can be read: first, because each is owed a release whatever else is wrong.

    Raises:
        CorruptError: the record is too short for the number of grants that it states.
    """
    n_grants, n_buffers = _counts(record)
    end = _HEADER.size + n_grants * _GRANT.size
    if len(record) < header_bytes(n_grants, n_buffers):
        raise CorruptError(f"a record of {len(record)} bytes states {n_grants} grants and {n_buffers} buffers")
    return [Grant(slot, generation) for slot, _, generation in _GRANT.iter_unpack(record[_HEADER.size : end])]


def unpack(record: memoryview, grants: Sequence[Grant]) -> Header:
    """The header of a record, checked against the record's length.

    Raises:
        CorruptError: the numbers cannot belong together.
    """
    flags, n_grants, n_buffers, _, number, pickle_bytes = _HEADER.unpack_from(record)
    start = _HEADER.size + n_grants * _GRANT.size
    end = header_bytes(n_grants, n_buffers)
    try:
        buffers = [
            Buffer(Kind(kind), grant, offset, nbytes)
            for kind, grant, offset, nbytes in _BUFFER.iter_unpack(record[start:end])
        ]
    except ValueError as error:
        raise CorruptError(f"a record's buffer table: {error}") from None
    for buffer in buffers:
        if buffer.kind >= Kind.SLOT_TENSOR and buffer.grant >= n_grants:
            raise CorruptError(f"a buffer lies in grant {buffer.grant} of {n_grants}")
    inline = sum([buffer.nbytes for buffer in buffers if buffer.kind < Kind.SLOT_TENSOR])
    payload = 0 if flags & OUT_OF_BAND else pickle_bytes + inline
    if flags & ~_FLAGS or end + payload != len(record):
        raise CorruptError(f"a record of {len(record)} bytes states flags {flags} and {end} + {payload} bytes")
    return Header(flags, number, pickle_bytes, grants, buffers)


def _counts(record: memoryview) -> tuple[int, int]:
    if len(record) < _HEADER.size:
        raise CorruptError(f"a record of {len(record)} bytes is shorter than a header of {_HEADER.size}")
    _, n_grants, n_buffers, _, _, _ = _HEADER.unpack_from(record)
    return n_grants, n_buffers
