"""Points of view on object slots, for `python -m spec picture`."""

from __future__ import annotations

from spec.models.object_slots_state import (
    CHECKING,
    DMA,
    DRAINING,
    DROPPED,
    FILLING,
    FREE,
    HELD,
    LIVE,
    NOTHING,
    Config,
    State,
)

OWNERS = {FREE: "free", FILLING: "being filled", LIVE: "live", DRAINING: "draining"}
PHASES = {
    CHECKING: "has announced",
    HELD: "holds a view",
    DMA: "its device reads the memory",
    DROPPED: "may release",
}


def slot_seen(config: Config, state: State) -> str | None:
    """The slot, and whether the reader's word protects it."""
    slot, hold = state.slots[0], state.readers[0].holds[0]
    if not state.writer_alive or not state.readers[0].alive:
        return None
    used = any(reference.phase != CHECKING for reference in hold.references)
    again = slot.owner == FREE and slot.oldest_handle != NOTHING
    return OWNERS[slot.owner] + (" again" if again else "") + (", in use" if used else "")


def reader_seen(config: Config, state: State) -> str | None:
    """What the reader has to do with the slot."""
    reader = state.readers[0]
    hold = reader.holds[0]
    if not state.writer_alive or len(hold.references) > 1:
        return None
    if not reader.alive:
        running = " and its DMA runs" if hold.references else ""
        return f"dead{running}, its word is set" if hold.word != NOTHING else f"dead{running}"
    return PHASES[hold.references[0].phase] if hold.references else "has nothing"


ONE = Config(leases=1)
VIEWS = {"slot": (ONE, slot_seen), "reader": (ONE, reader_seen)}
