"""A long random run against an oracle: a dict, an order of use, and who holds what; readers are killed and all is cleared.

Objects of one size: the oracle says exactly which one goes.  Objects of many sizes: whatever goes was held by nobody (which
ones go is tested in ``test_cache_eviction.py``).  Always: no wrong byte, no stale object, no byte too many, exact sums, and
in the end everything drains.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
from cache_support import PAGE, CacheProcess, keep, pages
from support import WATCHDOG_S, drop, kept

from arena import CacheHandle, CacheReader, ObjectCache, Uncached
from arena.errors import CacheMiss

CAPACITY_PAGES = 24
KEYS = [f"key{i}" for i in range(40)]


@dataclass
class Known:
    """What the oracle knows of an object."""

    handle: CacheHandle
    value: int
    pages: int


@dataclass
class Leased:
    """A view that a reader in this process has, or the name under which one in another has it."""

    known: Known
    view: Any


class Run:
    """The cache, its readers, and the oracle."""

    def __init__(self, cache: ObjectCache, readers: list[CacheReader], sizes: list[int], choose: random.Random) -> None:
        self.cache = cache
        self.readers: list[CacheReader | ObjectCache] = [*readers] or [cache]  # the writer reads too
        self.last_rank = len(readers)
        self.sizes = sizes
        self.choose = choose
        self.known: OrderedDict[str, Known] = OrderedDict()  # in order of use
        self.holds: Counter[str] = Counter()
        self.leased: list[Leased] = []
        self.remote: list[Leased] = []
        self.old: list[Known] = []
        self.version = 0
        self.process: CacheProcess | None = None
        self.counted: Counter[str] = Counter()

    # ---- operations -------------------------------------------------------------------------------------------

    def put(self) -> None:
        key, size = self.choose.choice(KEYS), self.choose.choice(self.sizes)
        self.version += 1
        before = list(self.known)
        replaced = self.known.pop(key, None)
        if replaced is not None:
            self.retire(key, replaced)
        handle = self.cache.put(key, pages(size, self.version % 251))
        gone = [each for each in before if each != key and each not in self.cache]
        self.check_victims(before, gone, key, handle)
        for each in gone:
            self.retire(each, self.known.pop(each))
        if isinstance(handle, CacheHandle):
            self.known[key] = Known(handle, self.version % 251, size)
        self.counted["uncached" if isinstance(handle, Uncached) else "stored"] += 1
        self.counted["evicted"] += len(gone)

    def check_victims(self, before: list[str], gone: list[str], key: str, handle: CacheHandle | Uncached) -> None:
        in_use = {each.known.handle for each in self.leased + self.remote}
        free = [each for each in before if each != key and not self.holds[each] and self.known[each].handle not in in_use]
        assert set(gone) <= set(free), "what is held does not go"
        if isinstance(handle, Uncached):
            assert not gone, "nothing goes for an object that does not fit"
        if self.sizes == [1]:
            assert gone == free[: len(gone)], "the least recently used goes"
            assert len(gone) <= 1
            if isinstance(handle, Uncached):
                assert not free

    def retire(self, key: str, known: Known) -> None:
        self.holds.pop(key, None)
        self.old = [*self.old[-50:], known]

    def lookup(self) -> None:
        key = self.choose.choice(KEYS)
        handle = self.cache.get_handle(key)
        if key not in self.known:
            assert handle is None
            return
        self.known.move_to_end(key)
        known = self.known[key]
        assert handle == known.handle
        view = self.choose.choice(self.readers).get(known.handle)
        self.check_bytes(view, known)
        if self.choose.random() < 0.5 and len(self.leased) < 8:
            self.leased.append(Leased(known, view))

    def drop_lease(self) -> None:
        if self.leased:
            leased = self.leased.pop(self.choose.randrange(len(self.leased)))
            self.check_bytes(leased.view, leased.known)

    def try_old(self) -> None:
        """An old handle leads to its own bytes, where they are still held, or to nothing."""
        if not self.old:
            return
        known = self.choose.choice(self.old)
        try:
            self.check_bytes(self.choose.choice(self.readers).get(known.handle), known)
            assert any(each.known is known for each in self.leased), "only what its reader still holds"
        except CacheMiss as miss:
            self.counted["misses"] += 1
            if miss.keys != (known.handle.key,):
                raise

    def hold(self) -> None:
        key = self.choose.choice(KEYS)
        handle = self.cache.hold(key)
        assert (handle is None) == (key not in self.known)
        if handle is not None:
            self.known.move_to_end(key)
            self.holds[key] += 1

    def release(self) -> None:
        key = self.choose.choice([*self.holds] or KEYS)
        assert self.cache.release(key) == (self.holds[key] > 0)
        self.holds[key] -= self.holds[key] > 0

    def touch(self) -> None:
        keys = self.choose.sample(KEYS, 3)
        assert self.cache.touch(keys) == [key for key in keys if key not in self.known]
        for key in keys:
            if key in self.known:
                self.known.move_to_end(key)

    def remove(self) -> None:
        key = self.choose.choice(KEYS)
        assert self.cache.remove(key) == (key in self.known)
        if key in self.known:
            self.retire(key, self.known.pop(key))

    def clear(self) -> None:
        assert self.cache.clear() == len(self.known)
        for key in [*self.known]:
            self.retire(key, self.known.pop(key))

    def lease_elsewhere(self) -> None:
        """In a process of its own, on the last rank."""
        if not self.known or len(self.remote) > 3:
            return
        if self.process is None:
            self.process = CacheProcess(self.cache.export_handle(), self.last_rank)
            self.cache.wait_until_ready(WATCHDOG_S)
        known = self.known[self.choose.choice([*self.known])]
        self.counted["leased elsewhere"] += 1
        name = str(self.counted["leased elsewhere"])
        self.process.run(keep, name, known.handle)
        self.remote.append(Leased(known, name))

    def drop_elsewhere(self) -> None:
        if self.process is not None and self.remote:
            leased = self.remote.pop()
            self.check_bytes(self.process.run(kept, leased.view), leased.known)
            self.process.run(drop, leased.view)

    def kill(self) -> None:
        if self.process is None:
            return
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.process.join()
        self.process.end()
        self.process = None
        assert self.cache.reap() == 1
        self.remote.clear()
        self.counted["killed"] += 1

    # ---- checks -----------------------------------------------------------------------------------------------

    @staticmethod
    def check_bytes(view: Any, known: Known) -> None:
        assert view.numel() == known.pages * PAGE - 512
        assert (view == known.value).all()

    def check_sums(self) -> None:
        now = self.cache.statistics()
        live = {known.handle for known in self.known.values()}
        leased = [each.known for each in self.leased + self.remote]
        draining = {known.handle: known.pages for known in leased if known.handle not in live}
        assert now.objects == len(self.known)
        assert now.bytes_in_use == PAGE * sum(known.pages for known in self.known.values())
        assert now.bytes_draining == PAGE * sum(draining.values())
        assert now.slots_draining == len(draining)
        assert now.bytes_in_use + now.bytes_draining <= now.bytes_capacity
        assert now.objects_held == sum(count > 0 for count in self.holds.values())

    def check_drained(self) -> None:
        while self.leased:
            self.drop_lease()
        self.kill()
        self.clear()
        now = self.cache.statistics()
        assert (now.bytes_in_use, now.bytes_draining, now.slots_draining) == (0, 0, 0)
        assert self.cache.put("all", pages(CAPACITY_PAGES))


OFTEN = {"put": 30, "lookup": 25, "drop_lease": 12, "try_old": 8, "hold": 5, "release": 7, "touch": 5, "remove": 3}
SELDOM = {"clear": 0.3, "lease_elsewhere": 0.6, "drop_elsewhere": 0.5, "kill": 0.08}


def run_against_oracle(n_operations: int, n_readers: int, sizes: list[int], seed: int) -> Counter[str]:
    choose = random.Random(f"{seed} {n_readers} {sizes}")
    weights = {**OFTEN, **SELDOM}
    with ObjectCache(CAPACITY_PAGES * PAGE, n_readers, max_objects=64) as cache:
        readers = [ObjectCache.attach(cache.export_handle(), rank) for rank in range(n_readers - 1)]
        run = Run(cache, readers, sizes, choose)
        try:
            for name in choose.choices([*weights], [*weights.values()], k=n_operations):
                getattr(run, name)()
                run.check_sums()
            run.check_drained()
        finally:
            run.leased.clear()
            if run.process is not None:
                run.process.end()
            for reader in readers:
                reader.shutdown()
    return run.counted


@pytest.mark.parametrize("sizes", [[1], [1, 1, 2, 3, 7]], ids=["one size", "many sizes"])
def test_a_thousand_operations(sizes: list[int], seed: int) -> None:
    counted = run_against_oracle(1_000, 3, sizes, seed)
    assert min(counted["stored"], counted["evicted"], counted["misses"]) > 10, counted


@pytest.mark.deep
@pytest.mark.parametrize("n_readers", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", [[1], [1, 1, 2, 3, 7]], ids=["one size", "many sizes"])
def test_many_operations(n_readers: int, sizes: list[int], seed: int) -> None:
    """100,000 in all."""
    counted = run_against_oracle(12_500, n_readers, sizes, seed)
    assert min(counted["killed"], counted["evicted"], counted["misses"]) > 0, counted
    assert counted["uncached"] > 0 or sizes == [1], counted
