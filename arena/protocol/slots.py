"""Message slots: who owns which extent, and when it is free again.

Method names are the actions of ``spec/models/message_slots.py``.  Shared are a slot's generation and extent, and one
``done`` word per (reader, slot); everything else here is private to one process.

A slot's life: ``claim`` (a new generation), ``copy``, ``publish`` (its required mask: who owes a release), ``enqueue``
(its message is out) -- or ``abort`` before that; each reader ``lease``s and ``release``s it; it is free when every required
row's ``done`` word equals its generation.  The dead leave every mask for good (``reclaim``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum, IntEnum
from functools import partial
from typing import Any, NamedTuple, NoReturn

from arena.errors import CorruptError, StaleSlotError
from arena.protocol.extents import Extents
from arena.protocol.warmth import Part, Warmth
from arena.shm import trace
from arena.shm.descriptors import is_kept
from arena.shm.layout import PAGE
from arena.shm.native import Lease, address_of, capsules, ffi, lib
from arena.shm.segment import Segment


class Grant(NamedTuple):
    """What a message says about a slot: the generation that each of its readers is granted."""

    slot: int
    generation: int


class Refusal(Enum):
    """Why ``claim`` gave no slot."""

    NO_ARENA = "no_arena"
    OVERSIZE = "oversize"
    NO_SLOT = "no_slot"
    NO_EXTENT = "no_extent"
    NO_MEMORY = "no_memory"


class State(IntEnum):
    """A slot in the writer's eyes."""

    FREE = 0
    CLAIMED = 1  # being filled
    PUBLISHED = 2  # complete, its message not out yet
    SENT = 3  # its message is out, or a loan was given up
    LOANED = 4  # the caller of loan() fills it
    OBJECT = 5  # an object's, open or draining: ObjectWriter knows


KIND_MESSAGE = 1
KIND_OBJECT = 2


