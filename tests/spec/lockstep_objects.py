"""The production code of object slots, step by step beside their model: as ``lockstep_slots`` for message slots.

The model's labels (current, evicted, older) are what the code's generations mean at the moment. A release's store may lag
in the model and never does in one process: words are compared as their reader sees them.
"""

from __future__ import annotations

from typing import Any

from lockstep_slots import PAYLOAD_BYTES, AnonymousSegment, difference, payload, put_back, saved
from lockstep_walks import Mismatch

from arena.protocol.objects import ObjectReader, ObjectWriter, _Draining
from arena.protocol.slots import Grant, Refusal, SlotWriter
from arena.shm.layout import EMPTY_WORD, PAGE, Layout, MemberWord, State
from arena.shm.native import ffi, lib
from spec.model import Step
from spec.models import object_slots_state as model_state
from spec.models.object_slots_state import (
    CHECKING,
    CURRENT,
    DMA,
    DROPPED,
    EVICTED,
    HELD,
    OLDER,
)
from spec.refine import ObjectsPrivate, object_label, object_slots, observable_objects, words_of

OLD_GENERATION = 2  # the first one that a slot ever has


class ReaderCode:
    """A reader's process: its holds, and its gets and leases as (phase, generation)."""

    def __init__(self, segment: Any, row: int, n_slots: int) -> None:
        self.code = ObjectReader(segment, row)
        self.private = ffi.buffer(self.code.private(), n_slots * ffi.sizeof("arena_hold"))
        self.alive = True
        self.references: list[list[tuple[str, int]]] = [[] for _ in range(n_slots)]

    def count(self, slot: int) -> int:
        return int(self.code.private()[slot].count)


