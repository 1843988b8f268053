"""Message slots, for any number of slots, ranks, reader processes and messages: the invariant and its proof's actions.

A *grant* is one generation of one slot; a *reader* is one process, so a restarted reader is another reader on
the same *rank*.  Abstractions, all on the safe side: a reader's queue is a set without order or capacity, one
enqueue reaches all readers in one step, generations do not wrap.  Who may still act on what:

- the writer's death stops the writer only;
- a dead reader stores nothing any more, but a DMA that it started may run on until the quarantine ends;
- a reader that has left takes no new messages, but still owes what it leased.
"""

from __future__ import annotations

import z3

from spec.prove.logic import (
    Body,
    Formula,
    State,
    Step,
    Term,
    Theory,
    both,
    either,
    empty_except,
    forall,
    implies,
    no,
    nothing,
    relation,
)

Slot = z3.DeclareSort("Slot")
Rank = z3.DeclareSort("Rank")
Reader = z3.DeclareSort("Reader")
Grant = z3.DeclareSort("Grant")

slot_of = z3.Function("slot_of", Grant, Slot)
rank_of = z3.Function("rank_of", Reader, Rank)

WRITER, READER, DEVICE, KERNEL = "writer", "reader", "device", "kernel"
STAGES = ("filling", "pending", "sent", "freed")
PHASES = ("queued", "received", "viewed", "in_dma", "finished")


class MessageState(State):
    """Everything that the protocol of message slots knows, as relations."""

    writer_alive = relation(says="the writer is alive")
    # the writer's side of a grant
    current = relation(Slot, Grant, says="{0}'s generation is that of {1}")
    used = relation(Grant, says="{0} has been given out")
    filling = relation(Grant, says="the writer is filling {0}")
    complete = relation(Grant, says="the payload of {0} is complete")
    pending = relation(Grant, says="{0} is published in a message that is not out yet")
    sent = relation(Grant, says="the message with {0} is out")
    freed = relation(Grant, says="{0} was aborted")
    required = relation(Grant, Rank, says="{0} needs the release of {1}")
    quarantined = relation(Grant, Reader, says="{0} is quarantined because of the dead {1}")
    # the shared done words: one per (slot, rank); it holds at most one generation
    done = relation(Grant, Rank, says="the done word of {1} has the generation of {0}")
    # membership
    taken = relation(Rank, says="the entry of {0} is not EMPTY")
    counted = relation(Rank, says="the writer counts {0} in")
    member = relation(Reader, says="{0} owns its entry")
    started = relation(Reader, says="{0} has claimed its entry at some time")
    alive = relation(Reader, says="{0} is alive")
    left = relation(Reader, says="{0} has left")
    # a reader's reference to a grant, phase by phase
    queued = relation(Grant, Reader, says="{0} is in the queue of {1}")
    received = relation(Grant, Reader, says="{1} has received {0}")
    viewed = relation(Grant, Reader, says="{1} has views of {0}")
    in_dma = relation(Grant, Reader, says="a device of {1} reads {0}")
    finished = relation(Grant, Reader, says="{1} is done with {0} and has not said so yet")


def initial(now: MessageState) -> Formula:
    """The writer is alive and nothing has happened; readers come by joining."""
    return both(now.writer_alive(), empty_except(now, "writer_alive"))


MESSAGE_SLOTS: Theory[MessageState] = Theory("message_slots", MessageState, initial, sorts=(Slot, Rank, Reader, Grant))
action = MESSAGE_SLOTS.action


# ---- words used below ----------------------------------------------------------------------------


def refers(now: MessageState, grant: Term, reader: Term) -> Formula:
    """The reader, or its device, has anything to do with the grant."""
    return either(*[now.relations[phase](grant, reader) for phase in PHASES])


def is_current(now: MessageState, grant: Term) -> Formula:
    """The grant's slot has not been claimed again since."""
    return now.current(slot_of(grant), grant)


def owed(now: MessageState, grant: Term, rank: Term) -> Formula:
    """The grant still waits for this rank's release."""
    return both(now.required(grant, rank), no(now.done(grant, rank)))


def free(now: MessageState, slot: Term) -> Formula:
    """The slot may be claimed: aborted, or out and released by all that had to; and in no quarantine."""
    return forall(
        (Grant, Rank, Reader),
        lambda grant, rank, reader: implies(
            now.current(slot, grant),
            either(now.freed(grant), both(now.sent(grant), no(owed(now, grant, rank)))),
            no(now.quarantined(grant, reader)),
        ),
    )


def between_messages(now: MessageState) -> Formula:
    """The writer is not in the middle of a message."""
    return forall(Grant, lambda grant: no(either(now.filling(grant), now.pending(grant))))


# ---- actions of the writer -----------------------------------------------------------------------


