"""Caches for the tests, and real processes that read from them."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
from support import _PRELOAD as PRELOAD
from support import WATCHDOG_S, Reader, RemoteError

from arena import CacheHandle, CacheReader, Handle, ObjectCache, Uncached
from arena.errors import CacheMiss

PAGE = 4096


class CacheSide:
    """What a function that runs in a reader's process is given: its reader, and what it keeps between calls."""

    def __init__(self, reader: CacheReader) -> None:
        self.reader = reader
        self.kept: dict[str, Any] = {}


class CacheProcess(Reader):
    """A reader of a cache in its own process; as ``support.Reader``, its functions get a ``CacheSide``."""

    def __init__(self, handle: Handle, rank: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOAD, "cache_support"])
        self.rank = rank
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, handle, rank), daemon=True)
        self.process.start()
        theirs.close()


def _serve(pipe: Connection, handle: Handle, rank: int) -> None:
    side = CacheSide(ObjectCache.attach(handle, rank))
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:  # the test has gone
            return
        try:
            answer = pickle.dumps((function(side, *arguments), None))
        except Exception as error:
            answer = pickle.dumps((None, RemoteError(repr(error))))
        pipe.send_bytes(answer)


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


@contextmanager
def processes_of(cache: ObjectCache, ranks: int) -> Iterator[list[CacheProcess]]:
    """That many processes that read from a cache, attached; ended however the test ends."""
    processes: list[CacheProcess] = []
    try:
        for rank in range(ranks):
            processes.append(CacheProcess(cache.export_handle(), rank))
        cache.wait_until_ready(WATCHDOG_S)
        yield processes
    finally:
        for process in processes:
            process.end()


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


def kept(side: CacheSide, name: str) -> Any:
    """A kept object, sent back by an ordinary pickle."""
    return side.kept[name]


def drop(side: CacheSide, name: str) -> None:
    """Lets a kept object go."""
    del side.kept[name]
