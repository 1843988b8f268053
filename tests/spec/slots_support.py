"""Slots of a writer, as its callers and its readers have them: a reader is a native call."""

from __future__ import annotations

from arena.protocol.extents import Extents
from arena.protocol.slots import SlotWriter, State
from arena.shm.layout import PAGE
from arena.shm.native import lib

BOTH = 0b11  # the members of a segment with two readers


def claimed(writer: SlotWriter, nbytes: int = PAGE) -> int:
    slot = writer.claim(nbytes)
    assert isinstance(slot, int)
    return slot


def lent(writer: SlotWriter) -> int:
    slot = claimed(writer)
    writer.loan(slot)
    return slot


def sent(writer: SlotWriter, position: int = 0, members: int = BOTH) -> int:
    slot = claimed(writer)
    writer.publish([slot], members)
    writer.enqueue([slot], position)
    return slot


def release(writer: SlotWriter, row: int, slot: int) -> None:
    lib.arena_slot_release(writer._mapping, row, slot, writer.generations[slot])


def is_as_new(writer: SlotWriter) -> bool:
    """Every slot and every byte is free, and nobody owes anything."""
    fresh = Extents(writer.capacity_bytes)
    return (
        writer.usage() == (len(writer.states), 0)
        and sorted(writer._free) == list(range(len(writer.states)))
        and set(writer.states) == {State.FREE}
        and not any(writer.required)
        and not (writer._sent or writer._loans or writer._pending or writer._fences)
        and writer.extents.free_ranges() == fresh.free_ranges()
    )
