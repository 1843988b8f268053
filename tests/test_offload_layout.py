"""Where each byte of a region lies, whose it is, and how long it stays."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arena.errors import ArenaError, AttachError
from arena.offload import SharedOffloadRegion
from arena.shm.native import lib

PAGE = 4096


@pytest.fixture
def ranks(engine_id: str) -> Iterator[list[SharedOffloadRegion]]:
    """Four workers and a scheduler, each with a mapping of its own; 6 rows of 4 shares of 3000 bytes."""
    regions = [SharedOffloadRegion(engine_id, 6, rank, 3 * PAGE, 3000) for rank in (0, 1, 2, 3, None)]
    yield regions
    for each in regions:
        each.cleanup()


# ---- arguments


@pytest.mark.parametrize(("given_bytes", "nearest"), [(1, 4096), (4095, 4096), (4097, 4096), (7000, 8192), (10000, 8192)])
def test_a_row_that_is_not_whole_pages_is_refused_with_the_nearest_size(given_bytes: int, nearest: int) -> None:
    with pytest.raises(ValueError, match=f"kv_bytes_per_chunk={given_bytes}.*the nearest is {nearest}$"):
        SharedOffloadRegion("layout", 4, None, given_bytes, 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_chunks": 0}, "num_chunks=0: must be an integer of at least 1"),
        ({"num_chunks": True}, "num_chunks=True"),
        ({"num_chunks": 2.0}, "num_chunks=2.0"),
        ({"kv_bytes_per_chunk": -4096}, "kv_bytes_per_chunk=-4096"),
        ({"rank": -1}, "rank=-1"),
        ({"rank": 4}, "rank=4: must be an integer between 0 and 3"),
        ({"cpu_page_size": 0}, "cpu_page_size=0"),
        ({"cpu_page_size": 4 * PAGE + 1}, "cpu_page_size=16385"),
        ({"engine_id": ""}, "engine_id=''"),
        ({"engine_id": b"x"}, "engine_id=b'x'"),
        ({"engine_id": "x\udcff"}, "engine_id='x\\udcff'"),
        ({"backing": "disk"}, "backing='disk': must be one of memfd, shm"),
        ({"pin": "yes"}, "pin='yes'"),
        ({"populate_threads": 0}, "populate_threads=0"),
        ({"num_chunks": None}, "num_chunks=None: must be an integer"),
        ({"kv_bytes_per_chunk": "8192"}, "kv_bytes_per_chunk='8192': must be an integer"),
        ({"cpu_page_size": None}, "cpu_page_size=None: must be an integer"),
        ({"rank": "0"}, "rank='0': must be an integer"),
        ({"nonce": 5}, "nonce=5: must be a string, bytes or None"),
        ({"barrier": 5}, "barrier=5: must be something to call"),
        ({"progress": 5}, "progress=5: must be something to call"),
        ({"creator_memory_check": 5}, "creator_memory_check=5: must be something to call"),
        ({"device": "cuda"}, "device='cuda': must be"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(engine_id: str, change: dict[str, Any], text: str) -> None:
    good = {"engine_id": engine_id, "num_chunks": 2, "rank": 0, "kv_bytes_per_chunk": 4 * PAGE, "cpu_page_size": PAGE}
    with pytest.raises(ValueError, match="must be") as caught:
        SharedOffloadRegion(**{**good, **change})
    assert text in str(caught.value)


def test_integers_of_any_library_are_integers(engine_id: str) -> None:
    """Small ones too, whose products would not fit into themselves."""
    rows, rank, row_bytes, share = np.int16(3), np.uint8(1), torch.tensor(4 * PAGE, dtype=torch.int16), np.int16(PAGE)
    threads: Any = np.int8(2)
    with (
        SharedOffloadRegion(engine_id, rows, rank, row_bytes, share, numa=np.int8(0), populate_threads=threads) as region,
        SharedOffloadRegion(engine_id, 3, None, 4 * PAGE, 0) as same,
    ):
        region.create_next_worker_view(np.int16(PAGE)).fill_(7)
        assert region.create_next_canonical_view(np.uint16(PAGE)).shape == (3, PAGE)
        assert int(same.base_tensor.sum()) == 7 * 3 * PAGE
        assert type(region.total_size_bytes) is int
        with pytest.raises(AttachError, match=r"rank 1 .* is held"):
            SharedOffloadRegion(engine_id, 3, 1, 4 * PAGE, PAGE)


@pytest.mark.parametrize("engine_id", ["..", "a/b", "/etc/passwd", "x" * 5000, "é\n\0 %", ".data"])
def test_any_name_is_a_name(engine_id: str) -> None:
    with (
        SharedOffloadRegion(engine_id, 2, 0, PAGE, PAGE) as region,
        SharedOffloadRegion(engine_id, 2, None, PAGE, 0) as same,
    ):
        assert region.is_creator
        assert not same.is_creator


# ---- views


def test_a_workers_views_follow_one_another_through_its_share(ranks: list[SharedOffloadRegion]) -> None:
    first, second = ranks[2].create_next_worker_view(1000), ranks[2].create_next_worker_view(2000)
    assert (first.shape, first.stride(), first.dtype) == ((6, 1000), (3 * PAGE, 1), torch.int8)
    assert first.storage_offset() == 2 * 3000
    assert second.storage_offset() == 2 * 3000 + 1000
    with pytest.raises(ValueError, match="has 0 bytes left"):
        ranks[2].create_next_worker_view(1)


@pytest.mark.parametrize("canonical", [False, True])
def test_a_view_that_does_not_fit_is_refused_and_moves_nothing(ranks: list[SharedOffloadRegion], canonical: bool) -> None:
    create = ranks[1].create_next_canonical_view if canonical else ranks[1].create_next_worker_view
    room = 3 * PAGE if canonical else 3000
    create(10)
    for wrong in (room - 9, 1 << 40, 0, -1, 1.5, True):
        with pytest.raises(ValueError, match="tensor_page_size"):
            create(wrong)  # type: ignore[arg-type]
    assert create(room - 10).shape == (6, room - 10)


def test_a_worker_writes_its_own_bytes_and_nobody_elses(ranks: list[SharedOffloadRegion]) -> None:
    """Every byte of every view of every rank, seen through the mapping of another process's region."""
    seen = ranks[4].base_tensor.view(6, 3 * PAGE)
    expected = torch.zeros_like(seen)
    for rank, region in enumerate(ranks[:4]):
        for number, size in enumerate((1, 999, 2000)):
            value = 1 + rank * 3 + number
            start = rank * 3000 + (0, 1, 1000)[number]
            region.create_next_worker_view(size).fill_(value)
            expected[:, start : start + size] = value
            assert torch.equal(seen, expected)
    assert not seen[:, 4 * 3000 :].any(), "the rest of the row is nobody's"