@action(WRITER, Slot, Grant)
def claim(now: MessageState, slot: Term, grant: Term) -> Step:
    """The writer takes a free slot; its generation moves on to a grant that never was."""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "no other claim is open": forall(Grant, lambda other: no(now.filling(other))),
            "generation is new": both(no(now.used(grant)), slot_of(grant) == slot),
            "slot is free": free(now, slot),
        },
        {
            "used": now.used.plus(grant),
            "current": lambda s, g: z3.If(s == slot, g == grant, now.current(s, g)),
            "filling": now.filling.plus(grant),
        },
    )


@action(WRITER, Grant)
def copy(now: MessageState, grant: Term) -> Step:
    """The writer fills the extent: the payload is complete."""
    return Step(
        {"writer is alive": now.writer_alive(), "grant is open": now.filling(grant)},
        {"complete": now.complete.plus(grant)},
    )


@action(WRITER, Grant)
def publish(now: MessageState, grant: Term) -> Step:
    """The writer publishes the grant in its message: whoever is counted now owes a release."""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "grant is open": now.filling(grant),
            "payload is complete": now.complete(grant),
        },
        {
            "filling": now.filling.minus(grant),
            "pending": now.pending.plus(grant),
            "required": lambda g, rank: z3.If(g == grant, now.counted(rank), now.required(g, rank)),
        },
    )


@action(WRITER)
def enqueue(now: MessageState) -> Step:
    """The message goes out through the ring to every counted reader. [ring.publish]"""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "no claim is open": forall(Grant, lambda grant: no(now.filling(grant))),
        },
        {
            "pending": nothing,
            "sent": now.sent.union(now.pending),
            "queued": now.queued.union(
                lambda grant, reader: both(now.pending(grant), now.member(reader), now.counted(rank_of(reader)))
            ),
        },
    )


@action(WRITER)
def abort(now: MessageState) -> Step:
    """The message will not go out: every slot of it goes back, claimed and published ones alike."""
    return Step(
        {"writer is alive": now.writer_alive()},
        {
            "filling": nothing,
            "pending": nothing,
            "freed": now.freed.union(lambda grant: either(now.filling(grant), now.pending(grant))),
        },
    )


@action(WRITER, Reader)
def admit(now: MessageState, reader: Term) -> Step:
    """The writer counts a joiner in, between two messages. [member.admit]"""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "between two messages": between_messages(now),
            "entry is claimed": now.member(reader),
            "joiner is alive and stays": both(now.alive(reader), no(now.left(reader))),
        },
        {"counted": now.counted.plus(rank_of(reader))},
    )


@action(WRITER, Reader)
def drop_reader(now: MessageState, reader: Term) -> Step:
    """The writer sees LEFT, between two messages: what the reader never read it does not owe. [member.leave]"""

    def unread(grant: Term) -> Formula:
        return either(now.queued(grant, reader), now.received(grant, reader))

    return Step(
        {
            "writer is alive": now.writer_alive(),
            "between two messages": between_messages(now),
            "reader has left": both(now.member(reader), now.left(reader)),
        },
        {
            "counted": now.counted.minus(rank_of(reader)),
            "required": now.required.where(lambda grant, rank: no(both(rank == rank_of(reader), unread(grant)))),
            "queued": now.queued.where(lambda grant, owner: owner != reader),
        },
    )


@action(WRITER, Reader)
def reclaim(now: MessageState, reader: Term) -> Step:
    """A reader is proved dead: it owes nothing, its queue is gone, its entry is EMPTY; what it held is quarantined."""
    rank = rank_of(reader)
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "entry is claimed": now.member(reader),
            "reader is dead": no(now.alive(reader)),
        },
        {
            "member": now.member.minus(reader),
            "taken": now.taken.minus(rank),
            "counted": now.counted.minus(rank),
            "required": now.required.where(lambda grant, of: of != rank),
            "done": now.done.where(lambda grant, of: of != rank),
            "queued": now.queued.where(lambda grant, owner: owner != reader),
            "quarantined": now.quarantined.union(
                lambda grant, owner: both(owner == reader, is_current(now, grant), now.sent(grant), owed(now, grant, rank))
            ),
        },
    )


@action(WRITER, Reader)
def expire(now: MessageState, reader: Term) -> Step:
    """A dead reader's quarantine ends: by then the driver has stopped its DMA (the assumption of that time)."""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "its DMA has stopped": forall(
                Grant, lambda grant: no(both(now.quarantined(grant, reader), now.in_dma(grant, reader)))
            ),
        },
        {"quarantined": now.quarantined.where(lambda grant, owner: owner != reader)},
    )


# ---- actions of a reader -------------------------------------------------------------------------


