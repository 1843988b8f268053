"""A cache's readers, in processes of their own: slow, stopped, killed, and what their successors find."""

from __future__ import annotations

import base64
import ctypes
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch
from cache_support import PAGE, CacheProcess, cache_of, cache_readers_of, get, is_there, keep, pages, put
from support import SMALL, WATCHDOG_S, drop, in_thread, kept, python, queue_of, wait_until

from arena import ArenaConfig, ObjectCache, Uncached
from arena.errors import ArenaError, CacheMiss
from arena.shm.native import lib


def test_all_readers_see_one_memory() -> None:
    with ObjectCache(16 * PAGE, 2) as cache, cache_readers_of(cache, 2) as readers:
        handle = put(cache, "key", {"pixels": pages(2, 7)})
        for reader in readers:
            assert (reader.run(get, handle)["pixels"] == 7).all()
        assert cache.statistics().bytes_in_use == 2 * PAGE


def test_case_63_a_slow_reader_keeps_what_it_holds() -> None:
    """A reader is stopped with an object; the writer fills the cache twice over, the other reader goes on."""
    with ObjectCache(8 * PAGE, 2) as cache, cache_readers_of(cache, 2) as [slow, other]:
        handle = put(cache, "held", pages(2, 7))
        unread = put(cache, "unread", pages(1, 6))
        slow.run(keep, "held", handle)
        os.kill(slow.pid, signal.SIGSTOP)
        try:
            for i in range(12):
                fresh = put(cache, f"key{i}", pages(1, i))
                assert (other.run(get, fresh) == i).all()
            assert "held" in cache  # in use: skipped, not waited for
            cache.remove("held")
            put(cache, "large", pages(6, 8))  # all but those two pages
            assert cache.statistics().slots_draining == 1
            assert cache.put("larger", pages(7)) == Uncached("no_extent", cache.put("larger", pages(7)).nbytes)  # type: ignore[union-attr]
        finally:
            os.kill(slow.pid, signal.SIGCONT)
        assert (slow.run(kept, "held") == 7).all()
        with pytest.raises(CacheMiss):
            slow.run(get, unread)
        slow.run(drop, "held")
        assert (slow.run(get, put(cache, "larger", pages(8, 9))) == 9).all()


def test_a_stopped_reader_costs_others_one_object() -> None:
    """Objects of one size: of n places, n - 1 are for the others."""
    with ObjectCache(8 * PAGE, 1) as cache, cache_readers_of(cache, 1) as [reader]:
        reader.run(keep, "held", put(cache, "held", pages(1)))
        os.kill(reader.pid, signal.SIGSTOP)
        try:
            for i in range(20):
                put(cache, f"key{i}", pages(1))
            assert [i for i in range(20) if f"key{i}" in cache] == list(range(13, 20))
        finally:
            os.kill(reader.pid, signal.SIGCONT)


def test_a_dead_readers_holds_vanish() -> None:
    with ObjectCache(4 * PAGE, 1) as cache, cache_readers_of(cache, 1) as [reader]:
        for name in "ab":
            reader.run(keep, name, put(cache, name, pages(2)))
        cache.remove("a")
        assert not cache.put("c", pages(1))
        os.kill(reader.pid, signal.SIGKILL)
        reader.process.join()
        assert cache.put("c", pages(4))  # the put itself looks for the dead
        assert cache.statistics().slots_draining == 0
        assert not cache.statistics().readers[0].alive


def test_a_new_process_takes_a_dead_ones_rank() -> None:
    with ObjectCache(4 * PAGE, 1) as cache:
        handle = put(cache, "key", pages(1, 7))
        for _ in range(3):
            with cache_readers_of(cache, 1) as [reader]:
                reader.run(keep, "key", handle)
        cache.reap()
        cache.remove("key")
        assert cache.statistics().slots_draining == 0
        with cache_readers_of(cache, 1) as [reader]:
            with pytest.raises(CacheMiss):
                reader.run(get, handle)