def test_canonical_views_are_the_same_bytes_for_all(ranks: list[SharedOffloadRegion]) -> None:
    views = [(region.create_next_canonical_view(5000), region.create_next_canonical_view(7288)) for region in ranks]
    assert [view.storage_offset() for view in views[0]] == [0, 5000]
    for value, (first, second) in enumerate(views, start=1):
        first.fill_(value)
        second.fill_(-value)
        assert all(bool((one == value).all()) and bool((two == -value).all()) for one, two in views)


def test_a_region_without_a_rank_has_no_worker_views(ranks: list[SharedOffloadRegion]) -> None:
    with pytest.raises(ValueError, match="create_next_canonical_view"):
        ranks[4].create_next_worker_view(1)


def test_the_memoryview_is_the_memory(ranks: list[SharedOffloadRegion]) -> None:
    view = ranks[0].create_kv_memoryview()
    assert (view.shape, view.format, view.readonly, view.nbytes) == ((6, 3 * PAGE), "b", False, 6 * 3 * PAGE)
    ranks[1].create_next_worker_view(3000).fill_(7)
    assert [view[5, 2999], view[5, 3000], view[5, 5999], view[5, 6000]] == [0, 7, 7, 0]
    view[2, 0] = 3
    assert int(ranks[3].base_tensor[2 * 3 * PAGE]) == 3


