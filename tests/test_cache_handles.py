"""Handles: small, portable, authenticated; an old one leads to a miss, a false one to InvalidHandle, none to other bytes."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest
from cache_support import cache_of, pages, put
from hypothesis import given
from hypothesis import strategies as st

from arena import CacheHandle, ObjectCache
from arena.cache_handle import key_digest
from arena.errors import AttachError, CacheMiss, Cancelled, InvalidHandle
from arena.hashing import object_key
from arena.protocol.slots import Grant


def test_small_and_portable() -> None:
    with cache_of() as (cache, [reader]):
        handle = put(cache, "key", [1, 2])
        assert len(handle.to_bytes()) <= 100
        assert len(pickle.dumps(handle)) <= 200
        for again in (
            pickle.loads(pickle.dumps(handle)),
            CacheHandle.from_bytes(handle.to_bytes()),
            CacheHandle.from_bytes(bytearray(handle.to_bytes())),
            CacheHandle.from_bytes(bytes.fromhex(json.loads(json.dumps(handle.to_bytes().hex())))),
        ):
            assert again == handle
            assert reader.get(again) == [1, 2]


def test_a_handle_names_the_key_of_its_object() -> None:
    key = object_key("image")
    with cache_of() as (cache, _):
        handle = cache.put(key, "image")
        assert isinstance(handle, CacheHandle)
        assert handle.key == key == key_digest(key)
    assert len({key_digest("ab"), key_digest(b"ab"), key_digest(b"ab" + b"\0" * 30)}) == 3


@pytest.mark.parametrize("key", [1, None, ("a",), 1.0, bytearray(b"a")])
def test_keys_are_bytes_or_str(key: Any) -> None:
    with cache_of() as (cache, _):
        with pytest.raises(TypeError, match="bytes or str"):
            cache.put(key, 1)


@pytest.mark.parametrize("key", ["", b""])
def test_an_empty_key_is_refused(key: Any) -> None:
    """Else a missing id would make all images one."""
    with cache_of() as (cache, _):
        calls = (cache.contains, cache.get_handle, cache.hold, cache.release, cache.remove)
        for call in (*calls, lambda key: cache.put(key, 1), lambda key: cache.touch(["a", key])):
            with pytest.raises(ValueError, match=f"key={key!r}: is empty"):
                call(key)
        assert len(cache) == 0


def test_one_is_not_several() -> None:
    with cache_of() as (cache, [reader]):
        handle = put(cache, "abc", 1)
        for keys in ("abc", b"abc"):
            with pytest.raises(TypeError, match=f"keys={keys!r}: must be several"):
                cache.touch(keys)  # type: ignore[arg-type]
        for end in (cache, reader):
            with pytest.raises(TypeError, match=r"is one handle: get\(handle\)"):
                end.get_many(handle)  # type: ignore[arg-type]


def test_what_a_handle_shows_is_short_and_no_secret() -> None:
    with cache_of() as (cache, _):
        handle = put(cache, "abc", 1)
        assert handle.mac.hex()[:8] not in repr(handle)
        assert repr(handle.mac)[2:10] not in repr(handle)
        assert handle.key.hex()[:8] in repr(handle)
        assert len(repr(handle)) < 120


def test_after_shutdown_a_cache_says_what_it_is() -> None:
    with cache_of() as (cache, _):
        pass
    with pytest.raises(Cancelled, match="cache was shut down"):
        cache.put("key", 1)


FORGED: dict[str, dict[str, Any]] = {
    "slot": {"slot": 0},
    "slot True": {"slot": True},
    "slot -1": {"slot": -1},
    "slot 2**32": {"slot": 2**32},
    "slot 2**64": {"slot": 2**64},
    "slot out of the table": {"slot": 2**20},
    "generation": {"generation": 4},
    "no key": {"key": None},
    "generation True": {"generation": True},
    "generation 0": {"generation": 0},
    "generation odd": {"generation": 3},
    "generation -1": {"generation": -1},
    "generation 2**64": {"generation": 2**64},
    "generation of another type": {"generation": 2.0},
    "key": {"key": b"k" * 32},
    "short key": {"key": b"k"},
    "key of another type": {"key": "k" * 32},
    "mac": {"mac": b"m" * 32},
    "no mac": {"mac": b""},
    "mac of another type": {"mac": "m" * 32},
    "segment": {"segment_id": b"s" * 16},
    "segment of another type": {"segment_id": "s" * 16},
}


@pytest.mark.parametrize("name", FORGED)
def test_forged(name: str) -> None:
    """Forged on its way, in every field: InvalidHandle on both sides, and nothing is held."""
    with cache_of(n_readers=1) as (cache, [reader]):
        put(cache, "other", pages(1, 9))
        handle = put(cache, "key", pages(1, 7))
        forged = dataclasses.replace(handle, **FORGED[name])
        for side in (reader, cache):
            with pytest.raises(InvalidHandle) as error:
                side.get(forged)
            assert not isinstance(error.value, CacheMiss), "nothing to send again"
            with pytest.raises(InvalidHandle):
                side.get_many([handle, forged])
        cache.clear()
        assert cache.statistics().slots_draining == 0


@pytest.mark.parametrize("what", [None, 1, b"bytes", "text", ("a", 1)])
def test_not_a_handle(what: Any) -> None:
    with cache_of() as (_, [reader]):
        with pytest.raises(InvalidHandle):
            reader.get(what)


@pytest.mark.parametrize("data", [b"", b"\1" * 92, b"\1" * 94, b"\2" * 93, "x" * 93, None])
def test_not_the_bytes_of_a_handle(data: Any) -> None:
    with pytest.raises(InvalidHandle):
        CacheHandle.from_bytes(data)


@given(place=st.integers(0, 92), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(place: int, bit: int) -> None:
    secret, segment_id = b"\5" * 32, b"\6" * 16
    data = bytearray(CacheHandle.sealed(secret, segment_id, Grant(3, 8), b"\7" * 32).to_bytes())
    data[place] ^= 1 << bit
    with pytest.raises(InvalidHandle):
        CacheHandle.from_bytes(bytes(data)).check(secret, segment_id)


def test_foreign() -> None:
    """Of another cache with the same slots, generations and keys."""
    with cache_of() as (one, [reader]), cache_of() as (other, _):
        handle = put(one, "key", "mine")
        foreign = put(other, "key", "theirs")
        assert (handle.slot, handle.generation, handle.key) == (foreign.slot, foreign.generation, foreign.key)
        with pytest.raises(InvalidHandle, match="another cache"):
            reader.get(foreign)
        relabelled = dataclasses.replace(foreign, segment_id=handle.segment_id)
        with pytest.raises(InvalidHandle, match="altered"):
            reader.get(relabelled)


def test_case_65_handles_of_an_older_generation() -> None:
    """After clear() generations go on: no old handle leads to a new object, in the same slot and under the same key."""
    with cache_of() as (cache, [reader]):
        old = put(cache, "key", pages(1, 1))
        assert cache.clear() == 1
        with pytest.raises(CacheMiss):
            reader.get(old)
        new = put(cache, "key", pages(1, 2))
        assert new.slot == old.slot
        assert new.generation > old.generation
        with pytest.raises(CacheMiss) as miss:
            reader.get(old)
        assert miss.value.keys == (old.key,)
        assert reader.get(new)[0] == 2  # type: ignore[index]


def test_case_65_a_failed_clear_leaves_nothing_half_cleared() -> None:
    """A receiver has nothing of its own to clear: whatever becomes of it, the sender's clear stands and it sends again."""
    with cache_of() as (cache, [reader]):
        handle = put(cache, "key", 1)
        cache.clear()
        reader.shutdown()
        assert cache.get_handle("key") is None
        assert cache.get_handle("key") != handle
        assert put(cache, "key", 1) != handle