class ObjectCode:
    """The code under test. Each method with the name of an action performs it."""

    def __init__(self, config: model_state.Config) -> None:
        self.config = config
        self.segment: Any = AnonymousSegment(Layout(config.readers, config.slots, PAGE, config.slots * PAGE))
        self.slots = SlotWriter(self.segment)
        self.writer = ObjectWriter(self.segment, self.slots)
        self.readers = [ReaderCode(self.segment, row, config.slots) for row in range(config.readers)]
        self.words = words_of(self.segment)
        self._control = ffi.buffer(self.segment.mapping.control, self.segment.layout.control_bytes)
        self._data = ffi.buffer(self.segment.mapping.data, self.segment.layout.data_bytes)
        self.filled = [0] * config.slots  # the generation of the bytes in a slot's extent
        self.views: dict[tuple[int, int], int] = {}  # (slot, generation) -> where its bytes are
        for row in range(config.readers):
            self._join(row)

    def close(self) -> None:
        for reader in self.readers:
            ffi.release(reader.code._holds)
        self.segment.close()

    def _join(self, row: int) -> None:
        entry = MemberWord(State.JOINING, row + 1, 1).pack()
        if not lib.arena_member_claim(self.segment.mapping, row, EMPTY_WORD, entry):
            raise Mismatch(f"the entry of reader {row} is not empty")

    # ---- what generations mean

    def label(self, slot: int, generation: int) -> str:
        return object_label(self.words, slot, generation)

    def generation(self, slot: int, label: str) -> int:
        now = self.words.generation(slot)
        return {CURRENT: now, EVICTED: now - 1, OLDER: OLD_GENERATION}[label]

    def _reference(self, row: int, slot: int, phase: str, label: str) -> tuple[str, int]:
        for reference in self.readers[row].references[slot]:
            if reference[0] == phase and self.label(slot, reference[1]) == label:
                return reference
        raise Mismatch(f"reader {row} has no {phase} of a {label} generation of slot {slot}")

    def _move(self, row: int, slot: int, phase: str, label: str, into: str | None) -> int:
        reference = self._reference(row, slot, phase, label)
        self.readers[row].references[slot].remove(reference)
        if into is not None:
            self.readers[row].references[slot].append((into, reference[1]))
        return reference[1]

    # ---- the writer

    def claim(self, slot: int) -> None:
        """The model takes any free slot, the code the last of its list: put the wanted one there."""
        if slot in self.slots._free:
            self.slots._free.remove(slot)
            self.slots._free.append(slot)
        taken = self.writer.claim(PAYLOAD_BYTES)
        if isinstance(taken, Refusal) or taken != slot:
            raise Mismatch(f"claim gave {taken}, not slot {slot}")

    def copy(self, slot: int) -> None:
        self.filled[slot] = self.writer.grant_to_be(slot).generation
        if self.slots.copy(slot, ffi.from_buffer(payload(slot, self.filled[slot])), 1):
            raise Mismatch("copy failed")

    def publish_object(self, slot: int) -> None:
        if self.writer.publish_object(slot) != (slot, self.filled[slot]):
            raise Mismatch("published another generation than was copied")

    def abort(self, slot: int) -> None:
        self.writer.abort(slot)

    def evict(self, slot: int) -> None:
        self.writer.evict(slot)

    def scan(self, row: int, slot: int) -> None:
        """One row only; the code looks at all of them in one call, and then frees the slot."""
        draining = self.writer._draining[slot]
        bit = 1 << row
        found = lib.arena_object_scan(self.segment.mapping, slot, draining.generation, draining.clear | ~bit & 2**64 - 1)
        if not found & bit:
            raise Mismatch(f"reader {row} still holds slot {slot} in the code")
        draining.clear |= bit
        if draining.clear == (1 << self.config.readers) - 1:
            others = {each: self.writer._draining.pop(each) for each in [*self.writer._draining] if each != slot}
            if self.writer.scan() != 1:
                raise Mismatch(f"slot {slot} is not free when every row is clear")
            self.writer._draining.update(others)

    def reclaim(self, row: int) -> None:
        self.slots.reclaim(row)
        lib.arena_member_write(self.segment.mapping, row, EMPTY_WORD)

    def admit(self, row: int) -> None:
        """A new process has counts of its own."""
        self._join(row)
        reader = self.readers[row]
        reader.private[:] = bytes(len(reader.private))
        reader.alive = True

    # ---- the readers

    def announce(self, row: int, slot: int, label: str) -> None:
        generation = self.generation(slot, label)
        if self.readers[row].code.announce(Grant(slot, generation)) != lib.ARENA_EMPTY:
            raise Mismatch("a get with nothing held is not announced")
        self.readers[row].references[slot].append((CHECKING, generation))

    def share(self, row: int, slot: int, label: str) -> None:
        generation = self.generation(slot, label)
        if self.readers[row].code.announce(Grant(slot, generation)) != lib.ARENA_SHARED:
            raise Mismatch("a get of what is held is not shared")
        self.readers[row].references[slot].append((HELD, generation))

    def recheck(self, row: int, slot: int, label: str) -> None:
        hit = label == CURRENT
        generation = self._move(row, slot, CHECKING, label, HELD if hit else None)
        outcome = self.readers[row].code.recheck(Grant(slot, generation))
        if outcome != (lib.ARENA_OK if hit else lib.ARENA_STALE):
            raise Mismatch(f"recheck of a {label} generation: {outcome}")
        if hit:
            extent = ffi.new("uint64_t[2]")
            lib.arena_slot_extent(self.segment.mapping, slot, extent, extent + 1)
            self.views[slot, generation] = extent[0]

    def drop(self, row: int, slot: int, label: str, gated: bool) -> None:
        self._move(row, slot, HELD, label, DMA if gated else DROPPED)

    def dma_complete(self, row: int, slot: int, label: str) -> None:
        self._move(row, slot, DMA, label, DROPPED if self.readers[row].alive else None)

    def release_hold(self, row: int, slot: int, label: str) -> None:
        self._move(row, slot, DROPPED, label, None)
        self.readers[row].code.release_hold(slot)

    def flush_hold(self, row: int, slot: int) -> None:
        """The code's store was visible at once."""

    def reader_death(self, row: int) -> None:
        reader = self.readers[row]
        reader.alive = False
        reader.references = [[each for each in of_slot if each[0] == DMA] for of_slot in reader.references]

    # ---- what is compared

    def take(self, step: Step) -> None:
        getattr(self, step.action.name)(*step.args)

    def check(self, expected: model_state.State) -> None:
        """Raises Mismatch unless code and model agree on everything that can be seen."""
        found, wanted = object_slots(self.config, self.words, self.private()), observable_objects(expected)
        if found != wanted:
            raise Mismatch(difference(found, wanted))
        generations = [self.words.generation(slot) for slot in range(self.config.slots)]
        if list(self.slots.generations) != generations:
            raise Mismatch(f"the writer takes the generations {generations} for {list(self.slots.generations)}")
        self.check_views()

    def private(self) -> ObjectsPrivate:
        return ObjectsPrivate(
            owners=self.slots.states,
            draining={slot: (each.generation, each.clear) for slot, each in self.writer._draining.items()},
            alive=[reader.alive for reader in self.readers],
            counts=[[reader.count(slot) for slot in range(self.config.slots)] for reader in self.readers],
            references=[reader.references for reader in self.readers],
            holds_bytes_of=lambda slot, generation: self._bytes(self.slots.offsets[slot]) == payload(slot, generation),
        )

    def check_views(self) -> None:
        """Every live view, and every DMA, has the bytes of its generation."""
        for row, reader in enumerate(self.readers):
            for slot, references in enumerate(reader.references):
                for phase, generation in references:
                    if phase in (HELD, DMA) and self._bytes(self.views[slot, generation]) != payload(slot, generation):
                        raise Mismatch(f"reader {row}'s view of slot {slot} does not show generation {generation}")

    def _bytes(self, offset: int) -> bytes:
        return self._data[offset : offset + PAYLOAD_BYTES]

    # ---- snapshots

    def snapshot(self) -> Any:
        """The control bytes, the payloads, and everything that the processes keep to themselves."""
        return (
            bytes(self._control),
            [self._bytes(slot * PAGE) for slot in range(self.config.slots)],
            saved(self.slots),
            self.writer._open.copy(),
            [(slot, each.generation, each.clear) for slot, each in self.writer._draining.items()],
            self.filled[:],
            self.views.copy(),
            [
                (bytes(reader.private), reader.alive, [of_slot[:] for of_slot in reader.references])
                for reader in self.readers
            ],
        )  # fmt: skip

    def restore(self, snapshot: Any) -> None:
        control, payloads, slots, opened, draining, filled, views, readers = snapshot
        self._control[:] = control
        for slot, nbytes in enumerate(payloads):
            self._data[slot * PAGE : slot * PAGE + PAYLOAD_BYTES] = nbytes
        put_back(self.slots, slots)
        self.writer._open = opened.copy()
        self.writer._draining = {slot: _Draining(generation, clear) for slot, generation, clear in draining}
        self.filled, self.views = filled[:], views.copy()
        for reader, (private, alive, references) in zip(self.readers, readers, strict=True):
            reader.private[:] = private
            reader.alive = alive
            reader.references = [of_slot[:] for of_slot in references]
