"""Cases from the field that are about the region and have no other place: see each test's first line."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from offload_scripts import (
    NOT_ALLOWED,
    fail_with_a_region,
    on_a_small_dev_shm,
    one_that_a_dead_one_leaves_no_room_for,
    pages_that_others_take_later,
    too_large_at_once,
    two_that_are_too_large_together,
    with_little_address_space,
)
from offload_support import Plan, construct, entry_of, region, run, what_is_left, workers

from arena import ArenaConfig, MessageQueue
from arena.device.pinning import LAZY_CHUNK_BYTES, REGISTER_BYTES_MAX
from arena.device.simulated import SimulatedDevice
from arena.errors import AttachError
from arena.offload import SharedOffloadRegion
from arena.shm import capacity, population

PAGE = 4096
GIB = 1 << 30
BACKINGS = ["memfd", "shm"]


# ---- memory limits: 25, 27, 29


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (too_large_at_once, "does not fit"),
        (two_that_are_too_large_together, "does not fit"),
        (pages_that_others_take_later, "cannot be populated"),
        (one_that_a_dead_one_leaves_no_room_for, "does not fit"),
    ],
)
def test_what_does_not_fit_into_dev_shm_is_an_error_and_no_signal(script: Callable[[], None], text: str) -> None:
    """Cases 25 and 27, with a real /dev/shm of 16 MiB: alone, by their sum, and by pages that are taken later."""
    code, said = run(on_a_small_dev_shm, 16 << 20, script)
    if code == NOT_ALLOWED:
        pytest.skip("a mount namespace is not allowed here")
    assert code == 0, said
    assert text in said
    assert "make the region smaller" in said, "it says what would help"


@pytest.mark.parametrize("memory", BACKINGS)
def test_twenty_runs_that_are_killed_leave_one_small_entry(engine_id: str, memory: Any) -> None:
    """Cases 29 and 34: all are killed, again and again under one name; no run waits, and nothing piles up."""
    for number in range(20):
        with workers(2) as pool:
            plans = [Plan(engine_id, rank, {"nonce": str(number), "backing": memory}) for rank in range(2)]
            outcomes = construct(list(zip(pool, plans, strict=True)))
            assert all(each.is_in for each in outcomes), outcomes
            for each in pool:
                each.kill()
        assert os.path.getsize(entry_of(engine_id)) <= PAGE
        assert len(what_is_left(engine_id)) == (1 if memory == "memfd" else 2)
    with region(engine_id, backing=memory) as new:
        assert new.is_creator
        assert not new.base_tensor.any()


# ---- who comes and goes: 31, 33, 38

ATTACH = """
import os, signal, sys
from arena.offload import SharedOffloadRegion
region = SharedOffloadRegion(sys.argv[1], 2, 1, 4 * 4096, 4096, backing=sys.argv[2])
region.create_next_worker_view(4096).fill_(7)
if sys.argv[3] == "SIGKILL":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("memory", "end"), [("memfd", "normal"), ("shm", "normal"), ("shm", "SIGKILL")])
def test_a_process_that_attaches_and_ends_takes_nothing_with_it(engine_id: str, memory: Any, end: str) -> None:
    """Case 31: it has nothing to do with this process, so that a resource tracker of it would be its own."""
    with region(engine_id, 0, backing=memory) as mine:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", ATTACH, engine_id, memory, end],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (-signal.SIGKILL if end == "SIGKILL" else 0, "")
        with region(engine_id, 1, backing=memory) as second:
            assert not second.is_creator
            assert int(second.base_tensor[PAGE]) == int(mine.base_tensor[PAGE]) == 7


@pytest.mark.parametrize("memory", BACKINGS)
def test_a_worker_that_fails_says_its_own_error_and_nothing_else(engine_id: str, memory: Any) -> None:
    """Case 33: no warning of a leak; the true error is the last line."""
    with region(engine_id, 0, backing=memory) as mine:
        code, said = run(fail_with_a_region, engine_id, memory)
        assert code == 1
        assert said.splitlines()[-1] == "RuntimeError: mine"
        assert "leak" not in said
        assert "Warning" not in said
        assert int(mine.base_tensor[PAGE]) == 1
        with region(engine_id, 1, backing=memory):  # its rank is free
            pass


