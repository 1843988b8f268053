"""Puts, gets, evictions and deaths on an ObjectCache, against a dictionary."""

from __future__ import annotations

import signal
from random import Random
from typing import Any

import torch

from arena import CacheHandle, Handle, ObjectCache
from arena.errors import CacheMiss
from fuzz.session import Failure, Session, expect
from fuzz.workers import LIMIT_S, Pool, Side, Worker, wait_until

CAPACITY_BYTES = 512 << 10
OBJECTS = 12
KEYS = 30
READERS = 2


def name(number: int) -> str:
    """A key."""
    return f"k{number}"


def value_of(key: str, version: int, size: int) -> dict[str, Any]:
    """What is put under a key: its bytes say which version it is."""
    return {"key": key, "version": version, "data": torch.full((size,), stamp_of(key, version), dtype=torch.int64)}


def stamp_of(key: str, version: int) -> int:
    """What every element is."""
    return int(key[1:]) * 1_000_003 + version


def is_right(value: Any, key: str, version: int) -> bool:
    is_named = value["key"] == key and value["version"] == version
    return is_named and bool((value["data"] == stamp_of(key, version)).all())


def cache(session: Session) -> None:
    """Puts, gets, holds, evictions, clears and killed readers of an ObjectCache, against an oracle."""
    with Pool() as pool, ObjectCache(CAPACITY_BYTES, READERS, max_objects=OBJECTS) as store:
        play = Play(session, pool, store)
        steps = 0
        try:
            for case in session.cases(1500):
                steps += 1
                play.step(session.rng(case))
            play.finish()
        except Failure as failure:  # all steps before it belong to it
            first = session.options.get("first") or 0
            raise Failure(f"step {steps}: {failure}", f"--first {first} --runs {steps}") from None


