"""Many threads in the processes of a cache, and forks of them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from cache_support import PAGE, cache_of, pages, put
from support import SMALL, WATCHDOG_S, in_thread, python, queue_of

from arena import ObjectCache
from arena.errors import CacheMiss
from arena.protocol.objects import ObjectReader


@pytest.mark.parametrize("n_operations", [2_000, pytest.param(20_000, marks=pytest.mark.deep)])
def test_case_60_threads_in_the_writer(n_operations: int) -> None:
    """Four threads put, get, touch, hold and clear: no hang, no error, and the sums are those of the objects."""
    sizes = {f"key{i}": 1 + i % 3 for i in range(40)}
    with cache_of(pages=32, n_readers=1, max_objects=64) as (cache, [reader]):

        def work(seed: int) -> None:
            choose = random.Random(seed)
            for _ in range(n_operations):
                key = choose.choice([*sizes])
                step = choose.random()
                if step < 0.4:
                    cache.put(key, pages(sizes[key], sizes[key]), replace=choose.random() < 0.5)
                elif step < 0.6:
                    check(cache.get_handle(key), sizes[key])
                elif step < 0.8:
                    cache.touch(choose.sample([*sizes], 3))
                elif step < 0.95:
                    held = cache.hold(key)
                    check(held, sizes[key])
                    if held is not None:
                        cache.release(key, held)
                elif step < 0.99:
                    cache.remove(key)
                else:
                    cache.clear()

        def check(handle: Any, value: int) -> None:
            if handle is None:
                return
            with suppress(CacheMiss):
                assert (reader.get(handle) == value).all()  # type: ignore[attr-defined]

        joins = [in_thread(lambda seed=seed: work(seed)) for seed in range(4)]
        for join in joins:
            join()
        now = cache.statistics()
        assert now.bytes_in_use == sum(sizes[key] * PAGE for key in sizes if key in cache)
        assert now.objects == sum(key in cache for key in sizes) == len(cache)
        assert now.objects_held == 0
        assert now.bytes_in_use <= now.bytes_capacity
        cache.clear()
        assert cache.statistics().bytes_draining == cache.statistics().bytes_in_use == 0
        assert cache.put("all", pages(32))


def test_threads_that_meet_one_image_store_it_once() -> None:
    barrier = threading.Barrier(4)
    with cache_of(pages=64) as (cache, _):

        def meet() -> object:
            barrier.wait(WATCHDOG_S)
            return cache.put("key", pages(8, 7), replace=False)

        handles = {join() for join in [in_thread(meet) for _ in range(4)]}
        assert len(handles) == 1
        assert cache.statistics().bytes_in_use == 8 * PAGE
        assert cache.statistics().puts_total == 1


def test_a_put_does_not_wait_for_an_enqueue_that_waits() -> None:
    with queue_of(arena=SMALL, max_chunk_bytes=4096, max_chunks=1) as (writer, [reader]):
        cache = writer.object_cache()
        blocked = in_thread(lambda: [writer.enqueue(bytes(3000), WATCHDOG_S) for _ in range(4)])
        time.sleep(0.2)
        handle = put(cache, "key", 7)
        assert reader.cache_reader().get(handle) == 7
        for _ in range(4):
            reader.dequeue(WATCHDOG_S)
        blocked()


def test_shutdown_waits_for_what_is_under_way() -> None:
    """A put or a get in another thread ends as if nothing had happened; the next one is refused."""
    started, go_on = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> Any:
            started.set()
            go_on.wait(WATCHDOG_S)
            return int, ()

    with cache_of() as (cache, _):
        putting = in_thread(lambda: cache.put("key", [pages(2), Slow()]))
        started.wait(WATCHDOG_S)
        cache.shutdown()
        go_on.set()
        assert putting()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_is_forked_while_a_thread_makes_a_reader_attaches_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def make(self: ObjectReader, *arguments: Any, **options: Any) -> None:
        inside.set()
        assert go_on.wait(WATCHDOG_S)
        made(self, *arguments, **options)

    made = ObjectReader.__init__
    with ObjectCache(4 * PAGE, 2) as cache:
        handle = cache.export_handle()
        monkeypatch.setattr(ObjectReader, "__init__", make)
        first = in_thread(lambda: ObjectCache.attach(handle, 0))
        assert inside.wait(WATCHDOG_S)
        monkeypatch.undo()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # it waits for nobody's lock
            try:
                ObjectCache.attach(handle, 1).shutdown()
                os._exit(0)
            except BaseException:
                os._exit(99)
        status = os.waitpid(child, 0)[1]
        go_on.set()
        first().shutdown()
        assert os.waitstatus_to_exitcode(status) == 0


def test_forked_children_are_inert() -> None:
    """A child that inherited reader and object uses neither, and its exit releases nothing of the parent's."""
    program = f"""
import os, torch
from arena import ObjectCache
from arena.errors import ForkedError
cache = ObjectCache(16 * {PAGE}, 1)
reader = ObjectCache.attach(cache.export_handle(), 0)
handle = cache.put("key", torch.full((5000,), 7))
value = reader.get(handle)
pid = os.fork()
if pid == 0:
    for use in (lambda: reader.get(handle), lambda: cache.put("a", 1), lambda: cache.clear(), lambda: cache.statistics()):
        try:
            use()
        except ForkedError:
            continue
        os._exit(1)
    del value, reader, cache
    raise SystemExit(0)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
cache.remove("key")
assert cache.statistics().slots_draining == 1
assert (value == 7).all()
del value
assert cache.statistics().slots_draining == 0
"""
    done = python(program)
    assert done.returncode == 0, done.stderr
