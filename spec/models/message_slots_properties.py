"""What must hold of message slots: S1 to S4, the drain D, and what must be seen to happen."""

from __future__ import annotations

from spec.model import Drain, Sometimes, invariant, sometimes
from spec.models.message_slots_state import (
    DEAD,
    DMA,
    EARLY,
    EMPTY,
    IDLE,
    JOINED,
    LEASED,
    LEAVING,
    LOANED,
    NONE,
    PUBLISHED,
    Config,
    State,
)


def who(config: Config, row: int) -> str:
    """Whose row it is."""
    return f"reader {row}" if row < config.readers else "the writer's caller"


@invariant("S1")
def in_use_is_current(config: Config, state: State) -> str | None:
    """No slot is claimed again while a view or a DMA of its earlier generation exists."""
    for rows in (state.refs, state.orphans):
        for reader, row in enumerate(rows):
            for slot, (phase, current) in enumerate(row):
                if not current and phase in (LEASED, DMA, EARLY):
                    use = "a view of it" if phase == LEASED else "its DMA running"
                    return f"slot {slot} is used again while {who(config, reader)} has {use}"
    return None


@invariant("S2")
def leased_is_complete(config: Config, state: State) -> str | None:
    """A reader never sees a payload that is not complete or not published."""
    for reader, row in enumerate(state.refs):
        for slot, (phase, _) in enumerate(row):
            if phase in (LEASED, DMA, EARLY):
                record = state.slots[slot]
                visible_as = (PUBLISHED,) if reader < config.readers else (PUBLISHED, LOANED)
                if not record.complete or record.owner not in visible_as:
                    return f"{who(config, reader)} sees slot {slot}, which is {record.owner}, complete: {record.complete}"
    return None


@invariant("S3")
def named_once(config: Config, state: State) -> str | None:
    """No slot is named twice in one message."""
    if len(set(state.pending)) < len(state.pending):
        return f"the message names slots {state.pending}"
    return None


@invariant("S4")
def no_leak(config: Config, state: State) -> str | None:
    """When nobody has anything to do any more, every slot is free."""
    if not is_quiet(state):
        return None
    leaked = [slot for slot in range(config.slots) if not config.is_free(config, state, slot)]
    return f"slot {leaked[0]} is not free though nobody has anything to do with it" if leaked else None


def is_quiet(state: State) -> bool:
    """No message under way, no reference left, and every death and every leave has been dealt with."""
    return (
        state.writer == IDLE
        and not state.pending
        and not any(ref.phase != NONE for rows in (state.refs, state.orphans) for row in rows for ref in row)
        and not any(state.quarantine)
        and not any(queue for queue, member in zip(state.queues, state.members, strict=True) if member == JOINED)
        and all(alive == (member != EMPTY) for alive, member in zip(state.alive, state.members, strict=True))
        and LEAVING not in state.members
    )


def all_free(config: Config, state: State) -> bool:
    """The writer has no message under way and may claim any slot."""
    return (
        state.writer == IDLE
        and not state.pending
        and all(config.is_free(config, state, slot) for slot in range(config.slots))
    )


DRAIN = Drain("D", demanded=lambda config, state: state.writer != DEAD, good=all_free)


@sometimes("every slot is in use")
def full(config: Config, state: State) -> bool:
    return not any(config.is_free(config, state, slot) for slot in range(config.slots))


@sometimes("all readers hold a view of the same slot")
def shared(config: Config, state: State) -> bool:
    return any(all(row[slot].phase == LEASED for row in state.refs) for slot in range(config.slots))


@sometimes("a DMA outlives its reader")
def outlived(config: Config, state: State) -> bool:
    rows = state.orphans if config.quarantine else state.refs
    return any(ref.phase == DMA for row, alive in zip(rows, state.alive, strict=True) if not alive for ref in row)


@sometimes("a message with as many tensors as it may have is in a queue")
def largest_message(config: Config, state: State) -> bool:
    return any(len(message) == min(config.tensors, config.slots) for queue in state.queues for message in queue)


@sometimes("a reader has a view after the writer's death")
def orphaned_view(config: Config, state: State) -> bool:
    return state.writer == DEAD and any(ref.phase == LEASED for row in state.refs for ref in row)


@sometimes("a reader is a member again while another one still has an older message")
def rejoined(config: Config, state: State) -> bool:
    return any(slot.owner == PUBLISHED and not all(slot.required[: config.readers]) for slot in state.slots) and all(
        state.alive
    )


INVARIANTS = (in_use_is_current, leased_is_complete, named_once, no_leak)
SOMETIMES: tuple[Sometimes, ...] = (full, shared, outlived, largest_message, orphaned_view, rejoined)
