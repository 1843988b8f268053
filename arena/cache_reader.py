"""The reader's side of a cache."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from types import TracebackType

from arena.cache_handle import CacheHandle
from arena.config import ReaderAccess
from arena.endpoint import Deadline, Endpoint
from arena.ends import RANK_POLL_S, MemberEnd
from arena.errors import CacheMiss, Cancelled, InvalidHandle, StaleSlotError, WriterDied
from arena.handle import Handle, checked_handle
from arena.message.gates import Gates
from arena.message.objects import ObjectDecoder
from arena.protocol.objects import ObjectReader


class CacheReader:
    """Gets objects.  Made by ``ObjectCache.attach``, or by ``MessageQueue.cache_reader`` in a queue's segment.

    Thread safety: any method may be called from any thread.  Process safety: inert after a fork; a child attaches anew.
    """

    def __init__(self, end: Endpoint, row: int, access: ReaderAccess, gates: Gates | None = None) -> None:
        self._end = end
        self._is_alone = False
        self._gates = gates
        self._secret = end.segment.secret()
        self.segment_id = end.segment.handle.segment_id
        slots = ObjectReader.of(end.segment, row, private=access == "private")
        self._decoder = ObjectDecoder(slots, readonly=access == "readonly", gates=gates)

    @classmethod
    def attach(cls, handle: Handle, rank: int, timeout: float | None = 30.0) -> CacheReader:
        """Joins a cache as the reader ``rank``.

        Args:
            handle: what ``ObjectCache.export_handle`` returned.
            rank: below the cache's ``n_readers``.
            timeout: how long to wait, where a process that had the rank has died, for the writer to see that.

        Raises:
            AttachError: the segment is not to be reached from here, or the rank is taken.
            InvalidHandle: the handle was altered, or is a queue's.
            Cancelled: the writer has shut down.
            WriterDied: the writer has ended before it saw the death.
            TimeoutError: the rank was not free in time.
            ValueError: there is no such rank.
        """
        handle = checked_handle(handle)
        if handle.endpoint:
            raise InvalidHandle("this is a queue's handle: MessageQueue.create_from_handle(handle, rank).cache_reader()")
        end = MemberEnd(handle, rank)
        try:
            claim_rank(end, Deadline.after(timeout))
            reader = cls(end, end.row, handle.reader_access)
        except BaseException:
            end.shutdown()
            raise
        reader._is_alone = True
        weakref.finalize(reader, end.shutdown)  # dropped, or left at interpreter exit
        return reader

    def get(self, handle: CacheHandle) -> object:
        """The object, whose large buffers are views of the cache: it is held until the last of them is gone.

        Raises:
            CacheMiss: it is no longer there; a subclass of InvalidHandle, so catch it first.
            InvalidHandle: the handle was altered, or is another cache's: sending the object again does not help.
            ArenaError: with reader_access="private", where this process has locked the cache's memory (mlock).
            whatever unpickling raises.
        """
        return self.get_many([handle])[0]

    def get_many(self, handles: Iterable[CacheHandle]) -> list[object]:
        """The objects, in this order.

        Raises:
            CacheMiss: names every one that is no longer there; the others are not held.
            InvalidHandle: as ``get``; nothing is held.
            TypeError: these are not several.
        """
        if isinstance(handles, CacheHandle):
            raise TypeError(f"{handles!r} is one handle: get(handle), or get_many([handle])")
        handles = list(handles)
        objects: list[object] = []
        missing: list[bytes] = []
        with self._end.visit():
            if self._gates is not None:
                self._gates.poll()
            for handle in handles:
                self._check(handle)
            for handle in handles:
                try:
                    objects.append(self._decoder.get(handle.grant))
                except StaleSlotError:
                    missing.append(handle.key)
        if missing:
            names = ", ".join(key.hex() for key in missing)
            raise CacheMiss(f"{len(missing)} of {len(handles)} objects are no longer cached: {names}", tuple(missing))
        return objects

    def _check(self, handle: CacheHandle) -> None:
        if not isinstance(handle, CacheHandle):
            raise InvalidHandle(f"{handle!r:.100} is not a cache handle")
        handle.check(self._secret, self.segment_id)

    def shutdown(self) -> None:
        """Leaves the cache; objects that are held stay valid.  Idempotent; in a queue's segment the queue does it."""
        if self._is_alone:
            self._end.shutdown()

    def __enter__(self) -> CacheReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()


def claim_rank(end: MemberEnd, deadline: Deadline) -> None:
    """Waits until the rank is this process's: only then may it hold anything.

    Raises:
        AttachError: a living process has the rank.
        Cancelled: shutdown() in another thread, or in the writer.
        WriterDied: the writer has ended, and will not look.
        TimeoutError: the writer has not looked at a dead one in time.
    """
    while not end.claim_entry():
        end.check_usable()
        if end.ring.writer_closed:
            raise Cancelled(f"writer {end.writer.pid} has shut down")
        if end.writer.has_gone():
            raise WriterDied(f"writer {end.writer.pid} has died, and rank {end.rank} stays a dead process's")
        if deadline.passed():
            raise TimeoutError(
                f"rank {end.rank} was a dead process's, and writer {end.writer.pid} has not noticed within "
                f"{deadline.timeout_s} s; it does so in put, reap and enqueue"
            )
        time.sleep(RANK_POLL_S)
