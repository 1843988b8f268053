"""The gated path in lockstep: every release of the model is a drop whose gate opens, with the simulated device.

The model's `drop`, `dma_complete` and `release` are here: the last holder of a gated grant goes, the device comes to the
end of what was queued, and the next look at the gates releases the slot.  And the model's quarantine is the writer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from lockstep_slots import SlotCode
from lockstep_walks import Mismatch, walk

from arena.device.pinning import Pinning
from arena.device.simulated import SimulatedDevice
from arena.message import gates
from arena.message.gates import Gates
from arena.protocol.slots import Grant
from arena.shm.native import lib
from spec.models import message_slots
from spec.models import message_slots_state as model_state
from spec.models.message_slots_state import Config

LIVING = Config(without=("writer_death",))
FOR_EVER_S = 1e9


class GatedSlotCode(SlotCode):
    """Readers that have pinned everything."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.devices = [SimulatedDevice(row) for row in range(config.readers)]
        self.gates = [Gates(self.segment, row, device) for row, device in enumerate(self.devices)]  # type: ignore[arg-type]

    def release(self, row: int, slot: int) -> None:
        grant = self.readers[row].references.pop(slot).grant
        before = self.words.done(row, slot)
        self._drop_gated(row, slot, grant.generation)
        if self.words.done(row, slot) != before:
            raise Mismatch(f"slot {slot} is released while the device of reader {row} reads it")
        self.devices[row].drain()  # dma_complete
        self.gates[row].poll()

    def _drop_gated(self, row: int, slot: int, generation: int) -> None:
        device = self.devices[row]
        lease = self.readers[row].slots.lease(Grant(slot, generation))
        self.gates[row].admit([lease])
        device.delay(device.current_stream(), 1.0)
        lease.drop()
        self.gates[row].poll()

    def close(self) -> None:
        for row, each in enumerate(self.gates):
            self.devices[row].drain()
            each.close()
        super().close()


@pytest.mark.parametrize(
    ("config", "states", "transitions"),
    [
        (replace(LIVING, slots=1, readers=1, tensors=1, leave=True), 68, 174),
        (replace(LIVING, slots=1, tensors=1), 292, 885),
        (replace(LIVING, readers=1), 277, 832),
        pytest.param(LIVING, 11_977, 51_410, marks=pytest.mark.deep),
    ],
    ids=lambda value: f"{value.slots}x{value.readers}" if isinstance(value, Config) else None,
)
def test_every_step_with_gates(config: Config, states: int, transitions: int) -> None:
    with closing(GatedSlotCode(config)) as code:
        assert walk(message_slots.model(config), code) == (states, transitions)


# ---- quarantine ------------------------------------------------------------------------------------------------------


class FencedSlotCode(SlotCode):
    """Readers that have pinned everything, and whose DMA outlives them.  When a quarantine ends, the model says."""

    def __init__(self, config: Config) -> None:
        self.fenced: set[tuple[int, int]] = set()  # (row, slot): the code knows the slot alone, and the latest time
        super().__init__(config)
        self.writer._quarantine_s = FOR_EVER_S
        expected, nothing = self._expected, ((),) * config.readers
        self._expected = lambda state: hidden(*expected(state), nothing)

    def admit(self, row: int) -> None:
        super().admit(row)
        lib.arena_member_pin(self.segment.mapping, row)

    def reader_death(self, row: int) -> None:
        super().reader_death(row)
        self.readers[row].references.clear()  # what its device still does is nobody's but the quarantine's

    def orphan_dma_complete(self, row: int, slot: int) -> None:
        """Nobody sees it."""

    def reclaim(self, row: int) -> None:
        self.fenced |= {(row, slot) for slot in self.writer._owed(row)}
        super().reclaim(row)

    def expire(self, row: int, slot: int) -> None:
        self.fenced.discard((row, slot))
        if slot not in {other for _, other in self.fenced}:
            self.writer._fences[slot] = 0.0
        self.writer.expire()

    def state(self) -> model_state.State:
        return super().state()._replace(quarantine=((),) * self.config.readers)

    def meaning(self) -> model_state.State:
        fenced = tuple(sorted(self.writer._fences))
        return super().meaning()._replace(quarantine=(fenced, *((),) * (self.config.readers - 1)))

    def snapshot(self) -> Any:
        return super().snapshot(), self.fenced.copy(), self.writer._fences.copy()

    def restore(self, snapshot: Any) -> None:
        rest, fenced, fences = snapshot
        super().restore(rest)
        self.fenced, self.writer._fences = fenced.copy(), fences.copy()


def hidden(
    wanted: model_state.State, free: set[int], room: bool, nothing: tuple[Any, ...]
) -> tuple[model_state.State, set[int], bool]:
    """Whose quarantine and whose DMA it is shows nowhere: which slots are free does."""
    return wanted._replace(quarantine=nothing, orphans=nothing), free, room


FENCED = replace(LIVING, quarantine=True)


@pytest.mark.parametrize(
    ("config", "states", "transitions"),
    [
        (replace(FENCED, slots=1, readers=1, tensors=1), 34, 73),
        (replace(FENCED, slots=1, tensors=1), 520, 1_721),
        (replace(FENCED, readers=1), 401, 1_243),
    ],
    ids=lambda value: f"{value.slots}x{value.readers}" if isinstance(value, Config) else None,
)
def test_every_step_with_a_quarantine(config: Config, states: int, transitions: int) -> None:
    with closing(FencedSlotCode(config)) as code:
        assert walk(message_slots.model(config), code) == (states, transitions)


def fences_nothing(code: FencedSlotCode) -> None:
    code.writer._quarantine_s = 0.0


def never_expires(code: FencedSlotCode) -> None:
    code.writer.expire = lambda: None  # type: ignore[method-assign]


def fences_what_was_released(code: FencedSlotCode) -> None:
    writer = code.writer
    writer._owed = lambda row: [slot for slot in writer._sent if writer.required[slot] >> row & 1]  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [fences_nothing, never_expires, fences_what_was_released], ids=lambda f: f.__name__)
def test_a_fault_in_the_quarantine_is_noticed(fault: Callable[[FencedSlotCode], None]) -> None:
    with closing(FencedSlotCode(replace(FENCED, slots=1, tensors=1))) as code:
        fault(code)
        with pytest.raises(Mismatch):
            walk(message_slots.model(code.config), code)


# ---- faults of the gates ---------------------------------------------------------------------------------------------


def needs_no_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pinning, "needs_gate", lambda self, offset, nbytes: False)


def opens_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gates.Mark, "is_passed", lambda self: True)


def never_looks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gates, "poll", lambda self: None)


@pytest.fixture
def small() -> Iterator[GatedSlotCode]:
    with closing(GatedSlotCode(replace(LIVING, slots=1, readers=1, tensors=1))) as code:
        yield code


@pytest.mark.parametrize("fault", [needs_no_gate, opens_at_once, never_looks], ids=lambda fault: fault.__name__)
def test_a_fault_in_the_gates_is_noticed(fault: Callable[[pytest.MonkeyPatch], None], small: GatedSlotCode) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises(Mismatch):
            walk(message_slots.model(small.config), small)
    small.devices[0].drain()
    small.gates[0].flush()
