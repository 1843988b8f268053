"""The bytes of a segment, as pure arithmetic.

``csrc/arena_layout.h`` has the same numbers as C structs; ``native.py`` compares the two when it is imported.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from enum import IntEnum

PAGE = mmap.PAGESIZE  # 4, 16 or 64 KiB: what is mapped, populated or discarded begins and ends at one
MEMBERS_OFFSET = 4096  # the header has this much, on every kernel
LINE = 64

MAGIC = 0x31414E4552415F5F
VERSION = 1
HEADER_BYTES = 384
HEADER_SECRET = 72
SECRET_BYTES = 32
HEADER_PUBLISHED = 128
HEADER_WRITER_PARK = 192
HEADER_WRITER_CLOSED = 256
HEADER_TRACE_STAMP = 320
MEMBER_BYTES = 192
MEMBER_PINNED = 8
MEMBER_CONSUMED = 64
MEMBER_PARK = 128
SLOT_BYTES = 32
RECORD_BYTES = 48  # the head of a record: arena/message/codec.py
WORD_BYTES = 8

READERS_MAX = 63  # a required mask is one u64: a bit per reader and one for the writer's own loans

C_CONSTANTS = (
    MAGIC, VERSION, HEADER_BYTES, HEADER_PUBLISHED, HEADER_WRITER_PARK, HEADER_WRITER_CLOSED, HEADER_TRACE_STAMP,
    MEMBER_BYTES, MEMBER_CONSUMED, MEMBER_PARK, SLOT_BYTES, HEADER_SECRET,
    MEMBER_PINNED, RECORD_BYTES,
)  # fmt: skip


def align(value: int, to: int) -> int:
    """The least multiple of ``to`` that is not below ``value``."""
    return (value + to - 1) // to * to


@dataclass(frozen=True)
class Layout:
    """Where each part of a segment lies; everything follows from four numbers.

    Attributes:
        n_readers: entries of the member table, 0 to 63.
        n_slots: entries of the slot table.
        ring_bytes: capacity of the ring, a multiple of the page size.
        data_bytes: size of the data area, a multiple of the page size; 0 for a segment without an arena.
    """

    n_readers: int
    n_slots: int
    ring_bytes: int
    data_bytes: int

    @property
    def slots_offset(self) -> int:
        return align(MEMBERS_OFFSET + self.n_readers * MEMBER_BYTES, LINE)

    @property
    def row_bytes(self) -> int:
        """One row of done or hold words; rows of different readers share no cache line."""
        return align(self.n_slots * WORD_BYTES, LINE)

    @property
    def n_rows(self) -> int:
        """A row per reader, and the last one for the writer's loans."""
        return self.n_readers + 1

    @property
    def done_offset(self) -> int:
        return align(self.slots_offset + self.n_slots * SLOT_BYTES, LINE)

    @property
    def hold_offset(self) -> int:
        return self.done_offset + self.n_rows * self.row_bytes

    @property
    def ring_offset(self) -> int:
        return align(self.hold_offset + self.n_rows * self.row_bytes, PAGE)

    @property
    def control_bytes(self) -> int:
        """Everything before the data area."""
        return self.ring_offset + self.ring_bytes

    @property
    def total_bytes(self) -> int:
        return self.control_bytes + self.data_bytes


class State(IntEnum):
    """The state of a member's entry."""

    EMPTY = 0
    JOINING = 1
    JOINED = 2
    LEFT = 3


PID_BITS = 22  # PID_MAX_LIMIT of 64-bit Linux is 2**22
START_BITS = 36  # clock ticks since boot: 21 years at 100 Hz
SERIAL_BITS = 4
PID_LIMIT = 1 << PID_BITS
START_LIMIT = 1 << START_BITS
SERIAL_LIMIT = 1 << SERIAL_BITS
_START_AT = 2 + PID_BITS
_SERIAL_AT = _START_AT + START_BITS


@dataclass(frozen=True)
class MemberWord:
    """A member's entry: one 64-bit word, so that no death can leave half of it.

    Attributes:
        state: EMPTY, JOINING, JOINED or LEFT.
        pid: the member's process, 0 to 2**22 - 1; 0 where its pid means nothing to the writer (another PID namespace).
        start: its start time in clock ticks since boot (field 22 of ``/proc/<pid>/stat``): a reused pid differs.
        serial: which of its process's joins here it is, modulo 16: a process that leaves may join again at once.
    """

    state: State
    pid: int
    start: int
    serial: int = 0

    def pack(self) -> int:
        start, serial = self.start % START_LIMIT, self.serial % SERIAL_LIMIT
        return self.state | (self.pid % PID_LIMIT) << 2 | start << _START_AT | serial << _SERIAL_AT

    @staticmethod
    def unpack(word: int) -> MemberWord:
        start, serial = word >> _START_AT & (START_LIMIT - 1), word >> _SERIAL_AT
        return MemberWord(State(word & 3), word >> 2 & (PID_LIMIT - 1), start, serial)

    def with_state(self, state: State) -> MemberWord:
        return replace(self, state=state)


EMPTY_WORD = MemberWord(State.EMPTY, 0, 0).pack()