def test_a_successor_waits_until_the_writer_has_looked() -> None:
    with ObjectCache(4 * PAGE, 1) as cache:
        with cache_readers_of(cache, 1) as [reader]:
            reader.run(keep, "key", put(cache, "key", 1))
        with pytest.raises(TimeoutError, match="rank 0"):
            ObjectCache.attach(cache.export_handle(), 0, timeout=0.05)
        attached = in_thread(lambda: ObjectCache.attach(cache.export_handle(), 0))
        wait_until(lambda: cache.reap() == 1, "the death is seen")
        with attached() as successor:
            assert is_there(successor, put(cache, "other", 1))


def test_readers_outlive_the_writer() -> None:
    """A writer that is killed leaves what is there as it is."""
    program = f"""
import sys, pickle, base64, torch
from arena import ObjectCache
cache = ObjectCache(16 * {PAGE}, 1)
handle = cache.put("key", torch.full((5000,), 7))
print(base64.b64encode(pickle.dumps((cache.export_handle(), handle))).decode(), flush=True)
sys.stdin.readline()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as writer:
        try:
            assert writer.stdout is not None
            address, handle = pickle.loads(base64.b64decode(writer.stdout.readline()))
            with ObjectCache.attach(address, 0) as reader:
                held: Any = reader.get(handle)
                writer.kill()
                writer.wait()
                assert (held == 7).all()
                assert torch.equal(reader.get(handle), held)  # type: ignore[arg-type]
                del held
        finally:
            writer.kill()


def test_two_readers_of_one_process_count_together() -> None:
    """A row has one hold word for each slot: what one reader lets go, the other one still has."""
    with queue_of(1, arena=SMALL) as (writer, (reader,)):
        cache = writer.object_cache(reserve_bytes=0, reserve_slots=1)
        one, other = reader.cache_reader(), reader.cache_reader()
        handle = put(cache, "held", pages(2, 7))
        held = one.get(handle)
        assert isinstance(other.get(handle), torch.Tensor)  # and is let go at once
        cache.remove("held")
        for number in range(cache.statistics().slots_total):
            cache.put(str(number), pages(2, 9))
        assert (held == 7).all()
        assert cache.statistics().slots_draining == 1


@pytest.mark.parametrize("access", ["readonly", "private"])
def test_other_accesses(access: Any) -> None:
    with cache_of(n_readers=2, arena=ArenaConfig(reader_access=access)) as (cache, [one, other]):
        handle = put(cache, "key", pages(1, 7))
        mine: Any = one.get(handle)
        theirs: Any = other.get(handle)
        if access == "private":
            mine.fill_(9)
            again: Any = one.get(handle)
            assert again[0] == 9  # one reader's views are one memory
            assert theirs[0] == 7
            del mine, again
            fresh: Any = one.get(handle)
            assert fresh[0] == 7
        else:
            assert (mine == 7).all()
            assert not one.get(put(cache, "array", mine.numpy().copy())).flags.writeable  # type: ignore[attr-defined]


def test_private_copies_that_are_locked_are_not_taken_for_an_object() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with cache_of(2, arena=ArenaConfig(reader_access="private")) as (cache, [reader]):
        first: Any = reader.get(put(cache, "first", pages(2, 1)))
        place = ctypes.c_void_p(first.data_ptr()), ctypes.c_size_t(first.nbytes)
        first.fill_(9)
        assert libc.mlock(*place) == 0, os.strerror(ctypes.get_errno())
        del first
        handle = put(cache, "second", pages(2, 2))  # in the same place
        with pytest.raises(ArenaError, match=r"cannot be read afresh.*mlock"):
            reader.get(handle)
        assert libc.munlock(*place) == 0
        assert (reader.get(handle) == 2).all()  # type: ignore[attr-defined]
        assert (reader.get(put(cache, "third", pages(2, 3))) == 3).all()  # type: ignore[attr-defined]  # nothing was held


def test_what_a_stopped_get_announces_blocks_nothing() -> None:
    """A reader is stopped in the middle of a stale get, with its word stored: the slot is used again all the same."""
    with ObjectCache(2 * PAGE, 1) as cache, cache_readers_of(cache, 1) as [reader]:
        stale = put(cache, "old", pages(2, 1))
        cache.clear()
        current = put(cache, "new", pages(2, 2))
        assert current.slot == stale.slot
        reader.start(get_stopping, stale, 1)  # before its second step: announced, not re-checked
        wait_until(lambda: _is_stopped(reader), "the reader has stopped")
        cache.clear()
        assert put(cache, "newer", pages(2, 3)).slot == stale.slot
        os.kill(reader.pid, signal.SIGCONT)
        with pytest.raises(CacheMiss):
            reader.result()


def test_a_get_that_is_stopped_before_its_recheck_never_sees_the_next_object() -> None:
    with ObjectCache(2 * PAGE, 1) as cache, cache_readers_of(cache, 1) as [reader]:
        for step in range(4):
            handle = put(cache, f"key{step}", pages(2, 1))
            reader.start(get_stopping, handle, step)
            wait_until(lambda: _is_stopped(reader), "the reader has stopped")
            cache.remove(f"key{step}")
            cache.put("next", pages(2, 9))
            os.kill(reader.pid, signal.SIGCONT)
            with suppress(CacheMiss):
                assert (reader.result() == 1).all()
            cache.clear()
            assert cache.statistics().slots_draining == 0


def get_stopping(side: Any, handle: Any, step: int) -> Any:
    """Stops itself before a step of the get."""
    lib.arena_steps_arm(step, signal.SIGSTOP)
    try:
        return side.reader.get(handle).clone()
    finally:
        lib.arena_steps_arm(-1, 0)


def get_dying(side: Any, handle: Any, step: int) -> None:
    """Kills itself before a step of a get and of the release that follows."""
    lib.arena_steps_arm(step, signal.SIGKILL)
    try:
        side.reader.get(handle)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)  # with its lease, or without one


def _is_stopped(reader: CacheProcess) -> bool:
    with open(f"/proc/{reader.pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"


@pytest.mark.deep
@pytest.mark.parametrize("evicted", [False, True])
def test_killed_at_every_step_of_a_get_and_a_release(evicted: bool) -> None:
    with ObjectCache(4 * PAGE, 1) as cache:
        for step in range(5):
            handle = put(cache, "key", pages(2, 1))
            if evicted:
                cache.remove("key")
                cache.put("next", pages(2, 2))
            with cache_readers_of(cache, 1) as [reader]:
                reader.start(get_dying, handle, step)
                reader.process.join(WATCHDOG_S)
            wait_until(lambda: cache.reap() >= 0 and not cache.statistics().readers[0].pid, "the death is seen")
            cache.clear()
            assert cache.statistics().slots_draining == 0
            assert cache.put("all", pages(4))


@pytest.mark.parametrize(("how", "error"), [("os.kill(writer, 9)", "WriterDied"), ("queue.shutdown()", "Cancelled")])
def test_a_wait_for_a_dead_rank_ends_with_whoever_could_free_it(how: str, error: str) -> None:
    """Without a timeout: its writer has died, or another thread shuts the reader's end down."""
    program = f"""
import os, pickle, signal, threading, time
from arena import ArenaConfig, MessageQueue
from arena.errors import Cancelled, WriterDied
ours, theirs = os.pipe()
writer = os.fork()
if not writer:
    queue = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=4))
    os.write(theirs, pickle.dumps(queue.export_handle()))
    queue.wait_until_ready(60)
    os.write(theirs, b"!")
    signal.pause()
handle = pickle.loads(os.read(ours, 1 << 16))
dead = os.fork()
if not dead:
    MessageQueue.create_from_handle(handle, 0).wait_until_ready(60)
    signal.pause()
os.read(ours, 1)  # the writer, too, has seen it join; had it died before, the writer would wait for another
os.kill(dead, 9)
os.waitpid(dead, 0)
queue = MessageQueue.create_from_handle(handle, 0)
def end():
    time.sleep(0.3)  # it waits by then; if not, it finds the end sooner
    {how}
thread = threading.Thread(target=end)
thread.start()
try:
    queue.cache_reader(timeout=None)
except {error}:
    print("as it should be")
thread.join()
if {error} is Cancelled:
    os.kill(writer, 9)
os.waitpid(writer, 0)
queue.shutdown()
"""
    done = python(program)
    assert (done.returncode, done.stdout) == (0, "as it should be\n"), done.stderr
