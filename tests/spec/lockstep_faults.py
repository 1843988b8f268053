"""Mistakes in the code that the lockstep has to notice: each changes one function of a `SlotCode`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lockstep_slots import SlotCode

from arena.protocol.slots import KIND_MESSAGE, State
from arena.shm.layout import MEMBER_BYTES, MEMBER_CONSUMED, PAGE
from arena.shm.native import lib

Fault = Callable[[SlotCode], None]


def generation_stays(code: SlotCode) -> None:
    claim = code.writer.claim

    def changed(nbytes: int, kind: int = KIND_MESSAGE) -> Any:
        slot = claim(nbytes, kind)
        code.writer.generations[slot] -= 1
        offset = code.writer.offsets[slot]
        lib.arena_slot_claim(code.segment.mapping, slot, code.writer.generations[slot], offset, nbytes, kind)
        return slot

    code.writer.claim = changed


def extents_overlap(code: SlotCode) -> None:
    take = code.writer.extents.take
    code.writer.extents.take = lambda nbytes: None if take(nbytes) is None else 0


def half_a_copy(code: SlotCode) -> None:
    copy = code.writer.copy
    code.writer.copy = lambda slot, source, threads: copy(slot, source, threads, 0, code.writer.lengths[slot] // 2)


def first_reader_not_required(code: SlotCode) -> None:
    publish = code.writer.publish
    code.writer.publish = lambda slots, members: publish(slots, members & ~1)


def everybody_required(code: SlotCode) -> None:
    publish = code.writer.publish
    code.writer.publish = lambda slots, members: publish(slots, (1 << code.config.readers) - 1)


def abort_forgets_the_published(code: SlotCode) -> None:
    abort = code.writer.abort

    def changed(slots: Iterable[int]) -> None:
        abort([slot for slot in slots if code.writer.states[slot] is State.CLAIMED])

    code.writer.abort = changed


def abort_keeps_the_extent(code: SlotCode) -> None:
    def changed(slots: Iterable[int]) -> None:
        for slot in slots:
            code.writer.states[slot] = State.FREE
            code.writer._free.append(slot)

    code.writer.abort = changed


def the_dead_still_owe(code: SlotCode) -> None:
    code.writer.reclaim = lambda row: lib.arena_rows_clear(code.segment.mapping, row)


def the_dead_owe_the_first_slot(code: SlotCode) -> None:
    excuse = code.writer._excuse
    code.writer._excuse = lambda row, slots: excuse(row, [*slots][1:])


def the_dead_keep_the_ring_full(code: SlotCode) -> None:
    code.ring.drop_reader = lambda row: None


def the_entry_stays(code: SlotCode) -> None:
    code.ring.clear_entry = lambda row: None


def admitted_into_the_old_queue(code: SlotCode) -> None:
    admit, consumed = code.ring.admit, code.ring.consumed

    def changed(row: int, entry: Any) -> bool:
        before = consumed(row)
        admitted: bool = admit(row, entry)
        words = code._control
        at = PAGE + MEMBER_BYTES * row + MEMBER_CONSUMED
        words[at : at + 8] = before.to_bytes(8, "little")
        return admitted

    code.ring.admit = changed


def any_release_frees(code: SlotCode) -> None:
    free = code.writer._released

    def changed() -> tuple[list[int], int]:
        released, impossible = free()
        generations = code.writer.generations
        for slot in code.writer._sent:
            rows = [row for row in range(code.config.readers) if code.writer.required[slot] >> row & 1]
            if any(code.words.done(row, slot) == generations[slot] for row in rows):
                released = sorted({*released, slot})
        return released, impossible

    code.writer._released = changed


def free_before_it_is_out(code: SlotCode) -> None:
    publish = code.writer.publish

    def changed(slots: Iterable[int], members: int) -> None:
        publish(slots, members)
        for slot in slots:
            code.writer._sent[slot] = code.ring.position

    code.writer.publish = changed


def another_slots_extent(code: SlotCode) -> None:
    claim = code.writer.claim

    def changed(nbytes: int, kind: int = KIND_MESSAGE) -> Any:
        slot = claim(nbytes, kind)
        offset = code.writer.offsets[slot] ^ PAGE
        lib.arena_slot_claim(code.segment.mapping, slot, code.writer.generations[slot], offset, nbytes, kind)
        return slot

    code.writer.claim = changed


def never_free_again(code: SlotCode) -> None:
    code.writer._released = lambda: ([], 0)


FAULTS: tuple[Fault, ...] = (
    generation_stays, extents_overlap, half_a_copy, first_reader_not_required, everybody_required,
    abort_forgets_the_published, abort_keeps_the_extent, the_dead_still_owe, the_dead_owe_the_first_slot,
    the_dead_keep_the_ring_full, the_entry_stays, admitted_into_the_old_queue, any_release_frees, free_before_it_is_out,
    another_slots_extent, never_free_again,
)  # fmt: skip