@action(READER, Reader, part_of=None)
def join(now: MessageState, reader: Term) -> Step:
    """A new process claims the empty entry of its rank; it gets no messages before it is admitted. [member.claim]"""
    return Step(
        {
            "process is new": no(now.started(reader)),
            "entry is EMPTY": no(now.taken(rank_of(reader))),
        },
        {
            "started": now.started.plus(reader),
            "alive": now.alive.plus(reader),
            "member": now.member.plus(reader),
            "taken": now.taken.plus(rank_of(reader)),
        },
    )


@action(READER, Reader, part_of=None)
def leave(now: MessageState, reader: Term) -> Step:
    """A reader that lives on stores LEFT, between two records. [member.leave]"""
    return Step(
        {
            "reader is alive": both(now.alive(reader), now.member(reader)),
            "between two records": forall(Grant, lambda grant: no(now.received(grant, reader))),
        },
        {"left": now.left.plus(reader)},
    )


def _move(now: MessageState, grant: Term, reader: Term, old: str, new: str | None, **guards: Formula) -> Step:
    """One reference goes from one phase to the next, or away."""
    changes = {old: now.relations[old].minus(grant, reader)}
    if new is not None:
        changes[new] = now.relations[new].plus(grant, reader)
    return Step({f"grant is {old}": now.relations[old](grant, reader), **guards}, changes)


@action(READER, Grant, Reader)
def receive(now: MessageState, grant: Term, reader: Term) -> Step:
    """A reader takes a grant from its queue. [ring.publish]"""
    stays = both(now.alive(reader), no(now.left(reader)))
    return _move(now, grant, reader, "queued", "received").with_guard("reader is alive and stays", stays)


@action(READER, Grant, Reader)
def lease(now: MessageState, grant: Term, reader: Term) -> Step:
    """A reader maps a view of what it received."""
    return _move(now, grant, reader, "received", "viewed").with_guard("reader is alive", now.alive(reader))


@action(READER, Grant, Reader)
def discard(now: MessageState, grant: Term, reader: Term) -> Step:
    """A reader cannot use what it received: it owes the release all the same."""
    return _move(now, grant, reader, "received", "finished").with_guard("reader is alive", now.alive(reader))


@action(READER, Grant, Reader)
def drop(now: MessageState, grant: Term, reader: Term) -> Step:
    """The last view is gone and no gate is open."""
    return _move(now, grant, reader, "viewed", "finished").with_guard("reader is alive", now.alive(reader))


@action(READER, Grant, Reader, part_of="drop")
def drop_gated(now: MessageState, grant: Term, reader: Term) -> Step:
    """The last view is gone, but a device still reads the memory."""
    return _move(now, grant, reader, "viewed", "in_dma").with_guard("reader is alive", now.alive(reader))


@action(READER, Grant, Reader)
def release(now: MessageState, grant: Term, reader: Term) -> Step:
    """The reader stores the grant's generation in its done word, over whatever stood there. [slot.done]"""
    step = _move(now, grant, reader, "finished", None).with_guard("reader is alive", now.alive(reader))
    return step.with_change("done", store_done(now, grant, rank_of(reader)))


def store_done(now: MessageState, grant: Term, rank: Term) -> Body:
    """The done words after rank's word of the grant's slot got the grant's generation."""
    return lambda g, of: z3.If(both(of == rank, slot_of(g) == slot_of(grant)), g == grant, now.done(g, of))


# ---- the environment -----------------------------------------------------------------------------


@action(DEVICE, Grant, Reader, part_of=None)
def dma_complete(now: MessageState, grant: Term, reader: Term) -> Step:
    """The device is done and the gate of a living reader opens."""
    return _move(now, grant, reader, "in_dma", "finished").with_guard("reader is alive", now.alive(reader))


@action(DEVICE, Grant, Reader, part_of=None)
def dma_stop(now: MessageState, grant: Term, reader: Term) -> Step:
    """The device stops reading for a process that is dead."""
    return _move(now, grant, reader, "in_dma", None).with_guard("reader is dead", no(now.alive(reader)))


@action(KERNEL, part_of=None)
def writer_death(now: MessageState) -> Step:
    """The writer dies; the readers go on with what they have."""
    return Step({"writer is alive": now.writer_alive()}, {"writer_alive": nothing})


@action(KERNEL, Reader, part_of=None)
def reader_death(now: MessageState, reader: Term) -> Step:
    """A reader dies with all its views; a DMA that it started may run on."""

    def of_others(grant: Term, owner: Term) -> Formula:
        return owner != reader

    return Step(
        {"reader is alive": now.alive(reader)},
        {
            "alive": now.alive.minus(reader),
            "received": now.received.where(of_others),
            "viewed": now.viewed.where(of_others),
            "finished": now.finished.where(of_others),
        },
    )
