"""The gated path in lockstep: every release of the model is a drop whose gate opens, with the simulated device.

The model's `drop`, `dma_complete` and `release` are here: the last holder of a gated grant goes, the device comes to the
end of what was queued, and the next look at the gates releases the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from lockstep_slots import PAYLOAD_BYTES, Mismatch, SlotCode, walk

from arena.device.pinning import Pinning
from arena.device.simulated import SimulatedDevice
from arena.message import gates
from arena.message.gates import Gates
from arena.protocol.slots import Lease, drop
from arena.shm.native import lib
from spec.models import message_slots
from spec.models.message_slots_state import Config

LIVING = Config(without=("writer_death",))


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
        mapping, device = self.segment.mapping, self.devices[row]
        c_grant = lib.arena_grant_open(mapping, row, slot, generation)
        self.gates[row].admit([Lease(c_grant, mapping.data + self.writer.offsets[slot], PAYLOAD_BYTES)])
        device.delay(device.current_stream(), 1.0)
        drop(c_grant)
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


def needs_no_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pinning, "needs_gate", lambda self, offset, nbytes: False)


def opens_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gates._Mark, "is_passed", lambda self: True)


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
