"""Message slots from one slot's and from one reader's point of view, for the pictures of the README."""

from __future__ import annotations

from spec.models.message_slots_state import CLAIMED, DEAD, DMA, DROPPED, FREE, LEASED, NONE, RECEIVED, Config, State

PHASES = {
    NONE: "nothing to do",
    RECEIVED: "has received the message",
    LEASED: "holds a view",
    DMA: "its device reads the memory",
    DROPPED: "may release",
}


def slot_life(config: Config, state: State) -> str | None:
    """What has become of slot 0, as long as the writer lives."""
    if state.writer == DEAD:
        return None
    owner, complete, done, required = state.slots[0]
    if owner == FREE:
        return "free"
    if owner == CLAIMED:
        return "filled" if complete else "claimed"
    if 0 in state.pending:
        return "published, message not out"
    owing = sum(is_required and not is_done for is_done, is_required in zip(done, required, strict=True))
    return f"out, {owing} to release" if owing else "free again"


def reader_life(config: Config, state: State) -> str:
    """What reader 0 has to do with slot 0."""
    phase = state.refs[0][0].phase
    if not state.alive[0]:
        return "dead, its DMA still runs" if phase == DMA else "dead"
    if phase == NONE and state.queues[0]:
        return "a message waits"
    return PHASES[phase]


SMALL = Config(slots=1, readers=2, tensors=1)
VIEWS = {"slot": (SMALL, slot_life), "reader": (SMALL, reader_life)}