class SlotWriter:
    """The writer's half of the slot table.

    Thread-safe: a queue and a cache in one segment share it.  ``lock`` is held by each method, and by a caller that
    needs several of them to be one; never while bytes are copied or anything is waited for.

    Args:
        segment: where the slots are.
        chunk_bytes: in what chunks readers pin the data area; None if they do not.
        quarantine_s: how long what a dead reader owed is kept back if it was pinned: its devices may still be at work.
    """

    def __init__(self, segment: Segment, *, chunk_bytes: int | None = None, quarantine_s: float = 0.0) -> None:
        of = segment.layout
        self.lock: Any = threading.RLock()
        self.on_reclaim: list[Callable[[int], None]] = []  # called with a dead reader's row before it is zeroed
        self.on_collect: list[Callable[[], object]] = []  # they free what else nobody holds any more
        self._mapping = segment.mapping
        self._alive = segment.mapping.alive
        self._address = address_of(segment.mapping)
        self._fd = segment.fd if segment.writable_file else -1
        self._data_offset = of.control_bytes
        self._data_address = segment.data_address
        self.loan_row = of.n_readers
        self.capacity_bytes = of.data_bytes
        self.extents = Extents(of.data_bytes, chunk_bytes)
        self.states = [State.FREE] * of.n_slots
        self.offsets = [0] * of.n_slots
        self.lengths = [0] * of.n_slots
        self.generations: Any = ffi.new("uint64_t[]", of.n_slots)
        self.required: Any = ffi.new("uint64_t[]", of.n_slots)
        self._free = list(range(of.n_slots - 1, -1, -1))
        self._sent: dict[int, int] = {}  # slot -> ring position of the message that carries it
        self._loans: dict[int, None] = {}  # not published yet
        self._pending: dict[int, None] = {}  # of the message that is being made
        self.impossible_rows = 0  # mask of the rows whose words cannot be: what they owe stays owed
        self._warmth = Warmth(chunk_bytes or max(of.data_bytes, PAGE))
        self._quarantine_s = quarantine_s
        self._fences: dict[int, float] = {}  # slot -> when its quarantine ends
        trace.observe(self, segment)

    @property
    def is_mapped(self) -> bool:
        """False in a forked child: the memory is not there, locks may be taken for good, descriptors another file's."""
        return bool(self._alive[0])

    # ---- the life of a slot -----------------------------------------------------------------------------------

    def claim(self, nbytes: int, kind: int = KIND_MESSAGE, taken: dict[int, None] | None = None) -> int | Refusal:
        """A free slot with an extent of ``nbytes`` (> 0) and a new generation; a refusal changes nothing.

        An object's slot has an odd generation until the object is published.

        Args:
            nbytes: of the extent.
            kind: of the slot.
            taken: where the slot is written down before it is taken, so that no exception of a signal handler loses it; by
                default with the message that is being made.
        """
        if nbytes > self.capacity_bytes:
            return Refusal.OVERSIZE if self.capacity_bytes else Refusal.NO_ARENA
        with self.lock:
            if not self._free:
                return Refusal.NO_SLOT
            offset = self.extents.take(nbytes)
            if offset is None:
                return Refusal.NO_EXTENT
            slot = self._free[-1]
            (self._pending if taken is None else taken)[slot] = None
            self._free.pop()
            self.offsets[slot], self.lengths[slot] = offset, nbytes
            generation = self.generations[slot] + 1
            self.generations[slot] = generation | 1 if kind == KIND_OBJECT else generation
            self.states[slot] = State.CLAIMED
            lib.arena_slot_claim(self._mapping, slot, self.generations[slot], offset, nbytes, kind)  # [slot.gen]
            return slot

    def copy(self, slot: int, source: Any, threads: int, at: int = 0, nbytes: int | None = None) -> int:
        """Fills a claimed slot, or ``nbytes`` of it from ``at`` on, from a C pointer; new pages by write(2),
        unless the application has closed the file or there is none.

        Returns:
            0, or the errno of the file system or cgroup that has no page left: the slot is then to be aborted.
        """
        offset, nbytes = self.offsets[slot] + at, self.lengths[slot] if nbytes is None else nbytes
        for part in self._warmth.parts(offset, nbytes):
            if error := self._copy_part(part, source + (part.offset - offset), threads):
                return error
        return 0

    def _copy_part(self, part: Part, source: Any, threads: int) -> int:
        if part.warm_bytes < part.nbytes and is_kept(self._fd):
            return self._copy_by_file(part, source, threads)
        error = self._populate_part(part)
        if not error:
            lib.arena_copy(self._mapping.data + part.offset, source, part.nbytes, threads)
        return error

    def _copy_by_file(self, part: Part, source: Any, threads: int) -> int:
        to, warm = self._mapping.data + part.offset, part.warm_bytes
        if warm:
            lib.arena_copy(to, source, warm, threads)
        in_file = self._data_offset + part.offset + warm
        error = int(lib.arena_copy_cold(self._fd, in_file, to + warm, source + warm, part.nbytes - warm))
        if not error:
            self._warmth.mark(part)
        return error

    def populate(self, slot: int, at: int = 0, nbytes: int | None = None) -> int:
        """Takes the pages of a claimed slot that will be filled in place; 0, or an errno as from ``copy``."""
        offset, nbytes = self.offsets[slot] + at, self.lengths[slot] if nbytes is None else nbytes
        for part in self._warmth.parts(offset, nbytes):
            if error := self._populate_part(part):
                return error
        return 0

    def _populate_part(self, part: Part) -> int:
        if part.warm_bytes == part.nbytes:
            return 0
        ahead = part.offset % PAGE
        error = int(lib.arena_populate(self._mapping.data + part.offset - ahead, part.nbytes + ahead, 1))
        if not error:
            self._warmth.mark(part)
        return error

    def publish(self, slots: Iterable[int], members: int) -> None:
        """Fixes who owes a release for each slot of a message: the members now, and the writer for its own loans.

        Raises:
            ValueError: a loan has become an object's since it was found; nothing is changed.
        """
        with self.lock:
            slots = list(slots)
            if any(slot not in self._pending and slot not in self._loans for slot in slots):
                raise ValueError("a loan of this message was put into a cache while it was enqueued: send its handle")
            for slot in slots:
                own = 0
                if self.states[slot] is State.LOANED:
                    own = 1 << self.loan_row
                    del self._loans[slot]
                    self._pending[slot] = None
                self.required[slot] = members | own
                self.states[slot] = State.PUBLISHED

    def enqueue(self, slots: Iterable[int], position: int) -> None:
        """The message at this ring position names the slots and is out: they are free once all required rows are done."""
        with self.lock:
            for slot in slots:
                self.states[slot] = State.SENT
                self._sent[slot] = position
                self._pending.pop(slot, None)

    def abort(self, slots: Iterable[int]) -> None:
        """The message will not go out: its slots, claimed and published ones alike, are free again; loans stay loans.

        What is not the message's, as a loan that has become an object's meanwhile, is left alone.
        """
        with self.lock:
            for slot in [slot for slot in slots if slot in self._pending]:
                if self.required[slot] >> self.loan_row & 1:
                    self.loan(slot)
                else:
                    self.free(slot)

    def loan(self, slot: int) -> None:
        """The slot is the caller's to fill; it is free when the caller has dropped it, published or not."""
        with self.lock:
            self.states[slot] = State.LOANED
            self.required[slot] = 1 << self.loan_row
            self._loans[slot] = None
            self._pending.pop(slot, None)

    def loan_at(self, address: int, nbytes: int) -> tuple[int, int] | None:
        """The unpublished loan that these bytes lie in, and where in it."""
        with self.lock:
            for slot in self._loans:
                within = address - self._data_address - self.offsets[slot]
                if within >= 0 and within + nbytes <= self.lengths[slot]:
                    return slot, within
        return None

    def adopt(self, slot: int) -> bool:
        """An unpublished loan, or a claimed slot, becomes an object's; False if the loan has been published meanwhile."""
        with self.lock:
            if self.states[slot] is State.LOANED:
                del self._loans[slot]
                self.required[slot] = 0
            elif self.states[slot] is not State.CLAIMED:
                return False
            self.states[slot] = State.OBJECT
            return True

    def free(self, slot: int) -> None:
        """Nobody holds the slot: it and its extent can be claimed again."""
        with self.lock:
            try:
                self.states[slot] = State.FREE
                self.required[slot] = 0
                self._sent.pop(slot, None)
                self._loans.pop(slot, None)
                self._pending.pop(slot, None)
                self._free.append(slot)
                self.extents.give(self.offsets[slot])
            except BaseException:  # a signal handler's: half freed, it would be freed twice
                self.restore()
                raise

    def own_lease(self, slot: int) -> Lease:
        """The writer's own hold of a slot, shared by the tensors over a loan; the last drop is the writer's release."""
        return capsules.lease_of_message(self._address, self.loan_row, *self.grant(slot), partial(_refuse, self._mapping))

    def grant(self, slot: int) -> Grant:
        """What a message says about a slot of it."""
        return Grant(slot, self.generations[slot])

    def recover(self, position: int, now: int) -> None:
        """Settles a message that a signal handler's exception cut short, wherever it did.

        Its slots go the way of the message: out, if the ring has moved on from ``position`` to ``now``, else free.
        """
        with self.lock:
            self.restore()
            for slot in list(self._pending):
                if self.states[slot] is State.PUBLISHED and now != position:
                    self.enqueue([slot], position)
                else:
                    self.abort([slot])

    def restore(self) -> None:
        """Makes the lists anew, by the states: an exception may have come between two changes of them."""
        with self.lock:
            taken = {slot for slot, state in enumerate(self.states) if state is not State.FREE}
            self.extents.restore({self.offsets[slot]: self.lengths[slot] for slot in taken})
            self._free = [slot for slot in reversed(range(len(self.states))) if slot not in taken]
            self._sent = {slot: position for slot, position in self._sent.items() if slot in taken}
            self._loans = {slot: None for slot in self._loans if slot in taken}
            self._pending = {slot: None for slot in self._pending if slot in taken}

    def reclaim(self, rank: int) -> None:
        """A dead reader owes nothing any more, in any slot, for good; its rows are zeroed for its successor.

        If it was pinned, what it owed is fenced off for a while: its devices may have been reading, or writing, there.
        """
        with self.lock:
            if self._quarantine_s and lib.arena_member_is_pinned(self._mapping, rank):
                until = time.monotonic() + self._quarantine_s
                self._fences.update((slot, until) for slot in self._owed(rank))
            self._excuse(rank, range(len(self.states)))
            for tell in self.on_reclaim:
                tell(rank)
            lib.arena_rows_clear(self._mapping, rank)

    def expire(self) -> None:
        """The quarantines whose time has come end."""
        with self.lock:
            now = time.monotonic()
            for slot in [slot for slot, until in self._fences.items() if until <= now]:
                del self._fences[slot]

    def excuse_unread(self, rank: int, consumed: int) -> None:
        """A reader that has left owes nothing for the messages that it never read, from ring position ``consumed`` on."""
        with self.lock:
            unread = (slot for slot in range(len(self.states)) if self._sent.get(slot, consumed) >= consumed)
            self._excuse(rank, unread)

    def owes(self, rank: int) -> bool:
        """Whether a reader has not released everything yet, whatever others hold, or holds an object."""
        with self.lock:
            return bool(self._owed(rank) or self.held_by(rank))

    def held_by(self, row: int) -> list[tuple[int, int]]:
        """The objects that a row holds: (slot, generation)."""
        n_slots = len(self.states)
        slots, generations = ffi.new("uint32_t[]", n_slots), ffi.new("uint64_t[]", n_slots)
        count = lib.arena_row_holds(self._mapping, row, slots, generations)  # [object.release]
        return list(zip(slots[0:count], generations[0:count]))

    def collect(self) -> int:
        """Finds what has become free, in one native call; returns how many slots."""
        with self.lock:
            for tell in self.on_collect:
                tell()
            released, impossible = self._released()
            for slot in released:
                self.free(slot)
            self.impossible_rows |= impossible
        return len(released)

    def is_in_hand(self) -> bool:
        """Whether this thread is in the middle of a change: a signal handler or a finalizer may look, and change nothing."""
        return bool(self.lock._is_owned())

    def done(self, slots: list[int], generations: Any, required: Any) -> tuple[list[int], int]:
        """The slots whose generations their required rows have released, and the rows whose words cannot be."""
        is_free, impossible = ffi.new("uint8_t[]", len(slots)), ffi.new("uint64_t *")
        count = lib.arena_slots_free(
            self._mapping, slots, len(slots), generations, required, is_free, impossible
        )  # [slot.done]
        return [slot for slot, free in zip(slots, is_free) if free] if count else [], int(impossible[0])

    # ---- for the statistics -----------------------------------------------------------------------------------

    def usage(self) -> tuple[int, int]:
        """Free slots and bytes in use, counting what is released and not collected yet; from any thread."""
        if self.is_in_hand():
            return len(self._free), self.extents.used_bytes
        with self.lock:
            for tell in self.on_collect:
                tell()
            released, _ = self._released()
            free_bytes = sum(self.extents.length(self.offsets[slot]) for slot in released)
            return len(self._free) + len(released), self.extents.used_bytes - free_bytes

    @property
    def quarantined(self) -> int:
        """Slots that nobody holds any more, except perhaps a dead reader's device; from any thread."""
        if not self.is_in_hand():
            self.expire()
        return len(self._fences)

    # ---- private ----------------------------------------------------------------------------------------------

    def _owed(self, row: int) -> list[int]:
        """The slots whose message is out and which a row has not released."""
        sent = [slot for slot in self._sent if self.required[slot] >> row & 1]
        if not sent:
            return []
        released, _ = self.done(sent, self.generations, ffi.new("uint64_t[]", [1 << row] * len(self.states)))
        return [slot for slot in sent if slot not in released]

    def _released(self) -> tuple[list[int], int]:
        """The busy slots that every required row has released, and the rows whose words cannot be."""
        busy = [*self._sent, *self._loans]
        if self._fences:
            self.expire()
            busy = [slot for slot in busy if slot not in self._fences]
        if not busy:
            return [], 0
        return self.done(busy, self.generations, self.required)

    def _excuse(self, rank: int, slots: Iterable[int]) -> None:
        for slot in slots:
            self.required[slot] &= ~(1 << rank)


