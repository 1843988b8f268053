"""An error leaves no cycle of references: it would keep its callers' tensors, and their slots, until the next collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from support import WATCHDOG_S, queue_of

from arena.errors import CacheMiss


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Local:
    """Stands for what a caller has in its frame."""


@pytest.mark.usefixtures("_no_collection")
def test_a_miss_keeps_nothing_of_its_caller() -> None:
    with queue_of(1) as (writer, (reader,)):
        reader.wait_until_ready(WATCHDOG_S)
        cache, misses = writer.object_cache(), reader.cache_reader()
        handle = cache.put("key", torch.arange(10_000))
        cache.clear()

        def miss() -> weakref.ref[Local]:
            local = Local()
            with pytest.raises(CacheMiss):
                misses.get(handle)  # type: ignore[arg-type]
            return weakref.ref(local)

        assert miss()() is None
