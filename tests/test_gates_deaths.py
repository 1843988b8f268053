"""A reader dies while its devices are at work: what it held stays out of use for a while, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import SMALL, WATCHDOG_S, Reader, Side, readers_of, wait_until

from arena import MessageQueue
from arena.device.simulated import SimulatedDevice
from arena.shm.native import lib

NBYTES = 64 << 10


def pin_and_hold(side: Side, count: int) -> None:
    """This process pins from now on; it holds some messages, has its device copy one, and drops that."""
    end: Any = side.queue._end
    end._open_gates(replace(end.handle, pin="auto"), SimulatedDevice(1))
    end._decoder._gates = end.gates
    side.kept["held"] = [side.queue.dequeue(WATCHDOG_S) for _ in range(count)]
    side.kept["copied"] = side.queue.to_device(side.kept["held"].pop(), "sim:0")
    side.queue.flush_releases()


def hold_without(side: Side, count: int) -> None:
    side.kept["held"] = [side.queue.dequeue(WATCHDOG_S) for _ in range(count)]


@contextmanager
def dead_reader(program: Any, quarantine_s: float) -> Iterator[tuple[MessageQueue, Reader]]:
    """A writer whose reader 1 has died with three slots, and the living reader 0."""
    arena = replace(SMALL, quarantine_s=quarantine_s, pin="off")
    with MessageQueue(2, 2, arena=arena) as writer, readers_of(writer, 2) as readers:
        for number in range(3):
            writer.enqueue(torch.full((NBYTES,), number, dtype=torch.uint8), WATCHDOG_S)
        readers[1].run(program, 3)
        readers[0].run(hold_without, 3)
        readers[0].run(forget)
        wait_until(lambda: writer.statistics().slots_free == SMALL.slots - 3, "only the other one holds them")
        readers[1].process.kill()
        readers[1].process.join()
        wait_until(lambda: writer.reap() + writer.statistics().deaths_total > 0, "the death is noticed")
        yield writer, readers[0]


def forget(side: Side) -> None:
    side.kept.clear()


def test_what_a_pinned_reader_held_is_kept_back() -> None:
    with dead_reader(pin_and_hold, 3600.0) as (writer, living):
        statistics = writer.statistics()
        assert (statistics.slots_quarantined, statistics.slots_free) == (3, SMALL.slots - 3)
        for number in range(20):  # the others are used again and again meanwhile
            writer.enqueue(torch.full((NBYTES,), number, dtype=torch.uint8), WATCHDOG_S)
            living.run(hold_without, 1)
            living.run(forget)
        assert writer.statistics().fallback_total == {}
        assert writer.statistics().slots_quarantined == 3


def test_the_quarantine_ends() -> None:
    with dead_reader(pin_and_hold, 0.05) as (writer, _):
        wait_until(lambda: writer.statistics().slots_quarantined == 0, "the quarantine has ended")
        assert writer.statistics().slots_free == SMALL.slots


@pytest.mark.parametrize(("program", "quarantine_s"), [(hold_without, 3600.0), (pin_and_hold, 0.0)])
def test_without_a_pin_or_a_quarantine_all_is_free_at_once(program: Any, quarantine_s: float) -> None:
    with dead_reader(program, quarantine_s) as (writer, _):
        statistics = writer.statistics()
        assert (statistics.slots_quarantined, statistics.slots_free) == (0, SMALL.slots)


def test_the_successor_is_not_pinned_until_it_pins() -> None:
    with dead_reader(pin_and_hold, 3600.0) as (writer, _):
        end: Any = writer._end
        assert not lib.arena_member_is_pinned(end.segment.mapping, 1)