def test_an_old_handle_is_an_invalid_one_that_can_be_made_good() -> None:
    """Whoever catches InvalidHandle catches it, too; whoever catches CacheMiss first sends the object again."""
    with cache_of() as (cache, [reader]):
        handle = put(cache, "key", 1)
        cache.remove("key")
        for side in (reader, cache):
            with pytest.raises(InvalidHandle) as error:
                side.get(handle)
            assert isinstance(error.value, CacheMiss)
            assert error.value.keys == (handle.key,)
        again = pickle.loads(pickle.dumps(error.value))
        assert isinstance(again, CacheMiss)
        assert again.keys == (handle.key,)


def test_a_miss_names_every_missing_key() -> None:
    with cache_of() as (cache, [reader]):
        handles = [put(cache, f"key{i}", i) for i in range(5)]
        for i in (1, 3, 4):
            cache.remove(f"key{i}")
        with pytest.raises(CacheMiss, match="3 of 5") as miss:
            reader.get_many(handles)
        assert miss.value.keys == tuple(key_digest(f"key{i}") for i in (1, 3, 4))
        assert reader.get_many([handles[2], handles[0], handles[2]]) == [2, 0, 2]
        cache.clear()
        assert cache.statistics().slots_draining == 0


def test_the_handle_of_the_cache_is_checked() -> None:
    with cache_of() as (cache, _):
        address = cache.export_handle()
        with pytest.raises(AttachError, match="taken"):
            ObjectCache.attach(address, 0)
        with pytest.raises(ValueError, match="rank=1"):
            ObjectCache.attach(address, 1)
        with pytest.raises(InvalidHandle, match="altered"):
            ObjectCache.attach(dataclasses.replace(address, local_reader_ranks=(0, 1)), 1)
        with pytest.raises(ValueError, match="export_handle"):
            ObjectCache.attach(None, 0)  # type: ignore[arg-type]
