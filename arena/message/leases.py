"""The reader's side of a message: the object that its pickle describes, over leased slots.

A slot is held by every tensor over it and, while it is unpickled, by the message itself; the last of them to go
releases it, in C, from whatever thread.  So a message that cannot be unpickled leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from arena.errors import ArenaError, CorruptError
from arena.message.codec import OUT_OF_BAND, Buffer, Kind, Record
from arena.message.gates import Gates
from arena.message.tensors import BYTE, real_operations, rebuild_tensor
from arena.message.unpickling import loads
from arena.protocol.slots import Grant, drop
from arena.shm.native import Lease, address_of, capsules, ffi, lib

Receive = Callable[[int, int], Sequence[memoryview]]
"""Fetches the ``n_frames`` frames of message ``number``: the table, the pickle, each inline buffer."""


class PayloadLate(TimeoutError):
    """The record is there and what travels beside it is not yet."""


class Slots(Protocol):
    """Where slots come from: a message's grants, or handles of objects."""

    def lease(self, grant: Grant) -> Lease: ...


def _forget_own_copies(lease: Lease) -> None:
    """Of pages that this process wrote to under an earlier generation: it would read those instead of the message."""
    code = lib.arena_discard(ffi.cast("char *", lease.data), lease.nbytes)
    if code:
        raise ArenaError(
            f"a message's memory cannot be read afresh: {os.strerror(code)} (errno {code}): a reader with "
            "reader_access='private' must not lock that memory (mlock, mlockall)"
        )


class Decoder:
    """Unpickles messages in one reader; one thread at a time.

    Where a device may read the memory, ``gates`` lets leases wait for it.
    """

    def __init__(self, slots: Slots, *, private: bool, readonly: bool, gates: Gates | None = None) -> None:
        self._slots = slots
        self._private = private
        self._readonly = readonly
        self._gates = gates
        self.is_spent = False

    def decode(self, pointer: Any, nbytes: int, receive: Receive) -> object:
        """The object of a record; ``receive`` fetches what travelled out of band.

        Sets ``is_spent`` before anything of the record is used up.  An exception, as of a signal handler, that comes earlier
        leaves a record that can be decoded again; after a later one every slot of the message is released.

        Raises:
            PayloadLate: what travels out of band has not come in time; the record can be decoded again.
            CorruptError: the record's numbers cannot belong together.
            ArenaError: the reader has locked memory that is its own copy; the message is gone.
            ForkedError: this is a child, forked inside the unpickling.
            whatever unpickling raises.
        """
        record = Record(memoryview(ffi.buffer(pointer, nbytes)))
        plain = record.plain_pickle()
        if plain is not None:
            self.is_spent = True
            return loads(plain)
        leases: list[Lease] = []
        drops = map(drop, leases)  # lazy: of whatever is leased by then
        try:
            frames = self._take(record, leases, receive)
            if self._gates is not None:
                self._gates.admit(leases)
            return self._unpickle(record, leases, frames)
        finally:
            list(drops)  # one call, before which no signal handler runs

    def _take(self, record: Record, leases: list[Lease], receive: Receive) -> Sequence[memoryview]:
        """All that belongs to a message: what travels beside it, and its own hold of each of its slots.

        Where that fails, or a signal handler's exception comes in between, every slot is given back.  One that was
        leased is then released twice, which is harmless: the reader has not heard of its next generation yet.
        """
        grants = record.grants()
        frames: Sequence[memoryview] = []
        try:
            if record.flags & OUT_OF_BAND:
                frames = receive(record.number, 2 + record.n_inline)
            self.is_spent = True
            for grant in grants:
                leases.append(self._slots.lease(grant))
                if self._private:
                    _forget_own_copies(leases[-1])
        except PayloadLate:
            raise
        except BaseException:
            self.is_spent = True
            for grant in grants:
                with suppress(ArenaError, MemoryError):  # the first error is the one to tell
                    self._slots.lease(grant).drop()
            raise
        return frames

    def _unpickle(self, record: Record, leases: Sequence[Lease], frames: Sequence[memoryview]) -> object:
        if record.flags & OUT_OF_BAND:
            table, payload, *inline = frames
            buffers = record.buffers(table)
            if [len(frame) for frame in inline] != _inline_bytes(buffers):
                raise CorruptError(f"message {record.number} came out of band with other lengths than its table says")
        else:
            table = record.table()
            buffers = record.buffers(table)
            payload, *inline = record.payload(_inline_bytes(buffers))
        record.check_body(table, payload)
        return loads(payload, self._buffers(buffers, leases, iter(inline)))

    def _buffers(self, buffers: Sequence[Buffer], leases: Sequence[Lease], inline: Iterator[memoryview]) -> Iterator[Any]:
        """What the pickle asks for, in its order: for a tensor, the native call that makes it over its bytes.

        The bytes of an inline one are the record's, or a frame's, and outlive the unpickling."""
        for buffer in buffers:
            if buffer.kind is Kind.INLINE_TENSOR:
                yield partial(capsules.of_copy, None, address_of(ffi.from_buffer(next(inline))), buffer.nbytes)
            elif buffer.kind is Kind.INLINE_BYTES:
                yield bytearray(next(inline))
            else:
                yield self._in_slot(buffer, leases[buffer.grant])

    def _in_slot(self, buffer: Buffer, lease: Lease) -> Any:
        make = partial(capsules.of_lease, lease, buffer.offset, buffer.nbytes)
        if buffer.kind is Kind.SLOT_TENSOR:
            return make
        with real_operations():
            array = rebuild_tensor(make, BYTE, (buffer.nbytes,), None).numpy()  # its base is the tensor: the lease's holder
        if self._readonly:
            array.flags.writeable = False
        return array


def _inline_bytes(buffers: Sequence[Buffer]) -> list[int]:
    return [buffer.nbytes for buffer in buffers if buffer.kind < Kind.SLOT_TENSOR]
