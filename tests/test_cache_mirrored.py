"""The sender and the receivers of engines, over one store: nothing mirrored, so nothing that can drift."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cache_support import PAGE, cache_of, pages
from cut_support import interrupted_at

from arena.cache_handle import key_digest
from arena.errors import CacheMiss, InvalidHandle
from arena.mirrored import MirroredCache, MirroredReceiver, MirroredSender, Parcel


def deliver(sender: MirroredSender, receiver: MirroredReceiver, items: list[tuple[str, Any]]) -> list[Any]:
    """What an engine does: pack, send, unpack; and once again what a receiver missed."""
    try:
        return receiver.unpack(sender.pack(items))
    except CacheMiss as miss:
        return receiver.unpack(sender.resend(miss.keys, items))


def test_the_second_time_only_a_handle_travels() -> None:
    with cache_of(n_readers=2) as (cache, readers):
        sender, receivers = MirroredCache.sender(cache), [MirroredCache.receiver(reader) for reader in readers]
        made = []

        def make() -> Any:
            made.append(1)
            return pages(2, 7)

        for _ in range(3):
            parcels = sender.pack([("image", make)])
            assert [parcel.payload for parcel in parcels] == [None]
            for receiver in receivers:
                assert (receiver.unpack(parcels)[0] == 7).all()  # type: ignore[attr-defined]
        assert len(made) == 1


def test_what_is_not_cached_travels() -> None:
    with cache_of(pages=2) as (cache, [reader]):
        sender, receiver = MirroredCache.sender(cache), MirroredCache.receiver(reader)
        parcels = sender.pack([("large", pages(3, 7)), ("small", 1)])
        assert parcels[0].handle is None
        assert (receiver.unpack(parcels)[0] == 7).all()  # type: ignore[attr-defined]
        assert parcels[1].handle is not None


def test_case_57_a_drift_is_a_miss_that_is_made_good() -> None:
    """Random requests with duplicates, of a cache too small for them, and objects that vanish: always the right ones."""
    choose = random.Random(57)
    sizes = {f"key{i}": 1 + i % 4 for i in range(20)}
    with cache_of(pages=12, n_readers=2) as (cache, readers):
        sender, receivers = MirroredCache.sender(cache), [MirroredCache.receiver(reader) for reader in readers]
        missed: list[tuple[tuple[bytes, ...], set[bytes]]] = []
        for _ in range(300):
            keys = choose.choices([*sizes], k=choose.randrange(1, 6))
            items = [(key, pages(sizes[key], int(key[3:]))) for key in keys]
            for receiver in receivers:
                parcels = sender.pack(items)
                if choose.random() < 0.2:  # it vanishes between the two
                    cache.remove(choose.choice(keys))
                try:
                    got = receiver.unpack(parcels)
                except CacheMiss as miss:
                    missed += [(miss.keys, {key_digest(key) for key in keys})]
                    got = receiver.unpack(sender.resend(miss.keys, items))
                assert all((one == int(key[3:])).all() for one, key in zip(got, keys, strict=True))  # type: ignore[attr-defined]
            now = cache.statistics()
            assert now.bytes_in_use == sum(sizes[key] * PAGE for key in sizes if key in cache) <= 12 * PAGE
        assert missed
        assert all(missing and set(missing) <= asked for missing, asked in missed)


def test_a_miss_lists_all_that_is_missing() -> None:
    with cache_of() as (cache, [reader]):
        sender, receiver = MirroredCache.sender(cache), MirroredCache.receiver(reader)
        items = [(f"key{i}", i) for i in range(5)]
        parcels = sender.pack(items)
        for i in (1, 2, 4):
            cache.remove(f"key{i}")
        with pytest.raises(CacheMiss, match="3 of 5") as miss:
            receiver.unpack(parcels)
        assert miss.value.keys == tuple(key_digest(f"key{i}") for i in (1, 2, 4))
        again = sender.resend(miss.value.keys, items)
        assert [parcel.handle is None for parcel in again] == [False, True, True, False, True]
        assert receiver.unpack(again) == [0, 1, 2, 3, 4]


def test_case_59_a_request_that_is_rejected_after_its_items_were_packed() -> None:
    """Whether packing fails or what follows it: the next request with the same image is complete."""
    with cache_of() as (cache, [reader]):
        sender, receiver = MirroredCache.sender(cache), MirroredCache.receiver(reader)

        def fail() -> None:
            raise RuntimeError("rejected")

        with pytest.raises(RuntimeError, match="rejected"):
            sender.pack([("image", pages(1, 7)), ("broken", fail)])
        assert "image" not in cache
        assert cache.statistics().objects_held == 0
        sender.pack([("image", pages(1, 7))])  # never sent
        assert (deliver(sender, receiver, [("image", pages(1, 7))])[0] == 7).all()


def test_no_part_of_a_request_makes_room_for_another() -> None:
    with cache_of(pages=4) as (cache, [reader]):
        sender, receiver = MirroredCache.sender(cache), MirroredCache.receiver(reader)
        sender.pack([("old", pages(2, 1)), ("other", pages(2, 2))])
        parcels = sender.pack([("new", pages(2, 3)), ("newer", pages(2, 4)), ("old", pages(2, 1))])
        got: Any = receiver.unpack(parcels)
        assert [int(each[0]) for each in got] == [3, 4, 1]
        assert sum(parcel.handle is not None for parcel in parcels) == 2


def test_several_engines_and_receivers() -> None:
    with cache_of(n_readers=2) as (one, ones), cache_of(n_readers=2) as (other, others):
        senders = [MirroredCache.sender(one), MirroredCache.sender(other)]
        receivers = [MirroredCache.receiver(a, b) for a, b in zip(ones, others, strict=True)]
        parcels = [parcel for sender, value in zip(senders, "ab", strict=True) for parcel in sender.pack([("key", value)])]
        for receiver in receivers:
            assert receiver.unpack(parcels) == ["a", "b"]
        with pytest.raises(InvalidHandle, match="not attached"):
            MirroredCache.receiver(ones[0]).unpack(parcels)


def test_case_65_a_clear_in_the_middle() -> None:
    """Whatever is cleared, and when: the sender sends the payload again."""
    with cache_of() as (cache, [reader]):
        sender, receiver = MirroredCache.sender(cache), MirroredCache.receiver(reader)
        parcels = sender.pack([("key", 7)])
        cache.clear()
        with pytest.raises(CacheMiss):
            receiver.unpack(parcels)
        assert receiver.unpack(sender.pack([("key", 7)])) == [7]
        assert receiver.unpack([Parcel(b"k" * 32, None, "whole")]) == ["whole"]


def test_a_key_that_is_none_leaves_nothing_held() -> None:
    with cache_of() as (cache, _):
        sender = MirroredCache.sender(cache)
        sender.pack([("known", 1)])
        items: Any = [("known", 1), (["no key"], 2)]
        with pytest.raises(TypeError):
            sender.pack(items)
        assert cache.statistics().objects_held == 0


def test_an_exception_anywhere_while_a_request_is_packed_leaves_nothing_held() -> None:
    """Of what is known: a put that is cut short has its own test."""
    with cache_of() as (cache, _):
        sender = MirroredCache.sender(cache)
        items = [("one", 1), ("other", 2)]
        sender.pack(items)
        was_reached, place = True, 0
        while was_reached:
            was_reached = interrupted_at(place, lambda: sender.pack(items))
            assert cache.statistics().objects_held == 0, place
            place += 1
        assert place > 20
