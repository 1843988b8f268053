"""The actions of the message-slot model: those of the writer, then those of the readers and the device."""

from __future__ import annotations

from functools import partial

from spec.model import action, put
from spec.models.message_slots_state import (
    CLAIMED,
    COPY,
    DEAD,
    DMA,
    DROPPED,
    EARLY,
    EMPTY,
    FREE,
    IDLE,
    IN_VIEW,
    JOINED,
    LEASED,
    LEAVING,
    LEFT,
    NO_SLOT,
    NONE,
    PUBLISH,
    PUBLISHED,
    RECEIVED,
    STALE,
    UNUSED,
    Config,
    Entry,
    Message,
    Ref,
    Slot,
    State,
)

# ---- the writer


@action("writer", over=["slot"], edge=["[slot.done]", "[slot.gen]"], progress=False)
def claim(config: Config, state: State, slot: int) -> State | None:
    """Take a free slot for the next tensor. Its generation moves on, so every older reference is stale."""
    if state.writer != IDLE or len(state.pending) >= config.tensors or not config.is_free(config, state, slot):
        return None
    nobody = (False,) * config.rows
    return state._replace(
        writer=COPY,
        current=slot,
        slots=put(state.slots, slot, Slot(CLAIMED, False, nobody, nobody)),
        refs=tuple(put(row, slot, STALE[row[slot]]) for row in state.refs),
        orphans=tuple(put(row, slot, STALE[row[slot]]) if row else row for row in state.orphans),
        queues=tuple(tuple(map(partial(outdated, slot), queue)) for queue in state.queues),
    )


def outdated(slot: int, message: Message) -> Message:
    """The message after the slot has moved on to its next generation."""
    return tuple(Entry(slot, False) if entry.slot == slot else entry for entry in message)


@action("writer")
def copy(config: Config, state: State) -> State | None:
    """Copy the tensor into the slot's extent (or let the caller fill the loan)."""
    if state.writer != COPY:
        return None
    slot = state.slots[state.current]
    return state._replace(writer=PUBLISH, slots=put(state.slots, state.current, slot._replace(complete=True)))


@action("writer", edge="[slot.gen]")
def publish(config: Config, state: State) -> State | None:
    """The payload is complete: from now on the present members are required to release this slot."""
    if state.writer != PUBLISH:
        return None
    required = tuple(member in IN_VIEW for member in state.members)
    slot = state.slots[state.current]._replace(owner=PUBLISHED, required=required)
    return state._replace(
        writer=IDLE,
        current=NO_SLOT,
        pending=(*state.pending, state.current),
        slots=put(state.slots, state.current, slot),
    )


@action("writer", edge="[ring.publish]")
def enqueue(config: Config, state: State) -> State | None:
    """Send the message that names the slots to every member; there has to be room for it in every queue."""
    if state.writer != IDLE or not state.pending or not has_room(config, state):
        return None
    message = tuple(Entry(slot, True) for slot in state.pending)
    queues = tuple(
        (*queue, message) if member in IN_VIEW else queue for queue, member in zip(state.queues, state.members, strict=True)
    )
    return state._replace(pending=(), queues=queues)


def has_room(config: Config, state: State) -> bool:
    """Every member's queue can take one more message."""
    return all(
        len(queue) < config.queue for queue, member in zip(state.queues, state.members, strict=True) if member in IN_VIEW
    )


@action("writer", progress=False)
def abort(config: Config, state: State) -> State | None:
    """Give the message up before it is out: all its slots go back, claimed and published ones alike."""
    if state.writer == DEAD or not (state.pending or state.current != NO_SLOT):
        return None
    nobody = (False,) * config.rows
    slots = state.slots
    for slot in (*state.pending, state.current):
        if slot != NO_SLOT:
            slots = put(slots, slot, Slot(FREE, False, nobody, nobody))
    return state._replace(writer=IDLE, current=NO_SLOT, pending=(), slots=slots)


@action("writer", over=["reader"], edge="[member.reclaim]")
def reclaim(config: Config, state: State, reader: int) -> State | None:
    """A pidfd has proved the death: the reader is required nowhere any more and its queue is dropped.

    Without the quarantine option the signal comes only when the dead process's DMA is over, as a driver that stops
    it in its exit path would guarantee. With it the signal may come earlier, and what the reader owed is fenced off.
    """
    if state.writer == DEAD or state.members[reader] == EMPTY or state.alive[reader]:
        return None
    if any(ref.phase in (DMA, EARLY) for ref in state.refs[reader]):
        return None
    return taken_out(config, state, reader)._replace(queues=put(state.queues, reader, ()))