@pytest.mark.parametrize("memory", BACKINGS)
def test_one_that_was_done_early_leaves_the_region_to_those_who_come_late(engine_id: str, memory: Any) -> None:
    """Case 38: whoever leaves is not the last, and a second one under the same rank is told who has it."""
    with region(engine_id, 0, backing=memory) as mine:
        with region(engine_id, 1, backing=memory) as early:
            early.create_next_worker_view(PAGE).fill_(7)
        with workers(1) as (late,):
            (outcome,) = construct([(late, Plan(engine_id, 2, {"backing": memory}, row_bytes=4 * PAGE))])
            assert outcome.error == "AttachError", "that one has other sizes"
        with region(engine_id, 2, backing=memory) as late_one:
            assert int(late_one.base_tensor[PAGE]) == 7
            with pytest.raises(AttachError, match=f"rank 2 .* is held by process {os.getpid()}, which is alive"):
                region(engine_id, 2, backing=memory)
        assert mine.is_creator


# ---- pages and pinning: 67, 71


def test_a_joiner_on_an_old_kernel_keeps_what_others_have_written(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 71: it touches its own pages, and those alone."""
    with region(engine_id, 0) as mine:
        mine.base_tensor.fill_(5)
        touched: list[int] = []

        def old_kernel(*args: Any, **options: Any) -> None:
            def touch(address: Any, nbytes: int) -> None:
                touched.append(nbytes)
                population.touch_pages(address, nbytes)

            populate(*args, **options, advise=lambda address, nbytes: errno.EINVAL, touch=touch)

        populate = population.populate
        monkeypatch.setattr(population, "populate", old_kernel)
        with region(engine_id, 1) as joiner:
            assert bool((joiner.base_tensor == 5).all())
            assert touched == [PAGE, PAGE]


def test_a_region_of_512_gib_works_and_takes_the_pages_that_are_used(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 67, at full size: address space only, but for the workers' own pages."""
    monkeypatch.setattr(capacity, "available_bytes", lambda: None)
    device = SimulatedDevice(register_bytes_max=REGISTER_BYTES_MAX)
    with SharedOffloadRegion(engine_id, 512, 0, GIB, PAGE, pin="eager", device=device) as mine:
        assert mine.is_pinned
        assert [nbytes for _, nbytes in mine.pinned_addresses] == [64 * GIB] * 8
        mine.create_next_worker_view(PAGE)[-1].fill_(3)
        with SharedOffloadRegion(engine_id, 512, 262143, GIB, PAGE) as last:
            assert int(last.base_tensor[511 * GIB]) == 3
            last.create_next_worker_view(PAGE)[-1].fill_(4)
        assert mine.create_kv_memoryview()[511, GIB - 1] == 4
        assert os.fstat(mine._use().member.memory_fd).st_blocks * 512 == 2 * 512 * PAGE
    assert (device.registered, device.violations) == ({}, [])


def test_an_arena_of_512_gib_pins_the_chunk_that_is_used() -> None:
    """Case 67: lazy pages stay lazy."""
    device = SimulatedDevice()
    with MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=512 * GIB)) as writer:
        with MessageQueue.create_from_handle(writer.export_handle(), 0, device=device) as reader:
            writer.wait_until_ready(60)
            writer.enqueue(torch.ones(1 << 20), 60)
            received: Any = reader.dequeue(60)
            assert list(device.registered.values()) == [LAZY_CHUNK_BYTES]
            assert torch.equal(received, torch.ones(1 << 20))
            del received
            reader.flush_releases()
            device.drain()
            assert reader.flush_releases() == 0
    assert device.violations == []


def test_an_address_space_that_is_too_small_is_an_error_with_a_way_out(engine_id: str) -> None:
    code, said = run(with_little_address_space, 512 * GIB, engine_id)
    assert code == 0
    assert f"a region of {512 * GIB} bytes cannot be mapped: Cannot allocate memory" in said
    assert "raise the limit (ulimit -v)" in said
