"""Objects in shared memory under a key: put by one process, got by all without a copy.

The writer puts and evicts; readers get what a handle leads to, at any moment, and hold it until the last view of it is
gone.  Nothing is mirrored, so there is nothing to keep in step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType, TracebackType

from arena.cache_handle import CacheHandle, Key, Uncached, check_key, key_digest, several
from arena.cache_reader import CacheReader
from arena.cache_store import Store
from arena.config import CAPACITY_BYTES_MAX, SLOTS_MAX, ArenaConfig, in_range
from arena.endpoint import Deadline
from arena.ends import OwnerEnd
from arena.errors import Cancelled, ForkedError
from arena.handle import Handle
from arena.message.objects import ObjectEncoder
from arena.protocol.slots import Refusal
from arena.shm.layout import PAGE, READERS_MAX, align
from arena.statistics import CacheStatistics

__all__ = ["CacheHandle", "CacheReader", "ObjectCache", "Uncached"]

_NO_RING_BYTES = PAGE


def _object_bytes(max_object_bytes: int | None) -> int | None:
    return None if max_object_bytes is None else in_range("max_object_bytes", max_object_bytes, 1, CAPACITY_BYTES_MAX)


class _Transaction:
    """What was put since it was opened."""

    def __init__(self) -> None:
        self.puts: list[tuple[Key, CacheHandle]] = []


class ObjectCache:
    """The writer's side of a cache.

    The process that calls the constructor writes.  It sends ``export_handle()`` to its readers by any channel; each calls
    ``ObjectCache.attach(handle, rank)``.  In the segment of a queue, with one memory for both, it is made by
    ``MessageQueue.object_cache()`` instead, and its readers by ``MessageQueue.cache_reader()``.

    No method raises because the cache is full: ``put`` then returns ``Uncached``.

    Thread safety: any method may be called from any thread; copies run side by side.  Process safety: as of a queue: all
    but ``export_handle`` and ``shutdown`` raise ``ForkedError`` in a forked child, and ``Cancelled`` after shutdown.
    A signal handler or a finalizer that comes in the middle of a change of its own thread gets ``RuntimeError``, except from
    ``statistics``.
    Keys are ``bytes`` or ``str``, not empty; another is a TypeError or a ValueError in every method.
    Keys are hashed and compared under a lock: a subclass of str or bytes that does so must use no queue or cache there.

    Args:
        capacity_bytes: memory for objects, whole pages; taken as it is first used.
        n_readers: how many processes attach; the writer can ``get`` too and does not count.
        max_object_bytes: larger objects are not cached; None for no limit but the capacity.
        policy: ``"lru"``.
        max_objects: how many objects can be held at once, those that are evicted and still in use included.
        arena: the segment's other options; its ``capacity_bytes`` and ``slots`` are not used.  Nothing is pinned: where a
            device is to read objects directly, take ``MessageQueue.object_cache()``.

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
        n_readers = in_range("n_readers", n_readers, 0, READERS_MAX)
        max_objects = in_range("max_objects", max_objects, 1, SLOTS_MAX)
        max_object_bytes = _object_bytes(max_object_bytes)
        if policy != "lru":
            raise ValueError(f"policy={policy!r}: must be 'lru'")
        if not isinstance(arena, ArenaConfig):
            raise ValueError(f"arena={arena!r}: must be an ArenaConfig")
        if arena.pin not in ("auto", "off"):
            raise ValueError(f"pin={arena.pin!r}: a cache of its own pins nothing; use MessageQueue.object_cache()")
        config = replace(arena, capacity_bytes=capacity_bytes, slots=max_objects, pin="off")
        end = OwnerEnd(range(n_readers), _NO_RING_BYTES, config)
        weakref.finalize(self, end.shutdown)  # dropped, or left at interpreter exit
        self._is_alone = True
        self._adopt(end, align(config.capacity_bytes, PAGE), max_objects, max_object_bytes)

    @classmethod
    def in_segment(
        cls, end: OwnerEnd, *, reserve_bytes: int, reserve_slots: int, max_object_bytes: int | None
    ) -> ObjectCache:
        """A cache in the arena of a queue; ``MessageQueue.object_cache`` documents it."""
        of = end.segment.layout
        reserve_bytes = in_range("reserve_bytes", reserve_bytes, 0, of.data_bytes - 1)
        reserve_slots = in_range("reserve_slots", reserve_slots, 0, of.n_slots - 1)
        max_object_bytes = _object_bytes(max_object_bytes)
        cache = cls.__new__(cls)
        cache._is_alone = False
        cache._adopt(end, of.data_bytes - align(reserve_bytes, PAGE), of.n_slots - reserve_slots, max_object_bytes)
        return cache

    def _adopt(self, end: OwnerEnd, limit_bytes: int, limit_slots: int, max_object_bytes: int | None) -> None:
        self._end = end
        self._limit_bytes = limit_bytes
        self._limit_slots = limit_slots
        object_bytes_max = limit_bytes if max_object_bytes is None else min(max_object_bytes, limit_bytes)
        self._store = Store(end, limit_bytes, limit_slots, object_bytes_max)
        self._lock = self._store.lock
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
            ValueError: a loan in it was enqueued, or put, by another thread at the same time.
            whatever pickling raises.
        """
        digest = key_digest(key)
        self._check()
        with self._end.visit():
            self._look_around()
            if not replace and (known := self._used(key)) is not None:
                return known
            packed = ObjectEncoder(self._end.slots).pack(value)
            books = [transaction.puts for transaction in self._open_transactions()]
            handle = self._store.put(key, digest, packed, books, replace=replace)
            if isinstance(handle, Refusal) and self._look_around(now=True):  # a dead reader held what is needed
                handle = self._store.put(key, digest, packed, books, replace=replace)
        if isinstance(handle, Refusal):
            return self._uncached(handle, packed.nbytes)
        return handle

    def _check(self, *keys: Key) -> None:
        self._end.check_usable()
        self._end.check_not_in_hand()
        for key in keys:
            check_key(key)

    def _used(self, key: Key) -> CacheHandle | None:
        with self._lock:
            entry = self._store.use(key)
            return None if entry is None else entry.handle

    def get_handle(self, key: Key) -> CacheHandle | None:
        """The handle of what is under a key, which counts as a use of it; None if nothing is."""
        self._check(key)
        handle = self._used(key)
        with self._lock:
            if handle is None:
                self._store.counts.misses += 1
            else:
                self._store.counts.hits += 1
        return handle

    def contains(self, key: Key) -> bool:
        """Whether something is under a key; no use of it."""
        self._check(key)
        return key in self._store.entries

    __contains__ = contains

    def __len__(self) -> int:
        self._end.check_usable()
        return len(self._store.entries)

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def touch(self, keys: Iterable[Key]) -> list[Key]:
        """Uses all keys of a request, before its new objects are put; returns those that nothing is under."""
        keys = several(keys)  # the caller's code, which may take a turn: never under the lock
        self._check(*keys)
        with self._lock:
            return [key for key in keys if self._store.use(key) is None]

    def hold(self, key: Key, request: object = None) -> CacheHandle | None:
        """Keeps an object from eviction until ``release``, as often as it was held; None if nothing is under the key.

        Args:
            key: of what is to be held.
            request: any object that can be weakly referenced: the hold ends by itself when that is gone, however it goes,
                and needs no ``release``.  Without one, an exception that comes between the hold and its note at the
                caller (a signal handler's) leaves the object held.
        """
        self._check(key)
        with self._lock:
            entry = self._store.use(key)
            if entry is None:
                return None
            if request is None:
                entry.holds += 1
            else:
                alive = [each for each in entry.requests if each() is not None]
                entry.requests = [*alive, weakref.ref(request)]
            return entry.handle

    def release(self, key: Key, handle: CacheHandle | None = None) -> bool:
        """Ends one ``hold`` that no request has; False if there is none, as after ``remove``, ``clear`` or another ``put``.

        Args:
            key: what was held.
            handle: what ``hold`` returned: a later object under the same key is then left alone.
        """
        self._check(key)
        with self._lock:
            entry = self._store.entries.get(key)
            if entry is None or not entry.holds or (handle is not None and entry.handle != handle):
                return False
            entry.holds -= 1
            return True

    def remove(self, key: Key) -> bool:
        """Takes an object out, held or not; whether there was one.  Readers that have it keep it."""
        self._check(key)
        with self._end.visit(), self._lock:
            was_there = self._store.forget(key)
        return was_there

    def clear(self) -> int:
        """Takes everything out; returns how many objects.  No old handle will ever lead to a later object."""
        self._check()
        with self._end.visit(), self._lock:
            count = len(self._store.entries)
            for key in [*self._store.entries]:
                self._store.forget(key)
            return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What this thread puts in the block is taken out again if the block raises: a rejected request leaves nothing."""
        mine = _Transaction()
        self._open_transactions().add(mine)
        try:
            yield
        except BaseException:
            self._end.check_not_in_hand()
            with suppress(Cancelled, ForkedError), self._end.visit(), self._lock:  # after those nothing is there
                for key, handle in mine.puts:
                    if key in self._store.entries and self._store.entries[key].handle == handle:
                        self._store.forget(key)
            raise

    def _open_transactions(self) -> weakref.WeakSet[_Transaction]:
        """Those of this thread; one that is over is in nobody's hands any more."""
        if not hasattr(self._transactions, "opened"):
            self._transactions.opened = weakref.WeakSet()
        opened: weakref.WeakSet[_Transaction] = self._transactions.opened
        return opened

    def _uncached(self, refusal: Refusal, nbytes: int) -> Uncached:
        with self._lock:
            self._store.counts.uncached[refusal.value] += 1
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
        is_in_hand = self._end.slots.is_in_hand()
        with self._end.visit(), self._lock:
            store, counts = self._store, self._store.counts
            if not is_in_hand:
                store.objects.scan()
            now = CacheStatistics(
                objects=len(store.entries),
                objects_held=sum(entry.is_held() for entry in store.entries.values()),
                slots_total=self._limit_slots,
                slots_draining=store.objects.n_slots - sum(len(entry.slots) for entry in store.entries.values()),
                bytes_capacity=self._limit_bytes,
                bytes_in_use=store.used_bytes,
                bytes_draining=store.objects.draining_bytes,
                puts_total=counts.puts,
                bytes_copied=counts.bytes_copied,
                evictions_total=counts.evictions,
                hits_total=counts.hits,
                misses_total=counts.misses,
                uncached_total=MappingProxyType(dict(counts.uncached)),
                readers=self._end.members.statistics(),
            )
        return now

    def shutdown(self) -> None:
        """Gives everything back; objects that readers have stay valid.  In a queue's segment: ``clear``.  Idempotent."""
        if self._is_alone:
            self._end.shutdown()
        elif not self._end.closed:
            with suppress(Cancelled, ForkedError):  # the queue's own shutdown was faster, or nothing here is ours
                self.clear()

    def __repr__(self) -> str:
        store = self._store
        return f"ObjectCache({len(store.entries)} objects, {store.used_bytes} of {self._limit_bytes} bytes)"

    def __enter__(self) -> ObjectCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()
