"""For engines with a sender's and a receiver's cache that are to mirror each other: the same two calls, over one store.

There is no second cache to keep in step.  The sender says where an object is, or sends it; a receiver that no longer finds
one says so, and it is sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arena.cache import CacheReader, ObjectCache
from arena.cache_handle import CacheHandle, Key, key_digest
from arena.errors import CacheMiss, InvalidHandle

__all__ = ["MirroredCache", "MirroredReceiver", "MirroredSender", "Parcel"]


class _Request:
    """While it is packed."""


@dataclass(frozen=True)
class Parcel:
    """What travels for one item: where it is, or the object itself."""

    key: bytes
    handle: CacheHandle | None
    payload: object = None


class MirroredSender:
    """The engine's half: decides for each item whether it is known or has to travel."""

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache

    def pack(self, items: Iterable[tuple[Key, object]]) -> list[Parcel]:
        """A parcel per item, in order.  A value that is callable is called only if the item is not known.

        What is known is held until the request is packed: nothing of a request makes room for another part of it.  If a
        value cannot be made or pickled, nothing new of the request stays in the cache.
        """
        return self._pack(list(items), set())

    def resend(self, missing: Iterable[bytes], items: Iterable[tuple[Key, object]]) -> list[Parcel]:
        """The request again, after a receiver's ``CacheMiss``: what it missed travels whole.

        Args:
            missing: the ``keys`` of the ``CacheMiss``.
            items: the whole request.
        """
        return self._pack(list(items), set(missing))

    def _pack(self, items: Sequence[tuple[Key, object]], whole: set[bytes]) -> list[Parcel]:
        request = _Request()  # holds what it names until it is gone: no exception can leave it held
        try:
            for key, _ in items:
                self._cache.hold(key, request)
            with self._cache.transaction():
                return [self._held_parcel(key, value, request, whole) for key, value in items]
        finally:
            del request  # also where a traceback is kept

    def _held_parcel(self, key: Key, value: object, request: _Request, whole: set[bytes]) -> Parcel:
        if key_digest(key) in whole:
            return Parcel(key_digest(key), None, _value(value))
        parcel = self._parcel(key, value)
        self._cache.hold(key, request)
        return parcel

    def _parcel(self, key: Key, value: object) -> Parcel:
        handle = self._cache.get_handle(key)
        if handle is not None:
            return Parcel(handle.key, handle)
        made = _value(value)
        put = self._cache.put(key, made, replace=False)
        return Parcel(put.key, put) if isinstance(put, CacheHandle) else Parcel(key_digest(key), None, made)


class MirroredReceiver:
    """A worker's half: restores what was packed, from the caches of one or several engines."""

    def __init__(self, readers: Sequence[CacheReader]) -> None:
        self._readers = {reader.segment_id: reader for reader in readers}

    def unpack(self, parcels: Iterable[Parcel]) -> list[object]:
        """The objects, in order.

        Raises:
            CacheMiss: names all that are no longer in their cache; hand ``keys`` to the sender's ``resend``.
            InvalidHandle: a handle is of none of these caches, or was altered.
        """
        parcels = list(parcels)
        objects: list[object] = []
        missing: list[bytes] = []
        for parcel in parcels:
            try:
                objects.append(parcel.payload if parcel.handle is None else self._reader(parcel.handle).get(parcel.handle))
            except CacheMiss as miss:
                missing += miss.keys
        if missing:
            names = ", ".join(key.hex() for key in missing)
            raise CacheMiss(f"{len(missing)} of {len(parcels)} objects are to be sent again: {names}", tuple(missing))
        return objects

    def _reader(self, handle: CacheHandle) -> CacheReader:
        reader = self._readers.get(handle.segment_id)
        if reader is None:
            raise InvalidHandle(f"a handle of cache {handle.segment_id.hex()}, to which this receiver is not attached")
        return reader


class MirroredCache:
    """Makes the two halves: ``MirroredCache.sender(cache)`` in the engine, ``.receiver(reader, ...)`` in the workers."""

    @staticmethod
    def sender(cache: ObjectCache) -> MirroredSender:
        """The half of an engine, over its cache."""
        return MirroredSender(cache)

    @staticmethod
    def receiver(*readers: CacheReader) -> MirroredReceiver:
        """The half of a worker, over the caches of the engines that it serves."""
        return MirroredReceiver(readers)


def _value(value: object) -> object:
    return value() if callable(value) else value