def taken_out(config: Config, state: State, reader: int) -> State:
    """The state after the reader has left the writer's view and every required set."""
    fenced = state.quarantine
    if config.quarantine:
        fenced = put(fenced, reader, tuple(sorted({*fenced[reader], *owed(state, reader)})))
    slots = tuple(slot._replace(required=put(slot.required, reader, False)) for slot in state.slots)
    return state._replace(members=put(state.members, reader, EMPTY), slots=slots, quarantine=fenced)


def owed(state: State, reader: int) -> list[int]:
    """The slots that are out and that the reader has not released."""
    return [
        number
        for number, slot in enumerate(state.slots)
        if slot.owner == PUBLISHED and number not in state.pending and slot.required[reader] and not slot.done[reader]
    ]


@action("writer", over=["reader", "slot"])
def expire(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The quarantine of a dead reader's slot ends. The assumption: its DMA has stopped by then."""
    if state.writer == DEAD or slot not in state.quarantine[reader] or state.orphans[reader][slot] != UNUSED:
        return None
    fenced = tuple(number for number in state.quarantine[reader] if number != slot)
    return state._replace(quarantine=put(state.quarantine, reader, fenced))


@action("writer", over=["reader"], edge="[member.admit]", progress=False)
def admit(config: Config, state: State, reader: int) -> State | None:
    """A new process joins on the rank of a dead reader, with an empty queue, and only between two messages."""
    if state.writer != IDLE or state.pending:
        return None
    return joined(state, reader)


def joined(state: State, reader: int) -> State | None:
    """The state after a new process has joined on the rank; None where the rank is still taken."""
    if state.members[reader] != EMPTY or state.alive[reader] or any(ref.phase != NONE for ref in state.refs[reader]):
        return None
    return state._replace(alive=put(state.alive, reader, True), members=put(state.members, reader, JOINED))


@action("writer", over=["reader"], edge="[member.leave]")
def drop_reader(config: Config, state: State, reader: int) -> State | None:
    """Between two messages the writer sees that a reader has left: it will never read what waits in its queue.

    The slots of those records no longer wait for it; what it has leased it still owes.
    """
    if state.members[reader] != LEAVING or state.writer != IDLE or state.pending:
        return None
    unread = {entry.slot for message in state.queues[reader] for entry in message if entry.current}
    slots = tuple(
        slot._replace(required=put(slot.required, reader, False)) if number in unread else slot
        for number, slot in enumerate(state.slots)
    )
    return state._replace(members=put(state.members, reader, LEFT), slots=slots, queues=put(state.queues, reader, ()))


@action("writer", environment=True, progress=False)
def writer_death(config: Config, state: State) -> State | None:
    """The writer dies. Nothing shared changes: leases that exist stay valid."""
    if state.writer == DEAD:
        return None
    return state._replace(writer=DEAD, current=NO_SLOT, pending=())


# ---- the readers


def moved(state: State, reader: int, slot: int, ref: Ref) -> State:
    """The state after what the reader has to do with the slot has changed."""
    return state._replace(refs=put(state.refs, reader, put(state.refs[reader], slot, ref)))


@action("reader {reader}", over=["reader"], part_of="read", edge="[ring.publish]")
def receive(config: Config, state: State, reader: int) -> State | None:
    """Take the next message; its header names the slots that this reader now has to release."""
    queue = state.queues[reader]
    if not queue or not state.alive[reader] or state.members[reader] in (LEAVING, LEFT):
        return None
    row = state.refs[reader]
    if any(row[entry.slot].phase != NONE for entry in queue[0]):
        return None
    for entry in queue[0]:
        row = put(row, entry.slot, Ref(RECEIVED, entry.current))
    return state._replace(refs=put(state.refs, reader, row), queues=put(state.queues, reader, queue[1:]))


@action("reader {reader}", over=["reader", "slot"], edge="[slot.gen]")
def lease(config: Config, state: State, reader: int, slot: int) -> State | None:
    """Map a view of the slot, after a check that its generation is the one that the message named."""
    ref = state.refs[reader][slot]
    if ref.phase != RECEIVED or not ref.current or not state.alive[reader]:
        return None
    return moved(state, reader, slot, Ref(LEASED, True))


@action("reader {reader}", over=["reader", "slot"], part_of="lease", edge="[slot.gen]", defensive=True)
def discard(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The slot has another generation than the message said: refuse it. The protocol never gets here."""
    ref = state.refs[reader][slot]
    if ref.phase != RECEIVED or ref.current or not state.alive[reader]:
        return None
    return moved(state, reader, slot, UNUSED)


@action("reader {reader}", over=["reader", "slot"], part_of="drop")
def skip(config: Config, state: State, reader: int, slot: int) -> State | None:
    """Skip a received slot, say because the message does not unpickle: it is released like any other."""
    ref = state.refs[reader][slot]
    if ref.phase != RECEIVED or not state.alive[reader]:
        return None
    return moved(state, reader, slot, Ref(DROPPED, ref.current))


@action("reader {reader}", over=["reader", "slot", "gated"])
def drop(config: Config, state: State, reader: int, slot: int, gated: bool) -> State | None:
    """The last view of the slot goes away; `gated` if the device still has to read the memory."""
    ref = state.refs[reader][slot]
    if ref.phase != LEASED or not state.alive[reader]:
        return None
    return moved(state, reader, slot, Ref(DMA if gated else DROPPED, ref.current))


@action("device", over=["reader", "slot"], environment=True)
def dma_complete(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The device has read the memory, and the gate opens. It also does so for a reader that has died."""
    ref = state.refs[reader][slot]
    if ref.phase not in (DMA, EARLY):
        return None
    owes = ref.phase == DMA and state.alive[reader]
    return moved(state, reader, slot, Ref(DROPPED, ref.current) if owes else UNUSED)


@action("device", over=["reader", "slot"], environment=True)
def orphan_dma_complete(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The device has finished, or the driver has stopped, the DMA of a reader that died."""
    if state.orphans[reader][slot] == UNUSED:
        return None
    return state._replace(orphans=put(state.orphans, reader, put(state.orphans[reader], slot, UNUSED)))


@action("reader {reader}", over=["reader", "slot"], edge="[slot.done]")
def release(config: Config, state: State, reader: int, slot: int) -> State | None:
    """Store the leased generation into this reader's done word: a store of an old one changes nothing."""
    ref = state.refs[reader][slot]
    if ref.phase != DROPPED or not state.alive[reader]:
        return None
    return moved(stored_done(state, reader, slot, ref.current), reader, slot, UNUSED)


def stored_done(state: State, reader: int, slot: int, done: bool) -> State:
    """The state after the reader has overwritten its done word of the slot."""
    record = state.slots[slot]
    return state._replace(slots=put(state.slots, slot, record._replace(done=put(record.done, reader, done))))


@action("reader {reader}", over=["reader"], edge="[member.leave]", progress=False)
def leave(config: Config, state: State, reader: int) -> State | None:
    """The reader calls shutdown() and lives on: it takes no more messages but keeps its leases."""
    if not state.alive[reader] or state.members[reader] != JOINED:
        return None
    if any(ref.phase == RECEIVED for ref in state.refs[reader]):
        return None
    return state._replace(members=put(state.members, reader, LEAVING))


@action("reader {reader}", over=["reader"], environment=True, progress=False)
def reader_death(config: Config, state: State, reader: int) -> State | None:
    """The reader's process dies, at any moment. Its views go with it; a DMA that it has started does not."""
    if not state.alive[reader]:
        return None
    running = tuple(ref if ref.phase in (DMA, EARLY) else UNUSED for ref in state.refs[reader])
    alive = put(state.alive, reader, False)
    if not config.quarantine:
        return state._replace(alive=alive, refs=put(state.refs, reader, running))
    orphans = tuple(old if new == UNUSED else new for old, new in zip(state.orphans[reader], running, strict=True))
    nothing = (UNUSED,) * config.slots
    return state._replace(alive=alive, refs=put(state.refs, reader, nothing), orphans=put(state.orphans, reader, orphans))


ACTIONS = (
    claim,
    copy,
    publish,
    enqueue,
    abort,
    reclaim,
    admit,
    writer_death,
    receive,
    lease,
    discard,
    drop,
    dma_complete,
    release,
    reader_death,
)
