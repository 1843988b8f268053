"""What a cache holds, in order of use, and the room for it: puts, evictions, and the sums of both."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from arena.cache_handle import CacheHandle, Key
from arena.ends import OwnerEnd
from arena.message.objects import PackedObject
from arena.protocol import eviction
from arena.protocol.objects import ObjectWriter
from arena.protocol.slots import Grant, Refusal
from arena.shm.layout import PAGE, align

Book = list[tuple[Key, CacheHandle]]


@dataclass
class Entry:
    """An object that is in the cache."""

    handle: CacheHandle
    slots: list[int]  # its own, then those of loans that it has taken over
    nbytes: int  # of all its extents
    holds: int = 0
    requests: list[weakref.ref[object]] = field(default_factory=list)  # which hold it as long as they live

    def is_held(self) -> bool:
        """By a request, or by whoever will release it."""
        return self.holds > 0 or any(request() is not None for request in self.requests)


@dataclass
class Counts:
    """What has happened since the start."""

    puts: int = 0
    bytes_copied: int = 0
    evictions: int = 0
    hits: int = 0
    misses: int = 0
    uncached: Counter[str] = field(default_factory=Counter)


class Store:
    """The objects of one cache.

    ``put`` takes ``lock`` by itself; callers of all else hold it.  It is the slots' lock: who has it waits for nothing, and
    takes no turn of the segment's end, which comes before it.

    Args:
        end: whose slots and extents are used.
        limit_bytes: how much of the data area the objects may take.
        limit_slots: how many slots.
        object_bytes_max: of one object, without its loans.
    """

    def __init__(self, end: OwnerEnd, limit_bytes: int, limit_slots: int, object_bytes_max: int) -> None:
        self._end = end
        self._limit_bytes = limit_bytes
        self._limit_slots = limit_slots
        self._object_bytes_max = object_bytes_max
        self._slots = end.slots
        self.lock = end.slots.lock
        self.objects = ObjectWriter(end.segment, end.slots, end.config.quarantine_s)
        self._secret = end.segment.secret()
        self._segment_id = end.segment.handle.segment_id
        self.entries: OrderedDict[Key, Entry] = OrderedDict()  # the least recently used first
        self.used_bytes = 0  # of the entries
        self.counts = Counts()

    # ---- put --------------------------------------------------------------------------------------------------

    def put(
        self, key: Key, digest: bytes, packed: PackedObject, books: Sequence[Book], *, replace: bool
    ) -> CacheHandle | Refusal:
        """Copies an object into room that is made for it; the lock is free while bytes are copied.

        What it stores it writes down in each of ``books`` first; what another thread has stored it does not.

        Raises:
            ValueError: a loan in it has been enqueued, or put, by another thread meanwhile.
        """
        taken: dict[int, None] = {}  # each slot is written down here before it is taken
        try:
            with self.lock:
                if replace:
                    self.forget(key)
                refusal = self._claim(packed.nbytes, taken)
                if refusal is not None:
                    return refusal
                slots = (*taken, *(loan.slot for loan in packed.loans))
                grants = [self.objects.grant_to_be(slot) for slot in slots]
            if packed.write(self._end.segment, self._slots, grants, self._end.config.copy_threads):
                self._undo(taken)
                return Refusal.NO_MEMORY
            with self.lock:
                if not replace and key in self.entries:  # another thread was faster
                    self._undo(taken)
                    return self.entries[key].handle
                self.forget(key)
                handle = self._publish(key, digest, packed, books, grants, taken)
            return handle
        except BaseException:  # a signal handler's, too, wherever it came
            self._undo(taken)
            raise

    def _publish(
        self,
        key: Key,
        digest: bytes,
        packed: PackedObject,
        books: Sequence[Book],
        grants: list[Grant],
        taken: dict[int, None],
    ) -> CacheHandle:
        if not all(self.objects.is_loan(loan) for loan in packed.loans):
            raise ValueError("a loan was enqueued or put by another thread while it was put into the cache: do one of them")
        try:
            for loan in packed.loans:
                taken[loan.slot] = None
                self.objects.adopt(loan.slot)
            slots = [grant.slot for grant in grants]
            for slot in reversed(slots):  # its own last
                self.objects.publish_object(slot)
            handle = CacheHandle.sealed(self._secret, self._segment_id, grants[0], digest)
            entry = Entry(handle, slots, sum(map(self._extent_bytes, slots)))
            for book in books:
                book.append((key, handle))
            self.entries[key] = entry  # from here on it is in the cache
            taken.clear()
            self.used_bytes += entry.nbytes
        except BaseException:  # before the lock is free, and the slots may be another's
            self._undo(taken)
            raise
        self.counts.puts += 1
        self.counts.bytes_copied += packed.nbytes
        return handle

    def _undo(self, taken: dict[int, None]) -> None:
        """After a put that was cut short: what it took is free again, unless it had come to the end."""
        with self.lock:
            try:
                self._give_up(taken)
            except BaseException:  # a signal handler's: again, before the lock is free, and the slots may be another's
                self._give_up(taken)
                raise

    def _give_up(self, taken: dict[int, None]) -> None:
        kept = {slot for entry in self.entries.values() for slot in entry.slots}
        for slot in taken:
            if slot not in kept:
                self.objects.give_up(slot)
        self._slots.restore()
        self._settle()
        taken.clear()

    # ---- what is there ----------------------------------------------------------------------------------------

    def use(self, key: Key) -> Entry | None:
        """What is under a key, and now the most recently used."""
        entry = self.entries.get(key)
        if entry is not None:
            self.entries.move_to_end(key)
        return entry

    def forget(self, key: Key) -> bool:
        """Evicts what is under a key, if there is something; the memory is free when nobody holds it."""
        entry = self.entries.get(key)
        if entry is None:
            return False
        try:
            for slot in entry.slots:
                self.objects.evict(slot)
            del self.entries[key]
            self.used_bytes -= entry.nbytes
        except BaseException:  # a signal handler's
            self._settle()
            raise
        self.objects.scan()
        return True

    def _settle(self) -> None:
        """Finishes evictions that were cut short, and adds up anew."""
        for key, entry in [*self.entries.items()]:
            if not all(self.objects.is_open(slot) for slot in entry.slots):
                for slot in entry.slots:
                    self.objects.give_up(slot)
                del self.entries[key]
        self.used_bytes = sum(entry.nbytes for entry in self.entries.values())

    # ---- room -------------------------------------------------------------------------------------------------

    def _claim(self, nbytes: int, taken: dict[int, None]) -> Refusal | None:
        """A slot for an object, after evicting what has to go."""
        if nbytes > self._object_bytes_max:
            return Refusal.OVERSIZE
        length = align(nbytes, PAGE)
        while True:
            self._slots.collect()
            excess = self._excess_bytes(length)
            if self.objects.n_slots >= self._limit_slots:
                slot: int | Refusal = Refusal.NO_SLOT
            elif excess > 0:
                slot = Refusal.NO_EXTENT
            else:
                slot = self.objects.claim(nbytes, taken)
            if not isinstance(slot, Refusal):
                return None
            victims = self._victims(slot, length, excess)
            if not victims:
                return slot
            for key in victims:
                self.forget(key)
                self.counts.evictions += 1

    def _excess_bytes(self, length: int) -> int:
        """By how much an extent of this length would go beyond what the cache may take."""
        return self.used_bytes + self.objects.draining_bytes + length - self._limit_bytes

    def _victims(self, refusal: Refusal, length: int, excess: int) -> list[Key]:
        """What to evict, none if that would not help: a free range of ``length``, and ``excess`` bytes in all."""
        idle = (key for key, entry in self.entries.items() if not entry.is_held() and not self._is_in_use(entry))
        oldest = self._first(idle)
        if refusal is Refusal.NO_SLOT or not oldest:
            return oldest
        extents = self._slots.extents
        first = self._extent(self.entries[oldest[0]].slots[0])
        if extents.fits(*first, length) and first[1] - first[0] >= excess:
            return oldest
        keys = [*oldest, *idle]
        victims = [
            eviction.Victim(*self._extent(slot), age) for age, key in enumerate(keys) for slot in self.entries[key].slots
        ]
        window = eviction.choose(extents.free_ranges(), victims, length, extents.chunk_bytes)
        if window is None:
            return []
        chosen = dict.fromkeys(keys[victim.age] for victim in window)
        excess -= sum(self.entries[key].nbytes for key in chosen)
        for key in keys:
            if excess <= 0:
                break
            if key not in chosen:
                chosen[key] = None
                excess -= self.entries[key].nbytes
        return [*chosen] if excess <= 0 else []

    @staticmethod
    def _first(keys: Iterator[Key]) -> list[Key]:
        return [key for key in [next(keys, None)] if key is not None]

    def _is_in_use(self, entry: Entry) -> bool:
        return any(self.objects.is_held(slot) for slot in entry.slots)

    def _extent(self, slot: int) -> tuple[int, int]:
        start = self._slots.offsets[slot]
        return start, start + self._extent_bytes(slot)

    def _extent_bytes(self, slot: int) -> int:
        return self._slots.extents.length(self._slots.offsets[slot])