@given(share=st.integers(1, PAGE), workers=st.integers(1, 6), sizes=st.lists(st.integers(1, PAGE), max_size=6))
def test_views_of_all_workers_never_meet(share: int, workers: int, sizes: list[int]) -> None:
    """The offsets alone, as a caller with any sizes would get them."""
    taken: set[int] = set()
    for rank in range(workers):
        offset, end = rank * share, (rank + 1) * share
        for size in sizes:
            try:
                after = SharedOffloadRegion._advance(offset, size, end, "share")
            except ValueError:
                assert offset + size > end
                continue
            assert taken.isdisjoint(range(offset, after))
            taken.update(range(offset, after))
            offset = after
    assert not taken or max(taken) < workers * share


# ---- the end


def test_a_released_region_raises(engine_id: str) -> None:
    region = SharedOffloadRegion(engine_id, 2, 0, PAGE, PAGE)
    region.cleanup()
    region.cleanup()
    for use in (
        lambda: region.base_tensor,
        lambda: region.create_next_worker_view(1),
        lambda: region.create_next_canonical_view(1),
        region.create_kv_memoryview,
        lambda: region.is_creator,
        region.pin_memory,
    ):
        with pytest.raises(ArenaError, match="released"):
            use()
    assert not region.is_pinned
    assert region.pinned_addresses == ()
    assert "released" in repr(region)


HOLDERS = {
    "view": lambda region: region.create_next_worker_view(100),
    "slice": lambda region: region.create_next_worker_view(100)[1:, 3:50],
    "numpy": lambda region: region.create_next_worker_view(100).numpy(),
    "memoryview": lambda region: region.create_kv_memoryview(),
    "base": lambda region: region.base_tensor,
    "storage": lambda region: region.base_tensor.untyped_storage(),
    "parameter": lambda region: torch.nn.Parameter(region.create_next_worker_view(100), requires_grad=False),
}


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize("end", ["cleanup", "drop"])
def test_what_somebody_holds_stays_valid_and_keeps_the_mapping(engine_id: str, kind: str, end: str) -> None:
    before = lib.arena_maps_live()
    region = SharedOffloadRegion(engine_id, 4, 0, PAGE, PAGE)
    region.base_tensor.fill_(42)
    held = HOLDERS[kind](region)
    if end == "cleanup":
        region.cleanup()
    gone = weakref.ref(region)
    del region
    gc.collect()
    assert gone() is None
    assert lib.arena_maps_live() == before + 1
    assert int(held[1] if kind in ("storage", "base") else held[1, 1]) == 42
    del held
    gc.collect()
    assert lib.arena_maps_live() == before


def test_a_region_that_is_dropped_leaves_as_cleanup_does(engine_id: str) -> None:
    with SharedOffloadRegion(engine_id, 2, 1, 2 * PAGE, PAGE) as other:
        SharedOffloadRegion(engine_id, 2, 0, 2 * PAGE, PAGE)
        gc.collect()
        with SharedOffloadRegion(engine_id, 2, 0, 2 * PAGE, PAGE) as again:  # the rank is free
            assert not again.is_creator
            assert other.is_creator


def test_an_error_in_a_with_block_is_what_the_caller_sees(engine_id: str) -> None:
    """Case 22."""
    views = []

    def use() -> None:
        with SharedOffloadRegion(engine_id, 2, 0, PAGE, PAGE) as region:
            views.append(region.create_kv_memoryview())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        use()
    assert views[0][0, 0] == 0


AT_EXIT = """
import sys
from arena.offload import SharedOffloadRegion
region = SharedOffloadRegion(sys.argv[1], 4, 0, 8192, 4096, backing=sys.argv[2], nonce="one")
view, array = region.create_next_worker_view(100), region.create_kv_memoryview()
sys.modules["keeper"] = view
class Cycle: pass
cycle = Cycle(); cycle.me, cycle.view, cycle.region = cycle, view, region
"""


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_a_process_that_just_ends_leaves_nothing_and_says_nothing(engine_id: str, backing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, engine_id, backing], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
