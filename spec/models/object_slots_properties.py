"""What must hold of object slots: no reuse under a lease, no torn object, no missed live handle, no leak."""

from __future__ import annotations

from spec.model import Drain, invariant, sometimes
from spec.models.object_slots_state import (
    CURRENT,
    DMA,
    DRAINING,
    EARLY,
    EMPTY,
    EVICTED,
    HELD,
    LIVE,
    MISSED,
    NOTHING,
    PRESCANNED,
    Config,
    Slot,
    State,
)

USES = {HELD: "has a view of it", DMA: "has its DMA running", EARLY: "has its DMA running"}


def is_intact(slot: Slot, label: str) -> bool:
    """The bytes of that generation are in the slot and stay there."""
    if label == CURRENT:
        return slot.owner in (LIVE, PRESCANNED) and slot.complete
    return label == EVICTED and (slot.owner == DRAINING or slot.refilled)


@invariant("H")
def live_handle_hits(config: Config, state: State) -> str | None:
    """A get of a live handle never misses."""
    for number, reader in enumerate(state.readers):
        for slot, hold in enumerate(reader.holds):
            if any(reference.phase == MISSED for reference in hold.references):
                return f"reader {number} misses the live object in slot {slot}"
    return None


@invariant("S1")
def in_use_is_not_reusable(config: Config, state: State) -> str | None:
    """No slot is free or filled again while a view or a DMA of an earlier generation exists."""
    for number, reader in enumerate(state.readers):
        for slot, hold in enumerate(reader.holds):
            record = state.slots[slot]
            for phase, label in hold.references:
                if phase in USES and label != CURRENT and not is_intact(record, label):
                    return f"slot {slot} is {record.owner} while reader {number} {USES[phase]}"
            if hold.orphan != NOTHING and not is_intact(record, hold.orphan):
                return f"slot {slot} is {record.owner} while the dead reader {number} has its DMA running"
    return None


@invariant("S2")
def held_is_complete(config: Config, state: State) -> str | None:
    """A reader never sees an object that is not complete or not published."""
    for number, reader in enumerate(state.readers):
        for slot, hold in enumerate(reader.holds):
            for phase, label in hold.references:
                if phase in USES and label == CURRENT and not is_intact(state.slots[slot], CURRENT):
                    return f"reader {number} sees slot {slot} before it is published"
    return None


@invariant("S4")
def no_leak(config: Config, state: State) -> str | None:
    """When nobody has a lease and every death has been dealt with, nothing keeps a slot from draining."""
    if not is_quiet(state):
        return None
    for slot, record in enumerate(state.slots):
        if record.owner != DRAINING:
            continue
        for number, reader in enumerate(state.readers):
            hold = reader.holds[slot]
            if hold.word == hold.visible == EVICTED and config.scans_row(state, number):
                return f"slot {slot} never drains: the word of rank {number} names it, and nobody will clear it"
    return None


def is_quiet(state: State) -> bool:
    """The writer lives, no get and no lease is left, and every process is a member, every dead one is not."""
    return (
        state.writer_alive
        and all(reader.alive == (reader.member != EMPTY) for reader in state.readers)
        and not any(hold.references for reader in state.readers for hold in reader.holds)
    )


INVARIANTS = (live_handle_hits, in_use_is_not_reusable, held_is_complete, no_leak)


def all_drained(config: Config, state: State) -> bool:
    """No slot drains, nobody has a get or a lease."""
    return (
        state.writer_alive
        and not any(slot.owner == DRAINING for slot in state.slots)
        and not any(hold.references for reader in state.readers for hold in reader.holds)
    )


DRAIN = Drain("D", demanded=lambda config, state: state.writer_alive, good=all_drained)


@sometimes("an evicted object is still in use")
def used_after_eviction(config: Config, state: State) -> bool:
    return any(
        reference == (HELD, EVICTED) for reader in state.readers for hold in reader.holds for reference in hold.references
    )


@sometimes("a DMA outlives its reader")
def dma_outlives_reader(config: Config, state: State) -> bool:
    return any(
        hold.orphan != NOTHING or any(reference.phase == DMA for reference in hold.references)
        for reader in state.readers
        if not reader.alive
        for hold in reader.holds
    )


@sometimes("a cleared word is not visible yet")
def clear_in_flight(config: Config, state: State) -> bool:
    return any(hold.word == NOTHING != hold.visible for reader in state.readers for hold in reader.holds)


@sometimes("the word of a get in flight names a generation that is long gone")
def stale_announcement(config: Config, state: State) -> bool:
    return any(
        hold.visible not in (NOTHING, CURRENT, EVICTED) and state.slots[slot].owner == LIVE
        for reader in state.readers
        for slot, hold in enumerate(reader.holds)
    )


@sometimes("all readers hold the same object")
def held_by_all(config: Config, state: State) -> bool:
    return any(
        all(reader.holds[slot].word == CURRENT and reader.holds[slot].counted for reader in state.readers)
        for slot in range(config.slots)
    )


SOMETIMES = (used_after_eviction, dma_outlives_reader, clear_in_flight, stale_announcement, held_by_all)
