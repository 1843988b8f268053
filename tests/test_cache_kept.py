"""What a cache keeps and what it lets go, and what it says when it does not take an object."""

from __future__ import annotations

import pytest
from cache_support import PAGE, cache_of, is_there, pages, put

from arena import ObjectCache, Uncached


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


def test_a_requests_hold_ends_with_the_request() -> None:
    with cache_of(pages=2) as (cache, _):
        handle = put(cache, "a", pages(2))
        request, other = {1}, {2}
        assert cache.hold("a", request) == handle == cache.hold("a", request) == cache.hold("a", other)
        assert not cache.release("a")  # no hold of this kind
        assert not cache.put("b", pages(2))
        del request
        assert cache.statistics().objects_held == 1
        del other
        assert cache.statistics().objects_held == 0
        assert cache.put("b", pages(2))
        with pytest.raises(TypeError, match="weak"):
            cache.hold("b", 5)
        assert cache.statistics().objects_held == 0


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
        cache.touch([*"bdfh"])
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
