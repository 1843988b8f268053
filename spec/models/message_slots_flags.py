"""Message slots with boolean done flags, which have to be reset, instead of generations, which do not.

The writer goes through a program of steps for every slot. Which orders of these steps are right is a question that
generations do not even raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec.model import Action, action, put
from spec.models.message_slots_actions import claim, has_room, moved, stored_done
from spec.models.message_slots_state import (
    DEAD,
    DROPPED,
    FREE,
    IDLE,
    IN_VIEW,
    NO_SLOT,
    PUBLISHED,
    UNUSED,
    Config,
    Entry,
    Slot,
    State,
)

RESET = "reset {}"
USUAL_ORDER = ("copy", RESET.format(0), RESET.format(1), "publish")


def flagged(*order: str, **fields: Any) -> Config:
    """A configuration with flags for two readers, whose writer takes these steps for every slot.

    Where "send" is one of them, the slot is a message of its own and cannot be aborted.
    """
    order = order or USUAL_ORDER
    steps = tuple(step_of(order, name) for name in order)
    without = ("abort", "enqueue") if "send" in order else ()
    return Config(**fields, symmetric=False, without=without, changed=(claim_of(order), abort, release, *steps))


def claim_of(order: tuple[str, ...]) -> Action:
    """A claim that leaves the flags as they are and goes on with the first step of the order."""

    @action("writer", over=["slot"], name="claim", progress=False)
    def claim_keeps_flags(config: Config, state: State, slot: int) -> State | None:
        after = claim(config, state, slot)
        if after is None:
            return None
        record = after.slots[slot]._replace(done=state.slots[slot].done)
        return after._replace(writer=order[0], slots=put(after.slots, slot, record))  # type: ignore[no-any-return]

    return claim_keeps_flags


def step_of(order: tuple[str, ...], name: str) -> Action:
    """One step of the writer's program; after the last one the slot is done with, or waits for its message."""
    following = dict(zip(order, (*order[1:], IDLE), strict=True))[name]
    effect, waits = EFFECTS[name], "send" not in order

    @action("writer", name=name)
    def step(config: Config, state: State) -> State | None:
        after = effect(config, state) if state.writer == name else None
        if after is None or following != IDLE:
            return after and after._replace(writer=following)
        pending = (*state.pending, state.current) if waits else ()
        return after._replace(writer=IDLE, current=NO_SLOT, pending=pending)

    return step


def filled(state: State, **changes: Any) -> State:
    """The state after the slot that is being filled has changed."""
    return state._replace(slots=put(state.slots, state.current, state.slots[state.current]._replace(**changes)))


def copy(config: Config, state: State) -> State:
    return filled(state, complete=True)


def publish(config: Config, state: State) -> State:
    return filled(state, owner=PUBLISHED, required=tuple(member in IN_VIEW for member in state.members))


def reset(reader: int) -> Callable[[Config, State], State]:
    return lambda config, state: filled(state, done=put(state.slots[state.current].done, reader, False))


def send(config: Config, state: State) -> State | None:
    message = (Entry(state.current, True),)
    queues = tuple(
        (*queue, message) if member in IN_VIEW else queue for queue, member in zip(state.queues, state.members, strict=True)
    )
    return state._replace(queues=queues) if has_room(config, state) else None


EFFECTS: dict[str, Callable[[Config, State], State | None]] = {
    "copy": copy,
    "publish": publish,
    "send": send,
    **{RESET.format(reader): reset(reader) for reader in range(2)},
}


@action("writer", progress=False)
def abort(config: Config, state: State) -> State | None:
    """Give the message up; the flags stay as they are."""
    if state.writer == DEAD or not (state.pending or state.current != NO_SLOT):
        return None
    slots = state.slots
    for slot in (*state.pending, state.current):
        if slot != NO_SLOT:
            slots = put(slots, slot, Slot(FREE, False, slots[slot].done, (False,) * config.readers))
    return state._replace(writer=IDLE, current=NO_SLOT, pending=(), slots=slots)


@action("reader {reader}", over=["reader", "slot"])
def release(config: Config, state: State, reader: int, slot: int) -> State | None:
    """Set this reader's flag, whatever generation it had leased."""
    ref = state.refs[reader][slot]
    if ref.phase != DROPPED or not state.alive[reader]:
        return None
    return moved(stored_done(state, reader, slot, True), reader, slot, UNUSED)
