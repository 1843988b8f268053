"""Objects in shared memory under a key: put by one process, got by all without a copy.

The writer puts and evicts; readers get what a handle leads to, at any moment, and hold it until the last view of it is
gone.  Nothing is mirrored, so there is nothing to keep in step.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType, TracebackType

from arena.cache_handle import CacheHandle, Key, Uncached, key_digest
from arena.cache_reader import CacheReader
from arena.config import ArenaConfig
from arena.endpoint import Deadline
from arena.ends import OwnerEnd
from arena.handle import Handle
from arena.message.objects import ObjectEncoder, PackedObject
from arena.protocol import eviction
from arena.protocol.objects import ObjectWriter
from arena.protocol.slots import Grant, Refusal
from arena.shm.layout import PAGE, READERS_MAX, align
from arena.statistics import CacheStatistics

__all__ = ["CacheHandle", "CacheReader", "ObjectCache", "Uncached"]

_NO_RING_BYTES = PAGE


@dataclass
class _Entry:
    """An object that is in the cache."""

    handle: CacheHandle
    slots: list[int]  # its own, then those of loans that it has taken over
    nbytes: int  # of all its extents
    holds: int = 0


@dataclass
class _Counts:
    puts: int = 0
    bytes_copied: int = 0
    evictions: int = 0
    hits: int = 0
    misses: int = 0
    uncached: Counter[str] = field(default_factory=Counter)


class ObjectCache:
    """The writer's side of a cache.

    The process that calls the constructor writes.  It sends ``export_handle()`` to its readers by any channel; each calls
    ``ObjectCache.attach(handle, rank)``.  In the segment of a queue, with one memory for both, it is made by
    ``MessageQueue.object_cache()`` instead, and its readers by ``MessageQueue.cache_reader()``.

    No method raises because the cache is full: ``put`` then returns ``Uncached``.

    Thread safety: any method may be called from any thread; copies run side by side.  Process safety: as of a queue.

    Args:
        capacity_bytes: memory for objects, whole pages; taken as it is first used.
        n_readers: how many processes attach; the writer can ``get`` too and does not count.
        max_object_bytes: larger objects are not cached; None for no limit but the capacity.
        policy: ``"lru"``.
        max_objects: how many objects can be held at once, those that are evicted and still in use included.
        arena: the segment's other options; its ``capacity_bytes`` and ``slots`` are not used.

    Raises:
        ValueError: an argument is out of range.
        CapacityError: the memory is not there.
    """

    def __init__(
        self,
        capacity_bytes: int = 1 << 30,
        n_readers: int = 1,
        max_object_bytes: int | None = None,
        policy: str = "lru",
        *,
        max_objects: int = 4096,
        arena: ArenaConfig = ArenaConfig(),  # noqa: B008 - immutable
    ) -> None:
        if not isinstance(n_readers, int) or isinstance(n_readers, bool) or not 0 <= n_readers <= READERS_MAX:
            raise ValueError(f"n_readers={n_readers!r}: must be an integer between 0 and {READERS_MAX}")
        if policy != "lru":
            raise ValueError(f"policy={policy!r}: must be 'lru'")
        if not isinstance(arena, ArenaConfig):
            raise ValueError(f"arena={arena!r}: must be an ArenaConfig")
        config = replace(arena, capacity_bytes=capacity_bytes, slots=max_objects)
        end = OwnerEnd(range(n_readers), _NO_RING_BYTES, config)
        weakref.finalize(self, end.shutdown)  # dropped, or left at interpreter exit
        self._is_alone = True
        self._adopt(end, align(capacity_bytes, PAGE), max_objects, max_object_bytes)

    @classmethod
    def in_segment(
        cls, end: OwnerEnd, *, reserve_bytes: int, reserve_slots: int, max_object_bytes: int | None
    ) -> ObjectCache:
        """A cache in the arena of a queue; ``MessageQueue.object_cache`` documents it."""
        of = end.segment.layout
        for name, value, most in (
            ("reserve_bytes", reserve_bytes, of.data_bytes),
            ("reserve_slots", reserve_slots, of.n_slots),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < most:
                raise ValueError(f"{name}={value!r}: must be an integer from 0 to below {most}, what the arena has")
        cache = cls.__new__(cls)
        cache._is_alone = False
        cache._adopt(end, of.data_bytes - align(reserve_bytes, PAGE), of.n_slots - reserve_slots, max_object_bytes)
        return cache

    def _adopt(self, end: OwnerEnd, limit_bytes: int, limit_slots: int, max_object_bytes: int | None) -> None:
        if max_object_bytes is not None and max_object_bytes <= 0:
            raise ValueError(f"max_object_bytes={max_object_bytes!r}: must be positive, or None")
        self._end = end
        self._limit_bytes = limit_bytes
        self._limit_slots = limit_slots
        self._object_bytes_max = limit_bytes if max_object_bytes is None else min(max_object_bytes, limit_bytes)
        self._slots = end.slots
        self._lock = end.slots.lock
        self._objects = ObjectWriter(end.segment, end.slots, end.config.quarantine_s)
        self._secret = end.segment.secret()
        self._segment_id = end.segment.handle.segment_id
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()  # the least recently used first
        self._used_bytes = 0  # of the entries
        self._counts = _Counts()
        self._transactions = threading.local()
        self._own_reader = CacheReader(end, end.segment.layout.n_readers, "shared")

    # ---- readers ----------------------------------------------------------------------------------------------

    def export_handle(self) -> Handle:
        """What ``attach`` needs.

        Raises:
            ValueError: the cache is in a queue's segment: its readers are the queue's.
        """
        if not self._is_alone:
            raise ValueError("this cache is in a queue's segment: its readers call MessageQueue.cache_reader()")
        return Handle(
            segment=self._end.segment.handle,
            endpoint="",
            local_reader_ranks=self._end.ranks,
            reader_access=self._end.config.reader_access,
            spin_us=0,
        ).sealed()

    @staticmethod
    def attach(handle: Handle, rank: int, timeout: float | None = 30.0) -> CacheReader:
        """Joins as the reader ``rank``, in any process; see ``CacheReader.attach``."""
        return CacheReader.attach(handle, rank, timeout)

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Until every reader has attached; a cache works without, too.

        Raises:
            TimeoutError: names the ranks that are missing.
        """
        self._end.wait_until_ready(Deadline.after(timeout))

    def reap(self) -> int:
        """Looks for dead readers now; returns how many were found.  ``put`` does so by itself, now and then."""
        return self._end.reap()

    def get(self, handle: CacheHandle) -> object:
        """As a reader's ``get``, in the writer's process."""
        return self._own_reader.get(handle)

    def get_many(self, handles: Iterable[CacheHandle]) -> list[object]:
        """As a reader's ``get_many``, in the writer's process."""
        return self._own_reader.get_many(handles)

    # ---- objects ----------------------------------------------------------------------------------------------

    def put(self, key: Key, value: object, *, replace: bool = True) -> CacheHandle | Uncached:
        """Stores an object under a key: one copy of each of its buffers, none of those that lie in a loan.

        The value is as it is now; it must not be changed in a loan afterwards.  What was under the key is evicted.

        Args:
            key: best an ``object_key`` of the value.
            value: anything that can be pickled.
            replace: False: what is there under the key is the same object (for several threads that meet it at once).

        Returns:
            the handle to send, or ``Uncached`` with the reason: then send the value.

        Raises:
            whatever pickling raises.
        """
        digest = key_digest(key)
        with self._end.visit():
            self._look_around()
            if not replace and not self.touch([key]) and (entry := self._entries.get(key)) is not None:
                return entry.handle
            packed = PackedObject(ObjectEncoder(self._slots).encode(value))
            handle = self._store(key, digest, packed, replace)
        if isinstance(handle, CacheHandle):
            for stored in self._open_transactions():
                stored.append((key, handle))
        return handle

    def _store(self, key: Key, digest: bytes, packed: PackedObject, replace: bool) -> CacheHandle | Uncached:
        with self._lock:
            if replace:
                self._forget(key)
            slot = self._claim(packed.nbytes)
        if isinstance(slot, Refusal):
            return self._uncached(slot, packed.nbytes)
        loans = packed.loans
        grants = [self._objects.grant_to_be(each) for each in (slot, *loans)]
        try:
            error = packed.write(self._end.segment, self._slots, grants, self._end.config.copy_threads)
        except BaseException:
            self._objects.abort(slot)
            raise
        if error:
            self._objects.abort(slot)
            return self._uncached(Refusal.NO_MEMORY, packed.nbytes)
        with self._lock:
            if not replace and key in self._entries:  # another thread was faster
                self._objects.abort(slot)
                return self._entries[key].handle
            self._forget(key)
            return self._publish(key, digest, grants, packed.nbytes)

    def _publish(self, key: Key, digest: bytes, grants: Sequence[Grant], nbytes: int) -> CacheHandle:
        own, *loans = [grant.slot for grant in grants]
        for loan in loans:
            if not self._objects.adopt(loan):
                raise ValueError("a loan was enqueued while it was put into the cache: do one or the other")
        for slot in (*loans, own):
            self._objects.publish_object(slot)
        handle = CacheHandle.sealed(self._secret, self._segment_id, grants[0], digest)
        entry = _Entry(handle, [own, *loans], sum(self._extent_bytes(slot) for slot in (own, *loans)))
        self._entries[key] = entry
        self._used_bytes += entry.nbytes
        self._counts.puts += 1
        self._counts.bytes_copied += nbytes
        return handle

    def get_handle(self, key: Key) -> CacheHandle | None:
        """The handle of what is under a key, which counts as a use of it; None if nothing is."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._counts.misses += 1
                return None
            self._counts.hits += 1
            self._entries.move_to_end(key)
            return entry.handle

    def contains(self, key: Key) -> bool:
        """Whether something is under a key; no use of it."""
        return key in self._entries

    __contains__ = contains

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def touch(self, keys: Iterable[Key]) -> list[Key]:
        """Uses all keys of a request, before its new objects are put; returns those that nothing is under."""
        with self._lock:
            missing = []
            for key in keys:
                if key in self._entries:
                    self._entries.move_to_end(key)
                else:
                    missing.append(key)
            return missing

    def hold(self, key: Key) -> CacheHandle | None:
        """Keeps an object from eviction until ``release``, as often as it was held; None if nothing is under the key."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.holds += 1
            self._entries.move_to_end(key)
            return entry.handle

    def release(self, key: Key, handle: CacheHandle | None = None) -> bool:
        """Ends one ``hold``; False if the object is not held, as after ``remove``, ``clear`` or another ``put``.

        Args:
            key: what was held.
            handle: what ``hold`` returned: a later object under the same key is then left alone.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.holds or (handle is not None and entry.handle != handle):
                return False
            entry.holds -= 1
            return True

    def remove(self, key: Key) -> bool:
        """Takes an object out, held or not; whether there was one.  Readers that have it keep it."""
        with self._end.visit(), self._lock:
            return self._forget(key)

    def clear(self) -> int:
        """Takes everything out; returns how many objects.  No old handle will ever lead to a later object."""
        with self._end.visit(), self._lock:
            count = len(self._entries)
            for key in [*self._entries]:
                self._forget(key)
            return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What this thread puts in the block is taken out again if the block raises: a rejected request leaves nothing."""
        opened = self._open_transactions()
        stored: list[tuple[Key, CacheHandle]] = []
        opened.append(stored)
        try:
            yield
        except BaseException:
            with self._lock:
                for key, handle in stored:
                    if key in self._entries and self._entries[key].handle == handle:
                        self._forget(key)
            raise
        finally:
            opened.remove(stored)

    def _open_transactions(self) -> list[list[tuple[Key, CacheHandle]]]:
        if not hasattr(self._transactions, "opened"):
            self._transactions.opened = []
        opened: list[list[tuple[Key, CacheHandle]]] = self._transactions.opened
        return opened

    # ---- room -------------------------------------------------------------------------------------------------

    def _claim(self, nbytes: int) -> int | Refusal:
        """A slot for an object, after evicting what has to go."""
        if nbytes > self._object_bytes_max:
            return Refusal.OVERSIZE
        slot = self._claim_evicting(nbytes)
        if isinstance(slot, Refusal) and self._look_around(now=True):
            return self._claim_evicting(nbytes)
        return slot

    def _claim_evicting(self, nbytes: int) -> int | Refusal:
        length = align(nbytes, PAGE)
        while True:
            self._slots.collect()
            excess = self._excess_bytes(length)
            if self._objects.n_slots >= self._limit_slots:
                slot: int | Refusal = Refusal.NO_SLOT
            elif excess > 0:
                slot = Refusal.NO_EXTENT
            else:
                slot = self._objects.claim(nbytes)
            if not isinstance(slot, Refusal):
                return slot
            victims = self._victims(slot, length, excess)
            if not victims:
                return slot
            for key in victims:
                self._forget(key)
                self._counts.evictions += 1

    def _excess_bytes(self, length: int) -> int:
        """By how much an extent of this length would go beyond what the cache may take."""
        return self._used_bytes + self._objects.draining_bytes + length - self._limit_bytes

    def _victims(self, refusal: Refusal, length: int, excess: int) -> list[Key]:
        """What to evict, none if that would not help: a free range of ``length``, and ``excess`` bytes in all."""
        idle = (key for key, entry in self._entries.items() if not entry.holds and not self._is_in_use(entry))
        oldest = self._first(idle)
        if refusal is Refusal.NO_SLOT or not oldest:
            return oldest
        if self._extent_bytes(self._entries[oldest[0]].slots[0]) >= max(length, excess):
            return oldest
        keys = [*oldest, *idle]
        victims = [
            eviction.Victim(self._slots.offsets[slot], self._slots.offsets[slot] + self._extent_bytes(slot), age)
            for age, key in enumerate(keys)
            for slot in self._entries[key].slots
        ]
        window = eviction.choose(self._slots.extents.free_ranges(), victims, length)
        if window is None:
            return []
        chosen = {victim.age for victim in window}
        for age in range(len(keys)):
            if sum(self._entries[keys[each]].nbytes for each in chosen) >= excess:
                return [keys[each] for each in sorted(chosen)]
            chosen.add(age)
        return []

    @staticmethod
    def _first(keys: Iterator[Key]) -> list[Key]:
        return [key for key in [next(keys, None)] if key is not None]

    def _is_in_use(self, entry: _Entry) -> bool:
        return any(self._objects.is_held(slot) for slot in entry.slots)

    def _extent_bytes(self, slot: int) -> int:
        return self._slots.extents.length(self._slots.offsets[slot])

    def _forget(self, key: Key) -> bool:
        """Evicts what is under a key; the memory is free when nobody holds it."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._used_bytes -= entry.nbytes
        for slot in entry.slots:
            self._objects.evict(slot)
        self._objects.scan()
        return True

    def _uncached(self, refusal: Refusal, nbytes: int) -> Uncached:
        with self._lock:
            self._counts.uncached[refusal.value] += 1
        return Uncached(refusal.value, nbytes)

    def _look_around(self, *, now: bool = False) -> bool:
        """Joins, leaves and deaths, unless the queue is in a call and does that itself; whether a death was found."""

        def look_around() -> bool:
            before = self._end.members.deaths_total
            self._end.look_around()
            if now:
                self._end.members.look_after()
            return self._end.members.deaths_total > before

        return bool(self._end.if_free(look_around))

    # ---- the rest ---------------------------------------------------------------------------------------------

    def statistics(self) -> CacheStatistics:
        """The cache in numbers, as of now."""
        with self._end.visit(), self._lock:
            self._objects.scan()
            counts = self._counts
            return CacheStatistics(
                objects=len(self._entries),
                objects_held=sum(1 for entry in self._entries.values() if entry.holds),
                slots_total=self._limit_slots,
                slots_draining=self._objects.n_slots - sum(len(entry.slots) for entry in self._entries.values()),
                bytes_capacity=self._limit_bytes,
                bytes_in_use=self._used_bytes,
                bytes_draining=self._objects.draining_bytes,
                puts_total=counts.puts,
                bytes_copied=counts.bytes_copied,
                evictions_total=counts.evictions,
                hits_total=counts.hits,
                misses_total=counts.misses,
                uncached_total=MappingProxyType(dict(counts.uncached)),
                readers=self._end.members.statistics(),
            )

    def shutdown(self) -> None:
        """Gives everything back; objects that readers have stay valid.  In a queue's segment: ``clear``.  Idempotent."""
        if self._is_alone:
            self._end.shutdown()
        elif not self._end.closed:
            self.clear()

    def __enter__(self) -> ObjectCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()
