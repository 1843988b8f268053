"""Loans, with the option `loans`: the caller of the writer fills a slot in place, and may put it into a message later.

The writer is then one more row, the last one, beside those of the readers: it holds what it has lent until the caller has
dropped the tensor, and a message that carries a loan waits for that row, too. An abort gives a loan back to its caller.
"""

from __future__ import annotations

from spec.model import action, put
from spec.models.message_slots_actions import abort, moved, stored_done, writer_death
from spec.models.message_slots_state import (
    DEAD,
    IDLE,
    IN_VIEW,
    LEASED,
    LOANED,
    NO_SLOT,
    PUBLISH,
    PUBLISHED,
    UNUSED,
    Config,
    Ref,
    Slot,
    State,
)


@action("writer", progress=False)
def loan(config: Config, state: State) -> State | None:
    """Lend the slot that was claimed for it, between two messages: from now on the caller's tensor holds it."""
    if state.writer != PUBLISH or state.pending:
        return None
    lent = lent_slot(config, state.slots[state.current])
    after = state._replace(writer=IDLE, current=NO_SLOT, slots=put(state.slots, state.current, lent))
    return moved(after, config.readers, state.current, Ref(LEASED, True))


def lent_slot(config: Config, slot: Slot) -> Slot:
    """The slot as its caller's, whom alone it waits for."""
    return slot._replace(owner=LOANED, required=(False,) * config.readers + (True,))


@action("writer", over=["slot"], part_of="publish", edge="[slot.gen]", progress=False)
def publish_loan(config: Config, state: State, slot: int) -> State | None:
    """The caller enqueues its tensor: the present members are required to release it, and so is the caller."""
    if state.writer != IDLE or len(state.pending) >= config.tensors or state.slots[slot].owner != LOANED:
        return None
    if state.refs[config.readers][slot].phase != LEASED:
        return None
    required = (*(member in IN_VIEW for member in state.members[: config.readers]), True)
    published = state.slots[slot]._replace(owner=PUBLISHED, required=required)
    return state._replace(pending=(*state.pending, slot), slots=put(state.slots, slot, published))


@action("writer", over=["slot"], part_of="release", edge="[slot.done]")
def release_loan(config: Config, state: State, slot: int) -> State | None:
    """The caller's last tensor over the loan is gone, sent or not: the writer's own row releases it."""
    row = config.readers
    if state.writer == DEAD or state.refs[row][slot].phase != LEASED:
        return None
    return moved(stored_done(state, row, slot, state.refs[row][slot].current), row, slot, UNUSED)


@action("writer", progress=False, name="abort")
def abort_with_loans(config: Config, state: State) -> State | None:
    """Give the message up: its slots go back, and its loans stay the caller's."""
    after: State | None = abort(config, state)
    if after is None:
        return None
    slots = after.slots
    for slot in state.pending:
        if state.slots[slot].required[config.readers]:
            slots = put(slots, slot, lent_slot(config, state.slots[slot]))
    return after._replace(slots=slots)


@action("writer", environment=True, progress=False, name="writer_death")
def writer_death_with_loans(config: Config, state: State) -> State | None:
    """The writer dies, and its own tensors with it."""
    after: State | None = writer_death(config, state)
    return None if after is None else after._replace(refs=put(after.refs, config.readers, (UNUSED,) * config.slots))


LOANS = (loan, publish_loan, release_loan, abort_with_loans, writer_death_with_loans)

# ---- faults


@action("writer", over=["slot"], progress=False, name="publish_loan")
def publish_loan_unheld(config: Config, state: State, slot: int) -> State | None:
    """Only the readers are required: the caller's own tensor is forgotten."""
    after: State | None = publish_loan(config, state, slot)
    if after is None:
        return None
    record = after.slots[slot]
    forgotten = record._replace(required=put(record.required, config.readers, False))
    return after._replace(slots=put(after.slots, slot, forgotten))


@action("writer", progress=False, name="abort")
def abort_frees_loans(config: Config, state: State) -> State | None:
    """All slots of the message go back, those of loans too."""
    return abort(config, state)


@action("writer", progress=False, name="abort")
def abort_forgets_loans(config: Config, state: State) -> State | None:
    """A loan of the message stays published, for readers that never hear of it."""
    after: State | None = abort(config, state)
    if after is None:
        return None
    kept = {slot for slot in state.pending if state.slots[slot].required[config.readers]}
    return after._replace(
        slots=tuple(state.slots[number] if number in kept else slot for number, slot in enumerate(after.slots))
    )
