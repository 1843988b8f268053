"""Object slots: put and evicted by the writer, got and held by readers at any moment.

Method names are the actions of ``spec/models/object_slots.py``; a put is ``claim``, ``copy`` and ``publish_object``.
Shared are a slot's generation and extent, and one ``hold`` word per (reader, slot): the generation that it holds.  To
evict, the writer closes the generation first and then looks at all rows; until it has seen each of them different, the
slot is *draining*: nobody waits for it, and it is not used.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn
from weakref import WeakKeyDictionary

from arena.errors import ArenaError, CorruptError, StaleSlotError
from arena.protocol.slots import KIND_OBJECT, Grant, Refusal, SlotWriter, State
from arena.shm import trace
from arena.shm.native import Lease, address_of, capsules, ffi, lib
from arena.shm.segment import Segment


@dataclass
class _Draining:
    """An evicted slot: the generation that it had, and the rows that were seen without it since."""

    generation: int
    clear: int = 0
    fences: list[float] = field(default_factory=list)  # when the quarantines of dead readers end


class ObjectWriter:
    """The writer's half.  Its callers hold ``slots.lock``, except while they copy.

    Args:
        segment: where the slots are.
        slots: the slot table, shared with a queue or not.
        quarantine_s: how long what a dead reader held is kept back, for the DMA that it may have started.
    """

    def __init__(self, segment: Segment, slots: SlotWriter, quarantine_s: float = 0.0) -> None:
        self._mapping = segment.mapping
        self._slots = slots
        self._quarantine_s = quarantine_s
        self._every_row = (1 << segment.layout.n_readers + 1) - 1
        self._open: dict[int, int] = {}  # slot -> generation
        self._draining: dict[int, _Draining] = {}
        self._fences: dict[tuple[int, int], list[float]] = {}  # (slot, generation) that dead readers held
        self._loans: Any = ffi.new("uint64_t[]", segment.layout.n_slots)  # generation under which a slot was lent
        self._lent: Any = ffi.new("uint64_t[]", segment.layout.n_slots)  # mask of the writer's row for those
        trace.observe(self, segment)
        slots.on_reclaim.append(self.reclaim)
        slots.on_collect.append(self.scan)

    # ---- put --------------------------------------------------------------------------------------------------

    def claim(self, nbytes: int, taken: dict[int, None] | None = None) -> int | Refusal:
        """A free slot, never a draining one, with an extent of ``nbytes`` and a closed generation.

        Args:
            nbytes: of the extent.
            taken: where the slot is written down before it is taken.
        """
        slot = self._slots.claim(nbytes, KIND_OBJECT, {} if taken is None else taken)
        if not isinstance(slot, Refusal):
            self._lent[slot] = 0
            self._slots.adopt(slot)
        return slot

    def is_loan(self, lent: Grant) -> bool:
        """Whether a slot is still the unpublished loan that it was under this generation."""
        return self._slots.states[lent.slot] is State.LOANED and self._slots.grant(lent.slot) == lent

    def adopt(self, slot: int) -> bool:
        """Makes an unpublished loan an object's slot, closed; False if it is no loan any more."""
        if self._slots.states[slot] is not State.LOANED:  # what is an object has its own loan to wait for
            return False
        generations = self._slots.generations
        lent_as = generations[slot]
        self._loans[slot], self._lent[slot] = lent_as, 1 << self._slots.loan_row  # first: nothing is free without them
        self._slots.adopt(slot)
        generations[slot] = lent_as + 1 | 1
        return True

    def grant_to_be(self, slot: int) -> Grant:
        """What ``publish_object`` will grant of a claimed slot, or of a loan once it is adopted."""
        generation = int(self._slots.generations[slot])
        closed = generation if self._slots.states[slot] is State.OBJECT else generation + 1 | 1
        return Grant(slot, closed + 1)

    def publish_object(self, slot: int) -> Grant:
        """The payload is complete: the generation opens, and handles may go out."""
        grant = self.grant_to_be(slot)
        self._slots.generations[slot] = self._open[slot] = grant.generation
        lib.arena_object_publish(self._mapping, slot, grant.generation)  # [object.publish]
        return grant

    def abort(self, slot: int) -> None:
        """A claimed slot will not be published: it is free again."""
        self._slots.free(slot)

    def give_up(self, slot: int) -> None:
        """What was taken for an object that will not be, at whatever step: free when nobody holds it.  A loan stays one."""
        draining = self._draining.get(slot)
        if slot in self._open:
            self.evict(slot)
        elif draining is not None and self._is_closed(slot, draining.generation):
            return  # it was evicted, and may be held
        elif self._slots.states[slot] is State.OBJECT and self._lent[slot]:
            self._draining[slot] = _Draining(int(self._slots.generations[slot]) - 1)
        elif self._slots.states[slot] in (State.OBJECT, State.CLAIMED):
            self.abort(slot)

    # ---- eviction ---------------------------------------------------------------------------------------------

    def evict(self, slot: int) -> None:
        """Closes the generation: no get succeeds from now on, and what holds it already keeps the bytes."""
        generation = self._open[slot]
        self._slots.generations[slot] = generation + 1
        lib.arena_object_evict(self._mapping, slot, generation + 1)  # [object.evict]
        self._draining[slot] = _Draining(generation, fences=self._fences.get((slot, generation), []))
        del self._open[slot]  # cut short before this, it is done again
        self._fences.pop((slot, generation), None)

    def is_open(self, slot: int) -> bool:
        """Whether gets succeed."""
        return bool(self._open.get(slot) == self._slots.generations[slot])

    def scan(self) -> int:
        """Looks at the rows of what drains, and frees what nobody holds any more; returns how many slots."""
        drained = [slot for slot, draining in self._draining.items() if self._is_drained(slot, draining)]
        for slot in drained:
            if self._is_closed(slot, self._draining[slot].generation):  # else it is free: a scan was cut short behind that
                self._slots.free(slot)
            del self._draining[slot]
        return len(drained)

    def _is_closed(self, slot: int, generation: int) -> bool:
        """Whether a slot is still that of the object that had this generation."""
        return self._slots.states[slot] is State.OBJECT and bool(self._slots.generations[slot] == generation + 1)

    def _is_drained(self, slot: int, draining: _Draining) -> bool:
        draining.clear = lib.arena_object_scan(
            self._mapping, slot, draining.generation, draining.clear
        )  # [object.evict] [object.release]
        return draining.clear == self._every_row and self.expire(draining.fences) and self._is_given_back(slot)

    def _is_given_back(self, slot: int) -> bool:
        """Whether the writer has dropped its own tensor over what was a loan."""
        return bool(self._slots.done([slot], self._loans, self._lent)[0])  # [slot.done]

    def is_held(self, slot: int) -> bool:
        """Whether a get would have to be waited for, were the slot evicted now: a hint, since gets go on."""
        generation = self._open[slot]
        clear = lib.arena_object_scan(self._mapping, slot, generation, 0)
        return clear != self._every_row or not self.expire(self._fences.get((slot, generation), []))

    @property
    def draining_bytes(self) -> int:
        """Bytes of the evicted objects that are still held."""
        return sum(self._slots.extents.length(self._slots.offsets[slot]) for slot in self._draining)

    @property
    def n_slots(self) -> int:
        """Slots that objects take, draining ones too."""
        return len(self._open) + len(self._draining)

    # ---- deaths -----------------------------------------------------------------------------------------------

    def reclaim(self, row: int) -> None:
        """A reader is dead and its row will be zeroed: what it held is fenced off until the quarantine ends."""
        if not self._quarantine_s or not lib.arena_member_is_pinned(self._mapping, row):
            return
        until = time.monotonic() + self._quarantine_s
        for slot, generation in self._slots.held_by(row):
            if self._open.get(slot) == generation:
                self._fences.setdefault((slot, generation), []).append(until)
            elif slot in self._draining and self._draining[slot].generation == generation:
                self._draining[slot].fences.append(until)

    def expire(self, fences: list[float]) -> bool:
        """Ends the quarantines whose time has come; whether none is left."""
        fences[:] = [until for until in fences if until > time.monotonic()]
        return not fences


