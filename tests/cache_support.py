"""Caches for the tests, and real processes that read from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from support import Reader, processes_of

from arena import CacheHandle, CacheReader, Handle, ObjectCache, Uncached
from arena.errors import CacheMiss

PAGE = 4096


class CacheSide:
    """What a function that runs in a reader's process is given: its reader, and what it keeps between calls."""

    def __init__(self, reader: CacheReader) -> None:
        self.reader = reader
        self.kept: dict[str, Any] = {}


def attach(handle: Handle, rank: int) -> CacheSide:
    """What a reader's process begins with."""
    return CacheSide(ObjectCache.attach(handle, rank))


class CacheProcess(Reader):
    """A reader of a cache in its own process; as ``support.Reader``, its functions get a ``CacheSide``."""

    begin = staticmethod(attach)


@contextmanager
def cache_of(pages: int = 16, n_readers: int = 1, **options: Any) -> Iterator[tuple[ObjectCache, list[CacheReader]]]:
    """A cache of that many pages and its readers, all in this process."""
    with ObjectCache(pages * PAGE, n_readers, **options) as cache:
        readers = [ObjectCache.attach(cache.export_handle(), rank) for rank in range(n_readers)]
        try:
            yield cache, readers
        finally:
            for reader in readers:
                reader.shutdown()


def cache_readers_of(cache: ObjectCache, ranks: int) -> AbstractContextManager[list[CacheProcess]]:
    """That many processes that read from a cache, as ``support.processes_of``."""
    return processes_of(CacheProcess, cache, ranks)


def pages(count: int, value: int = 0) -> torch.Tensor:
    """An object that takes that many pages of the cache."""
    return torch.full((count * PAGE - 512,), value, dtype=torch.uint8)


def put(cache: ObjectCache, key: str, value: object) -> CacheHandle:
    """A put that must find room."""
    handle = cache.put(key, value)
    assert not isinstance(handle, Uncached), handle
    return handle


def is_there(reader: CacheReader | ObjectCache, handle: CacheHandle) -> bool:
    """Whether a handle leads to anything."""
    try:
        reader.get(handle)
    except CacheMiss:
        return False
    return True


# ---- what readers are asked to run ----------------------------------------------------------------------------------


def get(side: CacheSide, handle: CacheHandle) -> Any:
    """The object, sent back by an ordinary pickle."""
    return side.reader.get(handle)


def keep(side: CacheSide, name: str, handle: CacheHandle) -> None:
    """Keeps an object."""
    side.kept[name] = side.reader.get(handle)
