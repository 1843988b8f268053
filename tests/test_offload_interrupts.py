"""An exception from anywhere, a signal handler's for one, leaves nothing of a construction, and makes nobody wait."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cut_support import interrupted_at
from offload_support import region

from arena.shm import meeting, membership
from arena.shm.backing import Backing, MemfdBacking, ShmBacking
from arena.shm.entry import Entry
from arena.shm.native import lib


def test_an_interrupt_passes_the_barrier_too(engine_id: str) -> None:
    calls = []

    def check(nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        region(engine_id, 0, lambda: calls.append(1), creator_memory_check=check)
    assert calls == [1]


def test_an_interrupt_while_the_others_are_told_passes_the_barrier(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(meeting.outcome, "population_fails", interrupt)
    with pytest.raises(KeyboardInterrupt):
        region(engine_id, 0, barrier=lambda: calls.append(1), progress=lambda *_: 1 / 0)
    assert calls == [1]


class Stop(BaseException):
    """As a signal handler raises it."""


def held_here() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), lib.arena_maps_live()


@pytest.mark.parametrize("backing", ["memfd", "shm"])
@pytest.mark.parametrize("barrier", [None, lambda: None])
@pytest.mark.parametrize("is_creator", [True, False])
def test_an_interrupt_at_any_step_leaves_nothing(
    engine_id: str, monkeypatch: pytest.MonkeyPatch, backing: str, barrier: Any, *, is_creator: bool
) -> None:
    """Neither a descriptor, a mapping, the lock nor the rank, though the exception is kept."""
    steps: list[str] = []
    stop_at: list[str] = []

    def after_step(name: str) -> None:
        steps.append(name)
        if [name] == stop_at:
            stop_at.clear()
            raise Stop

    with contextlib.ExitStack() as others:
        if not is_creator:
            others.enter_context(region(engine_id, 1, backing=backing))
        monkeypatch.setattr(membership, "step_hook", after_step)
        before = held_here()
        region(engine_id, 0, barrier, backing=backing).cleanup()
        on_the_way_in = steps[: steps.index("cleanup")]
        assert len(on_the_way_in) >= 7
        kept = []
        for name in on_the_way_in:
            stop_at[:] = [name]
            with pytest.raises(Stop) as caught:
                region(engine_id, 0, barrier, backing=backing)
            kept.append(caught)
            assert held_here() == before, f"after {name}"
            region(engine_id, 0, barrier, backing=backing).cleanup()
            assert held_here() == before, f"again after {name}"


def test_a_second_interrupt_at_the_barrier_leaves_nothing(engine_id: str) -> None:
    def barrier() -> None:
        raise KeyboardInterrupt

    before = held_here()
    with pytest.raises(KeyboardInterrupt) as caught:
        region(engine_id, 0, barrier, progress=lambda *_: 1 / 0)
    assert isinstance(caught.value.__context__, ZeroDivisionError)
    assert held_here() == before
    with region(engine_id, 0):
        pass


def open_and_close(backing: Backing) -> None:
    backing.close(backing.create(4096, huge_pages=False))


OPENINGS: dict[str, Callable[[Path], None]] = {
    "an entry": lambda directory: Entry.open(directory / "entry", create=True).close(),
    "memory": lambda directory: open_and_close(MemfdBacking("memory")),
    "named memory": lambda directory: open_and_close(ShmBacking(directory / "memory")),
}


@pytest.mark.parametrize("what", OPENINGS)
def test_a_descriptor_is_never_nobodys(tmp_path: Path, what: str) -> None:
    """Not even between the opening and the moment when somebody has it, nor while it is closed."""
    before, place = held_here(), 0
    while interrupted_at(place, lambda: OPENINGS[what](tmp_path)):
        assert held_here() == before, f"place {place}"
        (tmp_path / "memory").unlink(missing_ok=True)
        place += 1
    assert place > 20


def test_a_cleanup_that_is_cut_short_is_finished_by_the_next_one(engine_id: str, seed: int) -> None:
    """Wherever that was; every third place of a run."""
    before, place = held_here(), seed % 3
    while True:
        mine = region(engine_id, 0)
        is_cut = interrupted_at(place, mine.cleanup)
        mine.cleanup()
        assert held_here() == before, f"place {place}"
        if not is_cut:
            break
        place += 3
    assert place > 100
