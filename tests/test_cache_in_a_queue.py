"""A cache in the arena of a queue: one memory for both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cache_support import PAGE, cache_of, is_there, pages, put
from support import queue_of

from arena import ArenaConfig, MessageQueue, ObjectCache
from arena.errors import InvalidHandle


def test_one_memory_for_queue_and_cache() -> None:
    arena = ArenaConfig(capacity_bytes=16 * PAGE, slots=16, divert_bytes=PAGE // 2)
    with queue_of(2, arena=arena) as (writer, readers):
        cache = writer.object_cache(reserve_bytes=4 * PAGE, reserve_slots=2)
        [one, other] = [reader.cache_reader() for reader in readers]
        handle = put(cache, "a", pages(2, 7))
        writer.enqueue(handle)
        got: Any = one.get(readers[0].dequeue(10))  # type: ignore[arg-type]
        assert (got == 7).all()
        assert torch.equal(got, other.get(readers[1].dequeue(10)))  # type: ignore[arg-type]
        for i in range(50):
            put(cache, f"key{i}", pages(1, i))
            writer.enqueue(pages(3, i))  # the reserve has room for it, always
            assert all((reader.dequeue(10) == i).all() for reader in readers)  # type: ignore[attr-defined]
        now = writer.statistics()
        assert now.diverted_total == 50
        assert sum(now.fallback_total.values()) == 0
        assert cache.statistics().bytes_in_use <= 12 * PAGE
        assert cache.statistics().bytes_capacity == 12 * PAGE
        cache.shutdown()
        del got
        assert writer.statistics().bytes_in_use == 0
        with pytest.raises(ValueError, match="already"):
            writer.object_cache()
        with pytest.raises(ValueError, match="queue's segment"):
            cache.export_handle()


def test_a_queue_without_an_arena_has_no_cache() -> None:
    with queue_of(arena=None) as (writer, [reader]):
        with pytest.raises(ValueError, match="no arena"):
            writer.object_cache()
        with pytest.raises(ValueError, match="writer"):
            reader.object_cache()
        with pytest.raises(ValueError, match="reader"):
            writer.cache_reader()


@pytest.mark.parametrize("reserve", [-1, 16 * PAGE, 1.5, True])
def test_a_reserve_leaves_something(reserve: Any) -> None:
    with queue_of(arena=ArenaConfig(capacity_bytes=16 * PAGE)) as (writer, _):
        with pytest.raises(ValueError, match="reserve_bytes"):
            writer.object_cache(reserve_bytes=reserve)


def test_a_loan_is_put_without_a_copy() -> None:
    with queue_of(arena=ArenaConfig(capacity_bytes=64 * PAGE, slots=8)) as (writer, [reader]):
        cache, readers = writer.object_cache(reserve_bytes=0), reader.cache_reader()
        lent = writer.loan((4 * PAGE,), torch.uint8)
        lent.fill_(7)
        handle = put(cache, "loan", {"whole": lent, "part": lent[100:200], "beside": pages(1, 8)})
        assert cache.statistics().bytes_copied < 2 * PAGE
        got: Any = readers.get(handle)
        assert (got["whole"] == 7).all()
        assert (got["part"] == 7).all()
        assert (got["beside"] == 8).all()
        assert got["part"].data_ptr() - got["whole"].data_ptr() == 100
        lent[0] = 9
        assert got["whole"][0] == 9  # the same memory
        cache.remove("loan")
        assert cache.statistics().slots_draining == 2
        del got
        assert cache.statistics().slots_draining == 1  # the caller's own tensor
        del lent
        assert cache.statistics().slots_draining == 0
        assert writer.statistics().slots_free == 8
        assert not is_there(readers, handle)


def test_a_loan_outlives_nothing_when_it_is_dropped_first() -> None:
    with queue_of(arena=ArenaConfig(capacity_bytes=64 * PAGE, slots=8)) as (writer, [reader]):
        cache, readers = writer.object_cache(reserve_bytes=0), reader.cache_reader()
        lent = writer.loan((PAGE,), torch.uint8)
        lent.fill_(7)
        handle = put(cache, "loan", lent)
        del lent
        for i in range(20):  # its slot is not claimed again
            writer.enqueue(pages(16, i))
            reader.dequeue(10)
        got: Any = readers.get(handle)
        assert (got == 7).all()
        del got
        cache.clear()
        assert writer.statistics().slots_free == 8


def test_a_queue_is_no_cache() -> None:
    with queue_of() as (writer, _):
        with pytest.raises(InvalidHandle, match="queue"):
            ObjectCache.attach(writer.export_handle(), 0)
    with cache_of() as (cache, _):
        with pytest.raises(InvalidHandle):
            MessageQueue.create_from_handle(cache.export_handle(), 0)


def test_what_goes_for_room_lies_in_one_chunk() -> None:
    """Where readers pin by chunks of 64 MiB, an extent lies in one, and so must the room that is made for it."""
    mib = 1 << 20
    with MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=128 * mib, slots=64, pin="auto")) as writer:
        cache = writer.object_cache(reserve_bytes=0, reserve_slots=1)
        for key, size in (("small", 4), ("first", 40), ("across", 20), ("next", 20), ("last", 43)):
            assert put(cache, key, torch.zeros(size * mib - PAGE, dtype=torch.uint8))
        cache.touch(["small", "first", "last"])
        cache.remove("across")
        cache.remove("next")  # 40 MiB are free, but nowhere in one chunk
        put(cache, "new", torch.zeros(40 * mib - PAGE, dtype=torch.uint8))
        assert cache.contains("new")
        assert [key for key in ("small", "first", "last") if cache.contains(key)] == ["small", "last"]
        assert cache.statistics().evictions_total == 1
