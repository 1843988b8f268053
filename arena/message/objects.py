"""An object of the cache as bytes: all in one extent, a record first and each buffer behind it.

::

    u64 length, a record as in the ring (its first grant is the object itself), each buffer at a multiple of 64

A buffer that lies in a loan stays there; the loan's slot is a further grant of the record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from arena.errors import CorruptError
from arena.message import codec, tensors
from arena.message.codec import Buffer, Kind, Record
from arena.message.gates import Gates
from arena.message.leases import Decoder
from arena.message.pickling import Encoded, Encoder, Inline, in_slot
from arena.message.unpickling import in_place
from arena.protocol.objects import ObjectReader
from arena.protocol.slots import Grant, SlotWriter, drop
from arena.shm.layout import LINE, align
from arena.shm.native import Lease, address_of, capsules, ffi, to_tensor
from arena.shm.segment import Segment

JOIN_BYTES = 64 << 10
"""Pieces of a pickle that are smaller are copied as one."""

_LENGTH = struct.Struct("<Q")


class ObjectEncoder(Encoder):
    """Pickles an object and leaves its buffers where they are, until there is an extent for all of them."""

    def __init__(self, slots: SlotWriter) -> None:
        super().__init__(slots, divert_bytes=0, copy_threads=1)
        self._lent: dict[int, Grant] = {}

    def pack(self, value: object) -> PackedObject:
        """An object, as it will lie in its extent."""
        self._lent = {}
        message = self.encode(value)
        return PackedObject(message, [*self._lent.values()])

    def _claim(self, nbytes: int) -> int | None:
        return None

    def _in_loan(self, slot: int, within: int, nbytes: int, inline: Kind) -> Buffer:
        self._lent.setdefault(slot, self._slots.grant(slot))
        return super()._in_loan(slot, within, nbytes, inline)

    def _gather(self, t: torch.Tensor) -> Buffer:
        """A tensor with gaps is copied straight into the extent later: no address, only the tensor."""
        if t.dtype not in tensors.DLPACK:
            return super()._gather(t)
        return self._beside(ffi.NULL, t.nbytes, Kind.INLINE_TENSOR, t)


class PackedObject:
    """Where everything of an object will lie in its extent.

    Attributes:
        nbytes: what the extent must have.
        loans: slots that hold buffers of the object already, and the generations under which they are lent.
    """

    def __init__(self, message: Encoded, loans: list[Grant]) -> None:
        self.loans = loans
        self._parts = message.pickle_parts
        self._kept = message.kept
        self._pickle_bytes = message.pickle_bytes
        header_bytes = codec.header_bytes(1 + len(self.loans), len(message.buffers))
        self._record_bytes = header_bytes + self._pickle_bytes
        self._buffers: list[Buffer] = []
        self._pieces: list[tuple[int, Inline]] = []  # (where in the extent, what)
        self.nbytes = _LENGTH.size + self._record_bytes
        beside = iter(message.inline)
        for buffer in message.buffers:
            self._buffers.append(self._placed(buffer, beside))

    def _placed(self, buffer: Buffer, beside: Any) -> Buffer:
        if buffer.kind >= Kind.SLOT_TENSOR:
            return buffer._replace(grant=buffer.grant + 1)
        piece = next(beside)
        if not buffer.nbytes:
            return buffer
        at = align(self.nbytes, LINE)
        self._pieces.append((at, piece))
        self.nbytes = at + buffer.nbytes
        return Buffer(in_slot(buffer.kind), 0, at, buffer.nbytes)

    def write(self, segment: Segment, slots: SlotWriter, grants: list[Grant], threads: int) -> int:
        """Fills the extent of the first grant: one copy of each buffer.  0, or the errno of memory that is not there."""
        slot = grants[0].slot
        n_inline = len(self._buffers) - len(self._pieces)
        header, table = codec.pack(0, 0, self._parts, grants, self._buffers, n_inline)
        head = [_LENGTH.pack(self._record_bytes), header, table]
        at = 0
        for part in self._joined([*head, *self._parts]):
            if error := slots.copy(slot, ffi.from_buffer(part), threads, at, len(part)):
                return error
            at += len(part)
        for at, piece in self._pieces:
            if error := self._write_piece(segment, slots, slot, at, piece, threads):
                return error
        return 0

    def _joined(self, parts: list[bytes]) -> list[bytes]:
        return [b"".join(parts)] if sum(map(len, parts)) < JOIN_BYTES else parts

    def _write_piece(self, segment: Segment, slots: SlotWriter, slot: int, at: int, piece: Inline, threads: int) -> int:
        if piece.address != ffi.NULL:
            return slots.copy(slot, piece.address, threads, at, piece.nbytes)
        gathered = piece.keepalive
        if not isinstance(gathered, torch.Tensor):
            raise TypeError(f"a buffer without an address: {gathered!r}")
        if error := slots.populate(slot, at, piece.nbytes):
            return error
        make = partial(capsules.of_mapping, address_of(segment.mapping), slots.offsets[slot] + at, piece.nbytes)
        with tensors.real_operations():
            to_tensor(make, tensors.DLPACK[gathered.dtype], gathered.shape, None).copy_(gathered)
        return 0


class ObjectDecoder(Decoder):
    """Rebuilds objects over their slots; any number of threads at a time."""

    def __init__(self, slots: ObjectReader, *, readonly: bool, gates: Gates | None = None) -> None:
        super().__init__(slots, private=False, readonly=readonly, gates=gates)
        self._objects = slots

    def get(self, grant: Grant) -> object:
        """The object, over leased memory.

        Raises:
            StaleSlotError: it was evicted.
            CorruptError: the slot does not hold an object.
            ForkedError: this is a child, forked inside the unpickling.
            whatever unpickling raises.
        """
        leases: list[Lease] = []
        drops = map(drop, leases)  # lazy: of whatever is held by then
        try:
            self._lease([grant], leases)
            in_place[id(leases)] = leases[0]
            record = self._record(leases[0])
            first, *loans = record.grants()
            if first != grant:
                raise CorruptError(f"slot {grant.slot} holds the record of {first}, not of {grant}")
            self._lease(loans, leases)
            if record.flags & codec.OUT_OF_BAND:
                raise CorruptError(f"slot {grant.slot} holds a record that says it travelled out of band")
            return self._unpickle(record, leases, [])
        finally:
            list(drops)  # one call, before which no signal handler runs
            in_place.pop(id(leases), None)

    def _lease(self, grants: Sequence[Grant], leases: list[Lease]) -> None:
        """A hold of each slot while the object is unpickled."""
        n_before = len(leases)
        leases.extend(map(self._objects.lease, grants))
        if self._gates is not None:
            self._gates.admit(leases[n_before:])

    def _record(self, lease: Lease) -> Record:
        if lease.nbytes < _LENGTH.size:
            raise CorruptError(f"an extent of {lease.nbytes} bytes holds no object")
        start = ffi.cast("char *", lease.data)
        record_bytes = int(ffi.cast("uint64_t *", start)[0])
        if record_bytes > lease.nbytes - _LENGTH.size:
            raise CorruptError(f"a record of {record_bytes} bytes in an extent of {lease.nbytes}")
        return Record(memoryview(ffi.buffer(start + _LENGTH.size, record_bytes)))