class ObjectReader:
    """A reader's half; thread-safe.  One per segment in a process, from ``of``: a row's hold words go with one count."""

    _of_segments: ClassVar[WeakKeyDictionary[Segment, ObjectReader]] = WeakKeyDictionary()
    _lock = threading.Lock()

    @classmethod
    def of(cls, segment: Segment, row: int, *, private: bool = False) -> ObjectReader:
        """The reader of a mapped segment, made when it is first asked for."""
        with cls._lock:
            reader = cls._of_segments.get(segment)
            if reader is None:
                reader = cls._of_segments[segment] = cls(segment, row, private=private)
            return reader

    def __init__(self, segment: Segment, row: int, *, private: bool = False) -> None:
        self._mapping = segment.mapping
        holds = lib.arena_holds_open(segment.mapping, row, private)
        if holds == ffi.NULL:
            raise MemoryError("no memory for the holds of a reader")
        self._holds = ffi.gc(holds, lib.arena_holds_release)
        self._address = address_of(holds)
        self.row = row
        trace.observe(self, segment)

    def lease(self, grant: Grant) -> Lease:
        """A hold on an object's slot (a get: announce and recheck in one), which its last holder releases.

        Raises:
            StaleSlotError: the object was evicted.
            CorruptError: there cannot be such an object, or its extent lies outside the data area.
            ArenaError: this process has locked the memory of its own copies; the object is not held.
        """
        slot, generation = grant
        return capsules.lease_of_object(self._address, slot, generation, self._refuse)  # [object.evict] [object.publish]

    def _refuse(self, outcome: int, slot: int, generation: int) -> NoReturn:
        if outcome == lib.ARENA_OK:
            raise MemoryError("no memory for a grant")
        if outcome == lib.ARENA_STALE:
            raise StaleSlotError(f"slot {slot} no longer carries generation {generation}")
        if outcome == lib.ARENA_LOCKED:
            raise ArenaError(
                "an object's memory cannot be read afresh: a reader with reader_access='private' must not lock that memory "
                "(mlock, mlockall)"
            )
        raise CorruptError(
            f"generation {generation} of slot {slot} cannot be an object's: there are {self._mapping.geometry.n_slots} "
            "slots, its generation is even, its extent inside"
        )

    # ---- the steps of a lease and its end, for the tests that take them one by one -------------------------------

    def announce(self, grant: Grant) -> int:
        """First half of a get: ARENA_EMPTY if a recheck must follow."""
        return int(lib.arena_object_announce(self._holds, *grant))  # [object.evict]

    def recheck(self, grant: Grant) -> int:
        """Second half: ARENA_OK or ARENA_STALE."""
        return int(lib.arena_object_recheck(self._holds, *grant))  # [object.evict] [object.publish]

    def release_hold(self, slot: int) -> None:
        """One lease less; the last one clears the word."""
        lib.arena_object_release_hold(self._holds, slot)  # [object.release]

    def private(self) -> Any:
        """The counts and generations beside the words."""
        return lib.arena_holds_private(self._holds)


def _renew_lock() -> None:
    ObjectReader._lock = threading.Lock()  # a thread that the child does not have may be inside


os.register_at_fork(after_in_child=_renew_lock)