class Play:
    """The cache, its readers, and what they must find."""

    def __init__(self, session: Session, pool: Pool, store: ObjectCache) -> None:
        self._session, self._pool, self._store = session, pool, store
        self._version = 0
        self._newest: dict[str, tuple[CacheHandle, int]] = {}  # what was put last under each key, evicted or not
        self._old: list[tuple[str, CacheHandle, int]] = []  # what must not lead anywhere any more
        self._mine: list[tuple[str, int, Any]] = []  # gotten in this process, and kept
        self._readers = [self._reader(rank) for rank in range(READERS)]

    def _reader(self, rank: int) -> Worker:
        worker = self._pool.take()
        worker.start(serve, self._store.export_handle(), rank)
        kind, what = worker.next()
        expect(kind == "said", f"a reader returned {what!r}")
        return worker

    def step(self, rng: Random) -> None:
        """One operation, and a look at the books."""
        chance = rng.random()
        if chance < 0.4:
            self._put(rng)
        elif chance < 0.75:
            self._get(rng)
        elif chance < 0.85:
            self._drop(rng)
        elif chance < 0.93:
            self._get_old(rng)
        elif chance < 0.97:
            self._remove(name(rng.randrange(KEYS)))
        elif chance < 0.98:
            expect(self._store.clear() >= 0, "clear")
            for key in [*self._newest]:
                self._retire(key)
        else:
            self._kill(rng.randrange(READERS))
        self._look()

    def _put(self, rng: Random) -> None:
        key, size = name(rng.randrange(KEYS)), rng.choice([1, 100, 5000, 20_000, 80_000])
        self._version += 1
        handle = self._store.put(key, value_of(key, self._version, size))
        self._retire(key)  # what was there is gone, whatever becomes of the new one
        if isinstance(handle, CacheHandle):
            self._newest[key] = handle, self._version
            expect(is_right(self._store.get(handle), key, self._version), f"key {key} is not what was just put")
            self._session.count("puts")
        else:
            self._session.count(f"uncached: {handle.reason}")

    def _retire(self, key: str) -> None:
        if key in self._newest:
            self._old = [*self._old[-50:], (key, *self._newest.pop(key))]

    def _get(self, rng: Random) -> None:
        if not self._newest:
            return
        key = rng.choice([*self._newest])
        handle, version = self._newest[key]
        is_there = key in self._store
        if rng.random() < 0.5:
            found = self._ask(rng.randrange(READERS), ("get", handle, key, version))
        else:
            found = self._get_here(handle, key, version)
        self._session.count(f"gets: {found}")
        expect(found == ("right" if is_there else "miss"), f"key {key} ({'in' if is_there else 'out'}): {found}")

    def _get_here(self, handle: CacheHandle, key: str, version: int) -> str:
        try:
            value = self._store.get(handle)
        except CacheMiss:
            return "miss"
        self._mine = [*self._mine[-3:], (key, version, value)]
        return "right" if is_right(value, key, version) else "wrong"

    def _get_old(self, rng: Random) -> None:
        if self._old:
            key, handle, version = rng.choice(self._old)
            found = self._ask(rng.randrange(READERS), ("get", handle, key, version))
            expect(found in ("miss", "right"), f"an old handle of key {key} led to something else: {found}")
            self._session.count(f"old handles: {found}")  # right: the reader has that very object still

    def _drop(self, rng: Random) -> None:
        self._mine.clear()
        self._ask(rng.randrange(READERS), ("drop",))

    def _remove(self, key: str) -> None:
        was_there = key in self._store
        expect(self._store.remove(key) == was_there, f"remove({key})")
        self._retire(key)

    def _kill(self, rank: int) -> None:
        self._readers[rank].signal(signal.SIGKILL)
        self._pool.end(self._readers[rank])
        self._readers[rank] = self._reader_again(rank)
        self._session.count("kills")

    def _reader_again(self, rank: int) -> Worker:
        wait_until(lambda: self._is_dead(rank), f"the death of reader {rank} to be seen")
        return self._reader(rank)

    def _is_dead(self, rank: int) -> bool:
        self._store.reap()  # if a put has not been faster
        return not self._store.statistics().readers[rank].alive

    def _ask(self, rank: int, what: tuple[Any, ...]) -> Any:
        self._readers[rank].tell(what)
        return self._readers[rank].next()[1]

    def _look(self) -> None:
        """The books of the cache; and what is held here is as it was."""
        now = self._store.statistics()
        expect(now.bytes_in_use + now.bytes_draining <= now.bytes_capacity, f"more in use than there is: {now}")
        expect(now.objects == len(self._store) <= OBJECTS, f"more objects than there may be: {now}")
        for key in [*self._newest]:
            if key not in self._store:
                self._retire(key)
        expect(len(self._newest) == now.objects, f"{now.objects} objects, of which {len(self._newest)} are known")
        for key, version, value in self._mine:
            expect(is_right(value, key, version), f"key {key}, held here, has changed")

    def finish(self) -> None:
        """All readers drop what they have: everything is free again."""
        self._mine.clear()
        for rank in range(READERS):
            self._ask(rank, ("end",))
            self._readers[rank].result()
        self._store.clear()
        wait_until(lambda: self._store.statistics().slots_draining == 0, "all slots free again", LIMIT_S)
        expect(self._store.statistics().bytes_draining == 0, "bytes are still draining")


def serve(side: Side, handle: Handle, rank: int) -> None:
    """A reader: gets what it is told to, keeps the last few, and looks at them again."""
    held: list[tuple[str, int, Any]] = []
    with ObjectCache.attach(handle, rank, LIMIT_S) as reader:
        side.say("attached")
        while True:
            word, *about = side.hear(10 * LIMIT_S)
            if any(not is_right(value, key, version) for key, version, value in held):
                side.say("what was held has changed")
            elif word == "get":
                side.say(_get(reader, held, *about))
            else:
                held.clear()
                side.say("dropped")
            if word == "end":
                return


def _get(reader: Any, held: list[tuple[str, int, Any]], handle: CacheHandle, key: str, version: int) -> str:
    try:
        value = reader.get(handle)
    except CacheMiss:
        return "miss"
    held.append((key, version, value))
    del held[:-4]
    return "right" if is_right(value, key, version) else "wrong"
