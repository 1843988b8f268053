"""What a cache keeps, what it lets go, and what it says when it does not: the writer and readers in one process."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from cache_support import PAGE, cache_of, is_there, pages, put
from support import in_thread, queue_of

from arena import ArenaConfig, CacheHandle, MessageQueue, ObjectCache, Uncached
from arena.errors import CacheMiss, Cancelled, InvalidHandle


@dataclass
class Features:
    pixels: torch.Tensor
    grids: list[Any] = field(default_factory=list)


# ---- values ---------------------------------------------------------------------------------------------------------


def test_buffers_stay_out_of_the_pickle_and_come_back_as_views() -> None:
    base = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    fp8 = torch.ones(4).to(torch.float8_e5m2)
    value = {
        "features": Features(torch.ones(100, dtype=torch.bfloat16), [np.arange(5), {"fp8": fp8}]),
        "gaps": base[:, ::2],
        "channels last": torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "empty": [torch.zeros(0), np.zeros(0), b"", ()],
        "plain": [1, "two", b"three" * 50_000],
        "twice": [base, base],
    }
    with cache_of(pages=300) as (cache, [reader]):
        got: Any = reader.get(put(cache, "value", value))
        assert torch.equal(got["features"].pixels, value["features"].pixels)  # type: ignore[attr-defined]
        assert got["features"].grids[0].tolist() == [0, 1, 2, 3, 4]
        assert got["features"].grids[1]["fp8"].dtype == torch.float8_e5m2
        assert torch.equal(got["gaps"], base[:, ::2])
        assert got["channels last"].stride() == value["channels last"].stride()  # type: ignore[attr-defined]
        assert isinstance(got["parameter"], torch.nn.Parameter)
        assert [len(each) for each in got["empty"]] == [0, 0, 0, 0]
        assert got["plain"] == value["plain"]
        assert got["twice"][0] is got["twice"][1]

        again: Any = reader.get(cache.get_handle("value"))  # type: ignore[arg-type]
        assert again["gaps"].data_ptr() == got["gaps"].data_ptr()
        in_writer: Any = cache.get(cache.get_handle("value"))  # type: ignore[arg-type]
        in_writer["gaps"][0, 0] = 77
        assert got["gaps"][0, 0] == 77  # one memory for all


def test_a_view_of_a_large_tensor_takes_only_itself() -> None:
    with cache_of(pages=4) as (cache, [reader]):
        large = torch.arange(1 << 20, dtype=torch.int32)
        handle = put(cache, "view", large[5:9])
        assert cache.statistics().bytes_in_use == PAGE
        assert reader.get(handle).tolist() == [5, 6, 7, 8]  # type: ignore[attr-defined]


def test_an_object_is_as_it_was_when_it_was_put() -> None:
    with cache_of() as (cache, [reader]):
        value = pages(1, 1)
        handle = put(cache, "key", value)
        value.fill_(2)
        assert reader.get(handle)[0] == 1  # type: ignore[index]


def test_what_cannot_be_pickled_is_the_callers_error_and_holds_nothing() -> None:
    with cache_of() as (cache, _):
        before = put(cache, "key", 1)
        with pytest.raises(TypeError, match=r"pickle|local object"):
            cache.put("key", [pages(1), threading.Lock()])
        assert cache.get_handle("key") == before
        assert cache.statistics().bytes_in_use == PAGE


def test_what_cannot_be_unpickled_is_released() -> None:
    with cache_of() as (cache, [reader]):
        handle = put(cache, "key", [pages(1), Unpicklable()])
        with pytest.raises(RuntimeError, match="not to be unpickled"):
            reader.get(handle)
        gc.collect()
        cache.clear()
        assert cache.statistics().slots_draining == 0


class Unpicklable:
    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise RuntimeError("not to be unpickled")


# ---- leases ---------------------------------------------------------------------------------------------------------


def test_an_evicted_object_lives_until_its_last_view_is_gone() -> None:
    with cache_of(pages=4) as (cache, [reader]):
        handle = put(cache, "key", [pages(2, 7), np.full(10, 8)])
        tensor, array = reader.get(handle)  # type: ignore[misc]
        row = tensor[10:20].view(2, 5).numpy()
        assert cache.remove("key")
        del tensor
        for survivor in ("row", "array"):
            assert cache.statistics().bytes_draining == 2 * PAGE, survivor
            assert not cache.put("other", pages(3))
            if survivor == "row":
                assert (row == 7).all()
                del row
            else:
                assert (array == 8).all()
                del array
        assert cache.statistics().bytes_draining == 0
        assert not is_there(reader, handle)


def test_a_get_of_what_this_process_holds_is_a_hit_even_after_the_eviction() -> None:
    with cache_of() as (cache, [reader]):
        handle = put(cache, "key", pages(1, 7))
        held: Any = reader.get(handle)
        put(cache, "key", pages(1, 8))
        again: Any = reader.get(handle)
        assert again.data_ptr() == held.data_ptr()
        assert again[0] == 7
        del held
        assert is_there(reader, handle)
        del again
        assert not is_there(reader, handle)


def test_leases_outlive_the_reader_and_the_cache() -> None:
    with cache_of() as (cache, [reader]):
        value: Any = reader.get(put(cache, "key", pages(1, 7)))
        reader.shutdown()
        with pytest.raises(Cancelled):
            reader.get(cache.get_handle("key"))  # type: ignore[arg-type]
    with pytest.raises(Cancelled):
        cache.put("key", 1)
    assert (value == 7).all()


def test_a_reader_that_left_keeps_what_it_holds() -> None:
    with cache_of(pages=2) as (cache, [reader]):
        value: Any = reader.get(put(cache, "key", pages(1, 7)))
        cache.wait_until_ready(10)
        reader.shutdown()
        cache.reap()
        put(cache, "key", pages(1, 8))
        for i in range(5):
            put(cache, f"other{i}", pages(1, 9)) if i == 0 else cache.put(f"other{i}", pages(1, 9))
        assert (value == 7).all()
        assert cache.statistics().slots_draining == 1
        del value
        assert cache.statistics().slots_draining == 0


# ---- eviction -------------------------------------------------------------------------------------------------------


def test_least_recently_used_goes_first() -> None:
    with cache_of(pages=4) as (cache, [_reader]):
        for key in "abcd":
            put(cache, key, pages(1))
        cache.get_handle("a")
        cache.touch(["b"])
        put(cache, "e", pages(1))
        put(cache, "f", pages(1))
        assert [key for key in "abcdef" if key in cache] == ["a", "b", "e", "f"]
        assert cache.contains("a")
        assert not cache.contains("c")
        put(cache, "g", pages(1))  # contains was no use of a
        assert "a" not in cache
        assert len(cache) == 4


def test_reading_is_no_use_but_protects() -> None:
    with cache_of(pages=2) as (cache, [reader]):
        value = reader.get(put(cache, "a", pages(1)))
        put(cache, "b", pages(1))
        put(cache, "c", pages(1))
        assert "a" in cache
        assert "b" not in cache
        del value
        put(cache, "d", pages(1))
        assert "a" not in cache


def test_touch_tells_what_is_missing() -> None:
    with cache_of() as (cache, _):
        put(cache, "a", 1)
        assert cache.touch(["a", "b", "c"]) == ["b", "c"]


def test_holds_are_nested_and_keep_from_eviction() -> None:
    with cache_of(pages=2) as (cache, _):
        handle = put(cache, "a", pages(1))
        assert cache.hold("a") == handle == cache.hold("a")
        assert cache.statistics().objects_held == 1
        put(cache, "b", pages(1))
        assert cache.hold("b") is not None
        assert cache.put("c", pages(1)) == Uncached("no_extent", _nbytes(pages(1)))
        assert cache.release("a")
        assert not cache.put("c", pages(1))
        assert cache.release("a", handle)
        assert cache.put("c", pages(1))
        assert "a" not in cache
        assert not cache.release("a")
        assert cache.hold("a") is None
        assert cache.release("b")
        assert not cache.release("b")


def test_a_hold_belongs_to_the_object_not_to_its_key() -> None:
    with cache_of(pages=2) as (cache, _):
        put(cache, "a", pages(1))
        old = cache.hold("a")
        cache.clear()
        put(cache, "a", pages(1))
        new = cache.hold("a")
        assert old is not None
        assert old != new
        assert not cache.release("a", old)
        assert cache.statistics().objects_held == 1
        assert cache.release("a", new)


def test_remove_and_clear_take_held_objects_too() -> None:
    with cache_of() as (cache, [reader]):
        handles = [put(cache, key, 1) for key in "abc"]
        cache.hold("a")
        cache.hold("b")
        assert cache.remove("a")
        assert not cache.remove("a")
        assert cache.clear() == 2
        assert not any(is_there(reader, handle) for handle in handles)
        assert cache.statistics().bytes_in_use == 0


def test_put_replaces_unless_told_not_to() -> None:
    with cache_of() as (cache, [reader]):
        first = put(cache, "a", 1)
        assert cache.put("a", 2, replace=False) == first
        second = put(cache, "a", 2)
        assert reader.get(second) == 2
        assert not is_there(reader, first)
        assert len(cache) == 1


def _nbytes(value: object) -> int:
    """What an object takes, as the cache says it when it is too large."""
    with ObjectCache(PAGE, 0, max_object_bytes=1) as tiny:
        answer = tiny.put("any", value)
        assert isinstance(answer, Uncached)
        return answer.nbytes


def test_reasons_for_not_caching() -> None:
    with cache_of(pages=4, max_objects=2, max_object_bytes=3 * PAGE) as (cache, [reader]):
        assert cache.put("a", pages(4)) == Uncached("oversize", _nbytes(pages(4)))
        value = reader.get(put(cache, "a", pages(3)))
        assert cache.put("b", pages(2)) == Uncached("no_extent", _nbytes(pages(2)))
        other = reader.get(put(cache, "b", pages(1)))
        assert cache.put("c", 1) == Uncached("no_slot", _nbytes(1))
        assert not Uncached("any", 1)
        assert dict(cache.statistics().uncached_total) == {"oversize": 1, "no_extent": 1, "no_slot": 1}
        assert "a" in cache
        assert "b" in cache
        del value, other


def test_an_object_that_does_not_fit_evicts_nothing() -> None:
    with cache_of(pages=8) as (cache, [reader]):
        handles = [put(cache, key, pages(1)) for key in "abcdefgh"]
        held = [reader.get(handles[3])]
        assert not cache.put("large", pages(5))
        assert len(cache) == 8
        assert cache.put("large", pages(4))
        assert [key for key in "abcdefgh" if key in cache] == ["a", "b", "c", "d"]
        del held


def test_neighbours_go_together_where_a_range_is_needed() -> None:
    """In order of age alone, all of a, c, e, g, b and d would go before two neighbours are free."""
    with cache_of(pages=8) as (cache, _):
        for key in "abcdefgh":
            put(cache, key, pages(1))
        cache.touch("bdfh")
        assert cache.put("large", pages(2))
        assert sum(key in cache for key in "abcdefgh") == 6


def test_replacing_a_held_object_and_failing_leaves_nothing_stale() -> None:
    with cache_of(pages=2) as (cache, [reader]):
        value = reader.get(put(cache, "a", pages(2, 1)))
        assert not cache.put("a", pages(2, 2))
        assert cache.get_handle("a") is None
        del value


def test_statistics_add_up() -> None:
    with cache_of(pages=8) as (cache, [reader]):
        value = reader.get(put(cache, "a", pages(2)))
        put(cache, "b", pages(1))
        cache.remove("a")
        now = cache.statistics()
        assert (now.objects, now.bytes_in_use, now.bytes_draining, now.slots_draining) == (1, PAGE, 2 * PAGE, 1)
        assert (now.bytes_capacity, now.puts_total, now.evictions_total) == (8 * PAGE, 2, 0)
        cache.get_handle("b")
        cache.get_handle("z")
        assert (cache.statistics().hits_total, cache.statistics().misses_total) == (1, 1)
        del value


# ---- transactions ---------------------------------------------------------------------------------------------------


class RejectedError(Exception):
    pass


def a_rejected_request(cache: ObjectCache, *keys: str) -> list[CacheHandle]:
    """A request whose objects are put, one of them in a part of its own, and which is then rejected."""
    handles = []
    with suppress(RejectedError), cache.transaction():
        handles.append(put(cache, keys[0], 1))
        with cache.transaction():
            handles += [put(cache, key, 2) for key in keys[1:]]
        raise RejectedError
    return handles


def test_case_59_a_rejected_request_leaves_nothing() -> None:
    with cache_of() as (cache, [reader]):
        before = put(cache, "before", 0)
        handles = a_rejected_request(cache, "a", "b")
        assert not any(is_there(reader, handle) for handle in handles)
        assert "a" not in cache
        assert "b" not in cache
        assert reader.get(before) == 0
        with cache.transaction():
            handle = put(cache, "a", 1)
        assert reader.get(handle) == 1


def test_an_inner_rejection_leaves_the_outer_request() -> None:
    with cache_of() as (cache, _):
        with cache.transaction():
            put(cache, "outer", 1)
            a_rejected_request(cache, "inner")
        assert "outer" in cache
        assert "inner" not in cache


def test_transactions_of_threads_are_their_own() -> None:
    with cache_of() as (cache, _):
        with cache.transaction():
            in_thread(lambda: a_rejected_request(cache, "rejected"))()
            put(cache, "mine", 1)
        assert "mine" in cache
        assert "rejected" not in cache


# ---- in a queue's arena ---------------------------------------------------------------------------------------------


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


# ---- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"capacity_bytes": 0}, "capacity_bytes"),
        ({"capacity_bytes": 1.5}, "capacity_bytes"),
        ({"n_readers": -1}, "n_readers"),
        ({"n_readers": 64}, "n_readers"),
        ({"n_readers": True}, "n_readers"),
        ({"max_object_bytes": 0}, "max_object_bytes"),
        ({"policy": "fifo"}, "policy"),
        ({"max_objects": 0}, "slots"),
        ({"arena": None}, "arena"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ObjectCache(**{"capacity_bytes": PAGE, **options})


def test_a_cache_for_the_writer_alone() -> None:
    with ObjectCache(4 * PAGE, n_readers=0) as cache:
        handle = put(cache, "a", pages(1, 3))
        assert cache.get(handle)[0] == 3  # type: ignore[index]
        cache.remove("a")
        with pytest.raises(CacheMiss):
            cache.get(handle)


def test_nothing_is_left_of_a_cache_that_nobody_shuts_down() -> None:
    cache = ObjectCache(4 * PAGE, 1)
    reader = ObjectCache.attach(cache.export_handle(), 0)
    put(cache, "a", 1)
    del cache, reader
    gc.collect()


def test_a_queue_is_no_cache() -> None:
    with queue_of() as (writer, _):
        with pytest.raises(InvalidHandle, match="queue"):
            ObjectCache.attach(writer.export_handle(), 0)
    with cache_of() as (cache, _):
        with pytest.raises(InvalidHandle):
            MessageQueue.create_from_handle(cache.export_handle(), 0)
