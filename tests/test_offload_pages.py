"""Where a region's pages come from: NUMA nodes and huge pages (case 75)."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from offload_support import PAGE, fresh_id, pages_of

from arena.errors import CapacityError
from arena.offload import SharedOffloadRegion
from arena.shm import capacity, numa
from arena.shm.backing import check_capacity
from arena.shm.numa import Policy


@pytest.mark.parametrize("option", ["local", "interleave", 0])
@pytest.mark.parametrize("rank", [0, None])
def test_numa_options_are_accepted(option: Any, rank: int | None, caplog: pytest.LogCaptureFixture) -> None:
    with SharedOffloadRegion(fresh_id(), 4, rank, 4 * PAGE, PAGE, numa=option) as region:
        assert pages_of(region) == (4 if rank == 0 else 16)
    assert caplog.records == []


@pytest.mark.parametrize("option", ["fast", -1, True, 1.0, 1 << 20])
def test_numa_options_that_mean_nothing_are_refused(option: Any) -> None:
    with pytest.raises(ValueError, match="must be 'local', 'interleave', the number of a node, or None"):
        SharedOffloadRegion(fresh_id(), 4, 0, 4 * PAGE, PAGE, numa=option)


@pytest.mark.parametrize("rank", [0, None])
def test_a_node_that_is_not_there_is_one_line_in_the_log(rank: int | None, caplog: pytest.LogCaptureFixture) -> None:
    numa._warn_once.cache_clear()
    with SharedOffloadRegion(fresh_id(), 4, rank, 4 * PAGE, PAGE, numa=1000, populate_threads=2) as region:
        assert region.base_tensor.numel() == 4 * 4 * PAGE
    assert len(caplog.records) == 1
    assert "numa=1000" in caplog.text


def test_interleaving_names_all_nodes_that_are_online(tmp_path: Path) -> None:
    online = tmp_path / "online"
    for text, nodes in (("0\n", (0,)), ("0-1,4\n", (0, 1, 4)), ("garbage", (0,)), ("", (0,))):
        online.write_text(text)
        assert numa.online_nodes(online) == nodes
    assert numa.online_nodes(tmp_path / "none") == (0,)
    policy = Policy("interleave", 3, (0, 1, 64))
    mask, words = policy._mask()
    assert list(mask) == [3, 1]
    assert words == 2


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_huge_pages_that_are_not_there_are_a_line_in_the_log(
    backing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setting").write_text("always advise never [deny]")
    monkeypatch.setattr("arena.shm.capacity.free_huge_bytes", lambda: 0)
    monkeypatch.setattr("arena.shm.hugepages.SETTING", tmp_path / "setting")
    with SharedOffloadRegion(fresh_id(), 4, 0, 4 * PAGE, PAGE, huge_pages=True, backing=backing) as region:  # type: ignore[arg-type]
        region.create_next_worker_view(PAGE).fill_(1)
    [line] = caplog.messages
    assert "huge_pages: no transparent huge pages (" in line
    assert "setting is deny" in line


GIB_OF_HUGE_PAGES = {"MemAvailable": 0, "Hugepagesize": 2048, "HugePages_Free": 514, "HugePages_Rsvd": 2}


def test_reserved_huge_pages_count_though_they_are_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arena.shm.capacity.meminfo", lambda: GIB_OF_HUGE_PAGES)
    check_capacity(1 << 30, "memfd", huge_pages=True)
    for nbytes, backing, huge_pages in (((1 << 30) + 1, "memfd", True), (PAGE, "shm", True), (PAGE, "memfd", False)):
        with pytest.raises(CapacityError, match="0 bytes available on this machine"):
            check_capacity(nbytes, backing, huge_pages=huge_pages)


@pytest.mark.parametrize("refused", ["os.ftruncate", "mmap.mmap"])
def test_huge_pages_that_another_takes_meanwhile(
    refused: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Small ones are taken instead, if there is memory for those."""

    def refuse(fd: int, nbytes: int) -> None:
        if os.fstatvfs(fd).f_bsize == capacity.HUGE_PAGE:
            raise OSError(errno.ENOMEM, "on purpose")
        resize(fd, nbytes)

    resize = os.ftruncate
    monkeypatch.setattr(refused, refuse)
    caplog.set_level(logging.INFO, "arena.shm")
    monkeypatch.setattr("arena.shm.capacity.free_huge_bytes", lambda: 1 << 30)
    with SharedOffloadRegion(fresh_id(), 4, 0, 4 * PAGE, PAGE, huge_pages=True) as region:
        region.create_next_worker_view(PAGE).fill_(1)
    assert "no hugetlb memfd" in caplog.records[0].getMessage()
    monkeypatch.setattr("arena.shm.capacity.available_bytes", lambda: 0)
    with pytest.raises(CapacityError, match="0 bytes available on this machine"):
        SharedOffloadRegion(fresh_id(), 4, 0, 4 * PAGE, PAGE, huge_pages=True)


def test_huge_pages_are_used_where_they_are_reserved() -> None:
    reserve = Path("/proc/sys/vm/nr_hugepages")
    if not os.access(reserve, os.W_OK):
        pytest.skip("huge pages cannot be reserved here")
    before = reserve.read_text()
    engine_id = fresh_id()
    try:
        reserve.write_text("2")
        if int(reserve.read_text()) < 2:
            pytest.skip("no memory for huge pages")
        with SharedOffloadRegion(engine_id, 3, 0, 4 * PAGE, PAGE, huge_pages=True) as region:
            assert os.fstatvfs(region._use().member.memory_fd).f_bsize == 2 << 20
            with SharedOffloadRegion(engine_id, 3, 1, 4 * PAGE, PAGE, huge_pages=True) as other:
                region.create_next_worker_view(PAGE).fill_(5)
                assert int(other.base_tensor.sum()) == 5 * 3 * PAGE
    finally:
        reserve.write_text(before)
