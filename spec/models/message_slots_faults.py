"""Message slots done wrong: what each fault changes, the property that it breaks, and how soon.

Most of these are natural designs, not slips. Some changes turn out to do no harm; they are here too, because it is good
to know what the protocol does not depend on. Designs with boolean flags instead of generations are in
`message_slots_flags`.
"""

from __future__ import annotations

from dataclasses import replace

from spec.model import Variant, action, put
from spec.models.message_slots_actions import abort, has_room, joined, moved, stored_done, taken_out
from spec.models.message_slots_flags import flagged
from spec.models.message_slots_loans import abort_forgets_loans, abort_frees_loans, publish_loan_unheld
from spec.models.message_slots_state import (
    DEAD,
    DMA,
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
    PUBLISHED,
    RECEIVED,
    UNUSED,
    Config,
    Entry,
    Ref,
    Slot,
    State,
    is_free,
)

# ---- releasing


@action("reader {reader}", over=["reader", "slot"], name="drop")
def drop_releases(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The done word is stored as soon as the last view is gone, while the device still reads the memory."""
    ref = state.refs[reader][slot]
    if ref.phase != LEASED or not state.alive[reader]:
        return None
    return moved(stored_done(state, reader, slot, ref.current), reader, slot, Ref(EARLY, ref.current))


@action("reader {reader}", over=["reader", "slot"])
def forget(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The reader raises between receive and lease, and nothing remembers the slot."""
    ref = state.refs[reader][slot]
    return moved(state, reader, slot, UNUSED) if ref.phase == RECEIVED and state.alive[reader] else None


# ---- deaths and members


@action("writer", over=["reader"], name="reclaim")
def reclaim_by_lock(config: Config, state: State, reader: int) -> State | None:
    """The death signal is a lock that the dying process drops before its DMA is over."""
    if state.writer == DEAD or state.members[reader] == EMPTY or state.alive[reader]:
        return None
    return taken_out(config, state, reader)._replace(queues=put(state.queues, reader, ()))


@action("writer", over=["reader"], name="reclaim")
def reclaim_by_timeout(config: Config, state: State, reader: int) -> State | None:
    """A reader that has not moved for a while is taken for dead; it may only be slow."""
    return None if state.writer == DEAD or state.members[reader] == EMPTY else taken_out(config, state, reader)


@action("writer", over=["reader"], name="reclaim")
def reclaim_keeps_queue(config: Config, state: State, reader: int) -> State | None:
    """The dead reader's queue is left for its successor on the rank."""
    if state.writer == DEAD or state.members[reader] == EMPTY or state.alive[reader]:
        return None
    if any(ref.phase in (DMA, EARLY) for ref in state.refs[reader]):
        return None
    return taken_out(config, state, reader)


@action("reader {reader}", over=["reader", "slot"], name="lease")
def lease_unchecked(config: Config, state: State, reader: int, slot: int) -> State | None:
    """Map a view without a look at the generation."""
    ref = state.refs[reader][slot]
    return moved(state, reader, slot, Ref(LEASED, ref.current)) if ref.phase == RECEIVED and state.alive[reader] else None


@action("writer", over=["reader"], name="admit")
def admit_any_time(config: Config, state: State, reader: int) -> State | None:
    """A joiner becomes a member in the middle of a message, some of whose slots do not require it."""
    return None if state.writer == DEAD else joined(state, reader)


@action("reader {reader}", over=["reader"], name="reader_death")
def death_leaves_fork(config: Config, state: State, reader: int) -> State | None:
    """The reader dies, and a child that it has forked keeps its views."""
    if not state.alive[reader]:
        return None
    kept = tuple(ref if ref.phase in (LEASED, DMA) else UNUSED for ref in state.refs[reader])
    return state._replace(alive=put(state.alive, reader, False), refs=put(state.refs, reader, kept))


@action("writer")
def reattach(config: Config, state: State) -> State | None:
    """A new writer attaches to the old arena and believes its flags: what was published is still in use."""
    if state.writer != DEAD:
        return None
    nobody = (False,) * config.readers
    slots = tuple(slot if slot.owner == PUBLISHED else Slot(FREE, False, nobody, nobody) for slot in state.slots)
    return state._replace(writer=IDLE, slots=slots)


def is_free_for_members(config: Config, state: State, slot: int) -> bool:
    """The slot is free when every *present* member has released it, required or not."""
    required = tuple(member != EMPTY for member in state.members)
    asked = state._replace(slots=put(state.slots, slot, state.slots[slot]._replace(required=required)))
    return is_free(config, asked, slot)


def is_free_when_pending(config: Config, state: State, slot: int) -> bool:
    """A slot that nobody is required to release is free, even if the message that names it is not out yet."""
    return is_free(config, state._replace(pending=()), slot)


# ---- messages and their abort


@action("writer", name="abort")
def abort_forgets(config: Config, state: State) -> State | None:
    """Only the slot that is being filled goes back, not those already published for the message."""
    if state.writer == DEAD or not (state.pending or state.current != NO_SLOT):
        return None
    nobody = (False,) * config.readers
    slots = state.slots
    if state.current != NO_SLOT:
        slots = put(slots, state.current, Slot(FREE, False, nobody, nobody))
    return state._replace(writer=IDLE, current=NO_SLOT, pending=(), slots=slots)


SEND = "send {}"  # the writer's phase while it puts the message into one reader's ring after the other


@action("writer", name="enqueue")
def start_sending(config: Config, state: State) -> State | None:
    """Each reader has a ring of its own; there is room in all of them, so the writer starts with the first."""
    if state.writer != IDLE or not state.pending or not has_room(config, state):
        return None
    return state._replace(writer=SEND.format(0))


@action("writer", over=["reader"])
def send(config: Config, state: State, reader: int) -> State | None:
    """Put the message into one reader's ring."""
    if state.writer != SEND.format(reader):
        return None
    is_last = reader + 1 == config.readers
    queues = state.queues
    if state.members[reader] in IN_VIEW:
        message = tuple(Entry(slot, True) for slot in state.pending)
        queues = put(queues, reader, (*queues[reader], message))
    return state._replace(
        writer=IDLE if is_last else SEND.format(reader + 1), pending=() if is_last else state.pending, queues=queues
    )


@action("writer", name="abort")
def abort_before_sending(config: Config, state: State) -> State | None:
    """Abort, but not once the first reader has the message."""
    if state.writer.startswith("send") and state.writer != SEND.format(0):
        return None
    return abort(config, state)


# ---- leaving


def left(state: State, reader: int, slots: tuple[Slot, ...]) -> State:
    """The writer has seen that the reader has left."""
    return state._replace(members=put(state.members, reader, LEFT), slots=slots, queues=put(state.queues, reader, ()))


@action("writer", over=["reader"], name="drop_reader")
def drop_reader_everywhere(config: Config, state: State, reader: int) -> State | None:
    """A reader that has left is required nowhere, not even for what it has leased."""
    if state.members[reader] != LEAVING or state.writer != IDLE or state.pending:
        return None
    return left(state, reader, tuple(s._replace(required=put(s.required, reader, False)) for s in state.slots))


@action("writer", over=["reader"], name="drop_reader")
def drop_reader_nowhere(config: Config, state: State, reader: int) -> State | None:
    """A reader that has left stays required for the records that it will never read."""
    if state.members[reader] != LEAVING or state.writer != IDLE or state.pending:
        return None
    return left(state, reader, state.slots)


@action("writer", name="enqueue")
def enqueue_rereads(config: Config, state: State) -> State | None:
    """The members are looked up again for the message; one may have left since its slots were published."""
    if state.writer != IDLE or not state.pending or not has_room(config, state):
        return None
    message = tuple(Entry(slot, True) for slot in state.pending)
    queues = tuple(
        (*queue, message) if member == JOINED else queue for queue, member in zip(state.queues, state.members, strict=True)
    )
    return state._replace(pending=(), queues=queues)


# ---- quarantine


@action("writer", over=["reader", "slot"], name="expire")
def expire_too_soon(config: Config, state: State, reader: int, slot: int) -> State | None:
    """The quarantine is shorter than the time that a dead process's DMA may go on."""
    if state.writer == DEAD or slot not in state.quarantine[reader]:
        return None
    fenced = tuple(number for number in state.quarantine[reader] if number != slot)
    return state._replace(quarantine=put(state.quarantine, reader, fenced))


# ---- variants

BASE = Config()
LEAVE = Config(leave=True)
LOANED = Config(loans=True)
FLAGS = flagged()

VARIANTS = {
    "release-before-dma": Variant(
        "release when the last view is gone, though a DMA still reads",
        replace(BASE, changed=(drop_releases,)),
        "S1",
        10,
    ),
    "death-by-lock": Variant(
        "take a dropped lock for a death; DMA may still run", replace(BASE, changed=(reclaim_by_lock,)), "S1", 12
    ),
    "reclaim-on-timeout": Variant(
        "reclaim a reader that is only slow", replace(BASE, changed=(reclaim_by_timeout,)), "S1", 9
    ),
    "reclaim-on-timeout-flags": Variant(
        "the same, with boolean flags", replace(FLAGS, changed=(*FLAGS.changed, reclaim_by_timeout)), "S1", 11
    ),
    "inherited-queue-unchecked": Variant(
        "a restarted reader reads the old queue, without a generation check",
        replace(BASE, changed=(reclaim_keeps_queue, lease_unchecked), without=("discard",)),
        "S1",
        12,
    ),
    "inherited-queue": Variant(
        "a restarted reader reads the old queue; a reused slot passes its check first and is mapped after",
        replace(BASE, changed=(reclaim_keeps_queue,)),
        "S1",
        12,
    ),
    "free-for-members": Variant(
        "the free test asks the present members, not the slot's own set",
        replace(BASE, is_free=is_free_for_members),
        "S4",
        9,
    ),
    "join-any-time": Variant(
        "a reader joins in the middle of a message", replace(BASE, changed=(admit_any_time,)), "S1", 12
    ),
    "free-when-pending": Variant(
        "with all readers dead, a slot of the unsent message counts as free",
        replace(BASE, is_free=is_free_when_pending),
        "S3",
        10,
    ),
    "abort-forgets": Variant(
        "abort forgets slots already published for the message", replace(BASE, changed=(abort_forgets,)), "S4", 4
    ),
    "abort-between-rings": Variant(
        "one ring per reader, and abort when some already have the message",
        replace(BASE, changed=(start_sending, send), symmetric=False),
        "S2",
        8,
    ),
    "forget-after-raise": Variant(
        "a reader that raises between receive and lease forgets the slot", replace(BASE, changed=(forget,)), "S4", 8
    ),
    "forked-child": Variant(
        "a forked child of a killed reader keeps the view", replace(BASE, changed=(death_leaves_fork,)), "S1", 11
    ),
    "reattached-writer": Variant(
        "a new writer attaches to the old arena and believes its flags", replace(BASE, changed=(reattach,)), "S4", 5
    ),
    "flags-sent-before-reset": Variant(
        "boolean flags: the message is out before the done flags are reset",
        flagged("copy", "publish", "send", "reset 0", "reset 1", tensors=1),
        "S4",
        12,
    ),
    "flags-set-before-copy": Variant(
        "boolean flags: the slot is published before its copy is complete",
        flagged("publish", "send", "copy", "reset 0", "reset 1", tensors=1),
        "S2",
        5,
    ),
    "left-owes-nothing": Variant(
        "a reader that has left is required nowhere",
        replace(LEAVE, changed=(drop_reader_everywhere,)),
        "S1",
        11,
    ),
    "left-owes-unread": Variant(
        "a reader that has left stays required for what it never reads",
        replace(LEAVE, changed=(drop_reader_nowhere,)),
        "S4",
        8,
    ),
    "left-seen-mid-message": Variant(
        "the members are looked up again in the middle of a message",
        replace(LEAVE, changed=(enqueue_rereads,)),
        "S4",
        8,
    ),
    "quarantine-too-short": Variant(
        "the quarantine ends before a dead reader's DMA does",
        Config(quarantine=True, changed=(expire_too_soon,)),
        "S1",
        13,
    ),
    "loan-not-held": Variant(
        "a loan's message waits for its readers only, not for the caller's own tensor",
        replace(LOANED, changed=(publish_loan_unheld,)),
        "S2",
        5,
    ),
    "abort-frees-loans": Variant(
        "abort frees a loan under its caller's tensor", replace(LOANED, changed=(abort_frees_loans,)), "S2", 5
    ),
    "abort-forgets-loans": Variant(
        "abort leaves a loan published, for readers that never hear of it",
        replace(LOANED, changed=(abort_forgets_loans,)),
        "S4",
        6,
    ),
    # ---- what does no harm
    "leave": Variant("a reader may leave and live on", LEAVE),
    "quarantine": Variant("DMA may outlive the death signal; what the dead one owed is fenced", Config(quarantine=True)),
    "skip": Variant("a reader may skip a message", Config(skip=True)),
    "loans": Variant("the writer lends slots, and its messages may carry them", LOANED),
    "no-rejoin": Variant("dead ranks stay empty", replace(BASE, without=("admit",))),
    "unchecked": Variant(
        "no generation check: it is a second line of defence",
        replace(BASE, changed=(lease_unchecked,), without=("discard",)),
    ),
    "flags": Variant("boolean flags, reset before the slot is published", FLAGS),
    "flags-set-before-reset": Variant(
        "boolean flags, published before the reset, message last",
        flagged("copy", "publish", "reset 0", "reset 1", "send", tensors=1),
    ),
    "flags-reset-first": Variant(
        "boolean flags, reset before the copy, message last",
        flagged("reset 0", "reset 1", "copy", "publish", "send", tensors=1),
    ),
    "ring-per-reader": Variant(
        "one ring per reader, room in all first, no abort once the first has the message",
        replace(BASE, changed=(start_sending, send, abort_before_sending), symmetric=False),
    ),
}
