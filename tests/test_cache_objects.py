"""The objects of a cache: their values, leases and transactions; the writer and readers in one process."""

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
from support import Unloadable, in_thread

from arena import ArenaConfig, CacheHandle, ObjectCache
from arena.errors import CacheMiss, Cancelled
from arena.shm.native import lib


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
        handle = put(cache, "key", [pages(1), Unloadable()])
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            reader.get(handle)
        gc.collect()
        cache.clear()
        assert cache.statistics().slots_draining == 0


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
        ({"max_objects": 0}, "max_objects"),
        ({"arena": None}, "arena"),
        ({"arena": ArenaConfig(pin="eager")}, r"pin='eager'.*MessageQueue\.object_cache"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ObjectCache(**{"capacity_bytes": PAGE, **options})
    assert lib.arena_maps_live() == 0


@pytest.mark.parametrize("key", [5, None, [1]])
def test_what_is_no_key_is_refused_everywhere(key: Any) -> None:
    with ObjectCache(PAGE, n_readers=0) as cache:
        for use in (
            lambda: cache.put(key, 1),
            lambda: cache.get_handle(key),
            lambda: cache.contains(key),
            lambda: cache.touch([key]),
            lambda: cache.hold(key),
            lambda: cache.release(key),
            lambda: cache.remove(key),
        ):
            with pytest.raises(TypeError, match="must be bytes or str"):
                use()
        assert cache.statistics().misses_total == 0


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
