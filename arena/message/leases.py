"""The reader's side of a message: the object that its pickle describes, over leased slots.

A slot is held by every tensor over it and, while it is unpickled, by the message itself; the last of them to go
releases it, in C, from whatever thread.  So a message that cannot be unpickled leaves nothing behind.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from arena.errors import CorruptError
from arena.message.codec import OUT_OF_BAND, Buffer, Kind, Record
from arena.message.tensors import BYTE, is_dense
from arena.protocol.slots import Grant, drop
from arena.shm import layout
from arena.shm.native import capsule_to_tensor, ffi, lib, shape_of
from arena.shm.segment import Segment

Receive = Callable[[int, int], Sequence[memoryview]]
"""Fetches the frames of message ``number`` (first argument), ``n_frames`` of them: the pickle, then the inline buffers."""


class Slots(Protocol):
    """Where slots come from: a message's grants, or handles of objects."""

    def open(self, grant: Grant) -> Any: ...

    def lease(self, grant: Grant) -> tuple[int, int]: ...


class SlotBytes:
    """A buffer in a slot, for one tensor."""

    __slots__ = ("_data", "_grant", "_nbytes")

    def __init__(self, grant: Any, data: Any, nbytes: int) -> None:
        self._grant = grant
        self._data = data
        self._nbytes = nbytes

    def tensor(self, code: int, bits: int, shape: Sequence[int], strides: Sequence[int] | None) -> torch.Tensor:
        """A tensor over the slot, which holds its lease."""
        _check_shape(bits, shape, strides, self._nbytes)
        c_strides = ffi.NULL if strides is None else shape_of(strides)
        node = lib.arena_grant_tensor(self._grant, self._data, code, bits, len(shape), shape_of(shape), c_strides)
        return capsule_to_tensor(node)


class InlineBytes:
    """A buffer that came with the pickle, for one tensor: copied out, because the ring is the writer's again soon."""

    __slots__ = ("_data", "_nbytes")

    def __init__(self, data: Any, nbytes: int) -> None:
        self._data = data
        self._nbytes = nbytes

    def tensor(self, code: int, bits: int, shape: Sequence[int], strides: Sequence[int] | None) -> torch.Tensor:
        """A tensor with memory of its own."""
        _check_shape(bits, shape, strides, self._nbytes)
        c_strides = ffi.NULL if strides is None else shape_of(strides)
        node = lib.arena_copied_tensor(self._data, self._nbytes, code, bits, len(shape), shape_of(shape), c_strides)
        return capsule_to_tensor(node)


def _check_shape(bits: int, shape: Sequence[int], strides: Sequence[int] | None, nbytes: int) -> None:
    """A dense tensor of this shape takes exactly its buffer: nothing is read beyond it."""
    elements = 1
    for size in shape:
        elements *= size
    if elements * bits != nbytes * 8 or nbytes == 0 or any(size < 0 for size in shape):
        raise CorruptError(f"a tensor of shape {tuple(shape)} and {bits} bits does not fit its {nbytes} bytes")
    if strides is not None and not (len(strides) == len(shape) and is_dense(shape, strides)):
        raise CorruptError(f"a tensor of shape {tuple(shape)} with strides {tuple(strides)} leaves its buffer")


class Decoder:
    """Unpickles messages in one reader; one thread at a time."""

    def __init__(self, segment: Segment, slots: Slots, *, private: bool, readonly: bool) -> None:
        self._mapping = segment.mapping
        self._slots = slots
        self._private = private
        self._readonly = readonly

    def decode(self, pointer: Any, nbytes: int, receive: Receive) -> object:
        """The object of a record; ``receive`` fetches what travelled out of band.

        Raises:
            CorruptError: the record's numbers cannot belong together.
            whatever unpickling raises; every slot of the message is released in any case.
        """
        record = Record(memoryview(ffi.buffer(pointer, nbytes)))
        plain = record.plain_pickle()
        if plain is not None:
            return pickle.loads(plain)
        with self._opened(record.grants()) as opened:
            return self._unpickle(record, opened, receive)

    def _unpickle(self, record: Record, opened: Sequence[tuple[Any, Any, int]], receive: Receive) -> object:
        buffers = record.buffers()
        inline_bytes = [buffer.nbytes for buffer in buffers if buffer.kind < Kind.SLOT_TENSOR]
        if record.flags & OUT_OF_BAND:
            payload, *inline = receive(record.number, 1 + len(inline_bytes))
            if [len(frame) for frame in inline] != inline_bytes:
                raise CorruptError(f"message {record.number} came out of band with other lengths than its record says")
        else:
            payload, *inline = record.payload(inline_bytes)
        return pickle.loads(payload, buffers=self._buffers(buffers, opened, iter(inline)))

    @contextmanager
    def _opened(self, grants: Sequence[Grant]) -> Iterator[list[tuple[Any, Any, int]]]:
        """The message's own hold of each grant: (grant, pointer, length of the extent)."""
        held: list[Any] = []
        try:
            for grant in grants:
                held.append(self._slots.open(grant))
            yield [self._map(c_grant, grant) for c_grant, grant in zip(held, grants)]
        finally:
            for c_grant in held:
                drop(c_grant)

    def _map(self, c_grant: Any, grant: Grant) -> tuple[Any, Any, int]:
        offset, nbytes = self._slots.lease(grant)
        data = self._mapping.data + offset
        if self._private:  # pages that this process wrote to under an earlier generation
            lib.arena_discard(data, layout.align(nbytes, layout.PAGE))
        return c_grant, data, nbytes

    def _buffers(
        self, buffers: Sequence[Buffer], opened: Sequence[tuple[Any, Any, int]], inline: Iterator[memoryview]
    ) -> Iterator[Any]:
        """What the pickle asks for, in its order."""
        for buffer in buffers:
            if buffer.kind is Kind.INLINE_TENSOR:
                yield InlineBytes(ffi.from_buffer(next(inline)), buffer.nbytes)
            elif buffer.kind is Kind.INLINE_BYTES:
                yield bytearray(next(inline))
            else:
                yield self._in_slot(buffer, *opened[buffer.grant])

    def _in_slot(self, buffer: Buffer, c_grant: Any, data: Any, extent_bytes: int) -> Any:
        if buffer.offset + buffer.nbytes > extent_bytes:
            raise CorruptError(f"a buffer of {buffer.nbytes} bytes at {buffer.offset} in an extent of {extent_bytes}")
        source = SlotBytes(c_grant, data + buffer.offset, buffer.nbytes)
        if buffer.kind is Kind.SLOT_TENSOR:
            return source
        array = source.tensor(*BYTE, (buffer.nbytes,), None).numpy()  # its base is the tensor, which holds the lease
        if self._readonly:
            array.flags.writeable = False
        return array
