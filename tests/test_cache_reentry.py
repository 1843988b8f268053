"""Signal handlers and finalizers that use a cache, or its queue, in the middle of another call of their thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from cache_support import PAGE, pages, put
from cut_support import interrupted_at
from support import queue_of

from arena import ArenaConfig, MessageQueue, ObjectCache

ROOM = ArenaConfig(capacity_bytes=16 * PAGE, slots=8, divert_bytes=PAGE)

INNER: dict[str, Callable[[MessageQueue, ObjectCache], object]] = {
    "put": lambda queue, cache: cache.put("inner", pages(1, 3)),
    "remove": lambda queue, cache: cache.remove("a"),
    "clear": lambda queue, cache: cache.clear(),
    "touch": lambda queue, cache: cache.touch(["a", "b"]),
    "enqueue": lambda queue, cache: queue.enqueue(pages(1, 4), timeout=10),
    "statistics": lambda queue, cache: (queue.statistics(), cache.statistics()),
}


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", [*INNER])
def test_a_handler_anywhere_in_a_put_that_evicts_breaks_no_books(name: str, step: int) -> None:
    """It is refused where a change is under way, and does its work everywhere else; statistics always answers."""
    outcomes: Counter[str] = Counter()
    with queue_of(arena=ROOM) as (queue, [reader]):
        cache = queue.object_cache(reserve_bytes=0, reserve_slots=0)

        def handler() -> None:
            outcomes["begun"] += 1
            with suppress(RuntimeError):
                INNER[name](queue, cache)
                outcomes["done"] += 1

        was_reached, place = True, 0
        while was_reached:
            put(cache, "a", pages(6, 1))
            put(cache, "b", pages(6, 2))
            was_reached = interrupted_at(place, lambda: put(cache, "c", pages(8, 5)), handler)
            got: Any = cache.get(cache.get_handle("c")) if cache.contains("c") else None
            assert got is None or (got == 5).all(), place
            del got
            with suppress(TimeoutError):
                assert (reader.dequeue(0) == 4).all()  # type: ignore[attr-defined]
            cache.clear()
            now, then = queue.statistics(), cache.statistics()
            assert (now.slots_free, now.bytes_in_use) == (8, 0), place
            assert (then.objects, then.bytes_in_use, then.bytes_draining, then.slots_draining) == (0, 0, 0, 0), place
            assert cache.put("all", pages(15)), place
            cache.clear()
            place += step
    assert outcomes["done"] > 2
    refused = outcomes["begun"] - outcomes["done"]
    assert (refused > 2) == (name != "statistics")