drop: Callable[[Lease], None] = capsules.LeaseType.drop
"""A holder of a slot is gone; the last one releases it.  Tensors do the same in C when their storage dies."""


release: Callable[[Any], None] = lib.arena_grant_release
"""A gated grant is dropped and its gate is open: gives its slot back, once."""


def _refuse(mapping: Any, outcome: int, slot: int, generation: int) -> NoReturn:
    if outcome == lib.ARENA_OK:
        raise MemoryError("no memory for a grant")
    if outcome == lib.ARENA_STALE:
        raise StaleSlotError(f"slot {slot} no longer carries generation {generation}")
    limits = f"{mapping.geometry.n_slots} slots, {mapping.geometry.data_bytes} bytes"
    raise CorruptError(f"slot {slot}, or its extent, is outside the arena: {limits}")


class SlotReader:
    """A reader's half: from a message's grants to extents, and back."""

    def __init__(self, segment: Segment, row: int) -> None:
        self._mapping = segment.mapping
        self._address = address_of(segment.mapping)
        self._refuse = partial(_refuse, segment.mapping)
        self.row = row
        trace.observe(self, segment)

    def lease(self, grant: Grant) -> Lease:
        """A hold on a slot that a message grants, and its extent; its last holder releases the slot.

        The reader owes a release from the message on; where there is no lease, it is given at once (the spec's discard).

        Raises:
            StaleSlotError: the slot carries another generation.
            CorruptError: there is no such slot, or its extent lies outside the data area.
        """
        slot, generation = grant
        return capsules.lease_of_message(self._address, self.row, slot, generation, self._refuse)  # nowhere but returned

    def release(self, grant: Grant) -> None:
        """Gives a slot back: what the drop of the last holder does, in C.  Once per grant."""
        lib.arena_slot_release(self._mapping, self.row, grant.slot, grant.generation)  # [slot.done]
