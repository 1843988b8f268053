"""The production code of object slots does what their model does: in every state of a small instance, and at random in
larger ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from lockstep_objects import ObjectCode
from lockstep_walks import Mismatch, run_at_random, walk

from arena.protocol.slots import Refusal
from arena.shm.native import lib
from spec.models import object_slots
from spec.models.object_slots_state import Config

ONE = Config(slots=1, readers=1, leases=2, writer_dies=False)


@pytest.mark.parametrize(
    ("config", "states", "transitions"),
    [(ONE, 124, 364), (replace(ONE, readers=2), 2_566, 12_903), (replace(ONE, slots=2, leases=1), 3_232, 16_448)],
    ids=lambda value: f"{value.slots}x{value.readers}x{value.leases}" if isinstance(value, Config) else None,
)
def test_every_step_from_every_state(config: Config, states: int, transitions: int) -> None:
    with closing(ObjectCode(config)) as code:
        assert walk(object_slots.model(config), code) == (states, transitions)


def no_recheck(code: ObjectCode) -> None:
    """Every get is a hit."""
    for reader in code.readers:
        reader.code.recheck = lambda grant: lib.ARENA_OK  # type: ignore[method-assign]


def generation_stays(code: ObjectCode) -> None:
    """Evicted for the writer, and open for the readers."""
    evict = code.writer.evict

    def evict_without_the_word(slot: int) -> None:
        evict(slot)
        lib.arena_object_publish(code.segment.mapping, slot, code.slots.generations[slot] - 1)

    code.writer.evict = evict_without_the_word  # type: ignore[method-assign]


def open_while_it_is_filled(code: ObjectCode) -> None:
    """Open for a handle that is not out yet, from the claim on."""
    claim = code.writer.claim

    def claim_and_open(nbytes: int) -> int | Refusal:
        slot = claim(nbytes)
        if isinstance(slot, int):
            lib.arena_object_publish(code.segment.mapping, slot, code.writer.grant_to_be(slot).generation)
        return slot

    code.writer.claim = claim_and_open  # type: ignore[assignment, method-assign]


def reuse_without_drain(code: ObjectCode) -> None:
    """Free as soon as it is evicted."""
    evict = code.writer.evict

    def evict_and_free(slot: int) -> None:
        evict(slot)
        code.writer._draining.clear()
        code.slots.free(slot)

    code.writer.evict = evict_and_free  # type: ignore[method-assign]


def row_is_kept(code: ObjectCode) -> None:
    """A dead reader's words stay."""
    code.slots.reclaim = lambda row: None  # type: ignore[method-assign]


def release_keeps_the_word(code: ObjectCode) -> None:
    """Counted down, and the word never cleared."""
    for reader in code.readers:
        private = reader.code.private()

        def count_down(slot: int, private: object = private) -> None:
            private[slot].count -= 1  # type: ignore[index]

        reader.code.release_hold = count_down  # type: ignore[method-assign]


FAULTS = (
    no_recheck, generation_stays, open_while_it_is_filled, reuse_without_drain, row_is_kept, release_keeps_the_word,
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_code_is_noticed(fault: Callable[[ObjectCode], None]) -> None:
    with closing(ObjectCode(ONE)) as code:
        fault(code)
        with pytest.raises(Mismatch):
            walk(object_slots.model(ONE), code)


# ---- larger sizes, at random -----------------------------------------------------------------------------------------

LARGE = replace(ONE, slots=4, readers=3, leases=3)


@pytest.mark.parametrize("examples", [8, pytest.param(250, marks=pytest.mark.deep)])
def test_random_steps_at_a_larger_size(examples: int) -> None:
    run_at_random(object_slots.model(LARGE), lambda: ObjectCode(LARGE), examples, steps=100)


def test_the_random_walk_notices_a_fault_too() -> None:
    def faulty() -> ObjectCode:
        code = ObjectCode(LARGE)
        reuse_without_drain(code)
        return code

    with pytest.raises(Mismatch):
        run_at_random(object_slots.model(LARGE), faulty, 100, steps=100)
