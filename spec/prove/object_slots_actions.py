"""Object slots, for any number of slots, ranks, reader processes, objects and leases: the invariant and the actions.

An *object* is one generation of one slot; a *lease* here is one get in flight or one hold that came of it.  A
reader announces itself by storing the generation in its hold word and then checks the slot's generation again:
a hazard pointer.  The word exists twice here, as its reader sees it and as the writer sees it; `flush` makes
them agree at any time, so the only order that the proof relies on is the one that `announce` names.

Handles are any object ever published, tried by any reader, at any time, any number of times.  Rows are scanned
whether or not their reader has been admitted, so admission plays no part: a reader may get as soon as it joins.
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
Object = z3.DeclareSort("Object")
Lease = z3.DeclareSort("Lease")

slot_of = z3.Function("slot_of", Object, Slot)
rank_of = z3.Function("rank_of", Reader, Rank)
object_of = z3.Function("object_of", Lease, Object)
reader_of = z3.Function("reader_of", Lease, Reader)

WRITER, READER, DEVICE, KERNEL = "writer", "reader", "device", "kernel"
STAGES = ("filling", "live", "draining", "freed")
PHASES = ("checking", "viewed", "in_dma", "finished")


class ObjectState(State):
    """Everything that the protocol of object slots knows, as relations."""

    writer_alive = relation(says="the writer is alive")
    # the writer's side of an object
    newest = relation(Slot, Object, says="{1} is the newest object of {0}")
    used = relation(Object, says="{0} has been given out")
    filling = relation(Object, says="the writer is filling {0}")
    complete = relation(Object, says="the payload of {0} is complete")
    live = relation(Object, says="{0} is live")
    draining = relation(Object, says="{0} is evicted and draining")
    freed = relation(Object, says="{0} is gone and its slot free")
    cleared = relation(Object, Rank, says="the scan of {0} has passed {1}")
    quarantined = relation(Object, Reader, says="{0} is quarantined because of the dead {1}")
    # shared words
    is_open = relation(Object, says="the generation word of its slot is that of {0}")
    issued = relation(Object, says="handles of {0} are about")
    word = relation(Object, Rank, says="{1} sees its own hold word naming {0}")
    seen = relation(Object, Rank, says="the writer sees the hold word of {1} naming {0}")
    # membership
    taken = relation(Rank, says="the entry of {0} is not EMPTY")
    member = relation(Reader, says="{0} owns its entry")
    started = relation(Reader, says="{0} has claimed its entry at some time")
    alive = relation(Reader, says="{0} is alive")
    # a lease, phase by phase
    begun = relation(Lease, says="{0} has begun")
    checking = relation(Lease, says="{0} is announced and about to check again")
    viewed = relation(Lease, says="there are views of {0}")
    in_dma = relation(Lease, says="a device reads under {0}")
    finished = relation(Lease, says="{0} is over and its release still to come")


def initial(now: ObjectState) -> Formula:
    """The writer is alive and nothing has happened; readers come by joining."""
    return both(now.writer_alive(), empty_except(now, "writer_alive"))


OBJECT_SLOTS: Theory[ObjectState] = Theory("object_slots", ObjectState, initial, sorts=(Slot, Rank, Reader, Object, Lease))
action = OBJECT_SLOTS.action


# ---- words used below ----------------------------------------------------------------------------


def in_hand(now: ObjectState, lease: Term) -> Formula:
    """The lease exists: a get in flight, a hold, or a hold that is about to end."""
    return either(*[now.relations[phase](lease) for phase in PHASES])


def valid(now: ObjectState, lease: Term) -> Formula:
    """The get has succeeded and the hold has not been released."""
    return either(now.viewed(lease), now.in_dma(lease), now.finished(lease))


def rank_of_lease(lease: Term) -> Term:
    """The rank whose hold word stands for the lease."""
    return rank_of(reader_of(lease))


def slot_of_lease(lease: Term) -> Term:
    """The slot that the lease is about."""
    return slot_of(object_of(lease))


def same_word(one: Term, other: Term) -> Formula:
    """Two leases of one reader on one slot: they share a hold word."""
    return both(reader_of(one) == reader_of(other), slot_of_lease(one) == slot_of_lease(other))


def is_newest(now: ObjectState, thing: Term) -> Formula:
    """The object's slot has not been claimed again since."""
    return now.newest(slot_of(thing), thing)


def only_lease(now: ObjectState, lease: Term) -> Formula:
    """No other lease shares the hold word: the process-local count is at its last one."""
    return forall(Lease, lambda other: implies(both(in_hand(now, other), same_word(other, lease)), other == lease))


def store_word(now: ObjectState, words: str, lease: Term) -> Body:
    """The hold words after the lease's one got the generation of its object."""
    rank, thing = rank_of_lease(lease), object_of(lease)
    return lambda o, i: z3.If(both(i == rank, slot_of(o) == slot_of(thing)), o == thing, now.relations[words](o, i))


# ---- actions of the writer -----------------------------------------------------------------------


@action(WRITER, Slot, Object)
def claim(now: ObjectState, slot: Term, thing: Term) -> Step:
    """The writer takes a free slot, never a draining one."""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "object is new": both(no(now.used(thing)), slot_of(thing) == slot),
            "slot is free": forall(Object, lambda old: implies(now.newest(slot, old), now.freed(old))),
        },
        {
            "used": now.used.plus(thing),
            "newest": lambda s, o: z3.If(s == slot, o == thing, now.newest(s, o)),
            "filling": now.filling.plus(thing),
        },
    )


@action(WRITER, Object)
def copy(now: ObjectState, thing: Term) -> Step:
    """The writer fills the extent: the payload is complete."""
    return Step(
        {"writer is alive": now.writer_alive(), "slot is being filled": now.filling(thing)},
        {"complete": now.complete.plus(thing)},
    )


@action(WRITER, Object)
def publish_object(now: ObjectState, thing: Term) -> Step:
    """The generation word opens, and handles go about. [object.publish]"""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "slot is being filled": now.filling(thing),
            "payload is complete": now.complete(thing),
        },
        {
            "filling": now.filling.minus(thing),
            "live": now.live.plus(thing),
            "is_open": now.is_open.plus(thing),
            "issued": now.issued.plus(thing),
        },
    )


@action(WRITER, Object)
def abort(now: ObjectState, thing: Term) -> Step:
    """The object will not be published: its slot goes back."""
    return Step(
        {"writer is alive": now.writer_alive(), "slot is being filled": now.filling(thing)},
        {"filling": now.filling.minus(thing), "freed": now.freed.plus(thing)},
    )


@action(WRITER, Object)
def evict(now: ObjectState, thing: Term) -> Step:
    """The generation word closes first; the scan comes after. [object.evict]"""
    return Step(
        {"writer is alive": now.writer_alive(), "object is live": now.live(thing)},
        {
            "live": now.live.minus(thing),
            "is_open": now.is_open.minus(thing),
            "draining": now.draining.plus(thing),
        },
    )


@action(WRITER, Object, Rank)
def scan(now: ObjectState, thing: Term, rank: Term) -> Step:
    """The writer sees a hold word that does not name the evicted object, once: that row is clear. [object.evict]"""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "object is draining": now.draining(thing),
            "word differs": no(now.seen(thing, rank)),
        },
        {"cleared": now.cleared.plus(thing, rank)},
    )


@action(WRITER, Object, part_of="scan")
def scan_ends(now: ObjectState, thing: Term) -> Step:
    """Every row is clear and no quarantine is left: the slot is free."""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "object is draining": now.draining(thing),
            "every row is clear": forall(Rank, lambda rank: now.cleared(thing, rank)),
            "no quarantine": forall(Reader, lambda reader: no(now.quarantined(thing, reader))),
        },
        {"draining": now.draining.minus(thing), "freed": now.freed.plus(thing)},
    )


@action(WRITER, Reader)
def reclaim(now: ObjectState, reader: Term) -> Step:
    """A reader is proved dead: its words go into quarantine, its row is zeroed, its entry is EMPTY. [member.reclaim]"""
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
            "word": now.word.where(lambda thing, of: of != rank),
            "seen": now.seen.where(lambda thing, of: of != rank),
            "quarantined": now.quarantined.union(
                lambda thing, owner: both(owner == reader, now.seen(thing, rank), is_newest(now, thing))
            ),
        },
    )


@action(WRITER, Reader)
def expire(now: ObjectState, reader: Term) -> Step:
    """A dead reader's quarantine ends: by then the driver has stopped its DMA (the assumption of that time)."""
    return Step(
        {
            "writer is alive": now.writer_alive(),
            "its DMA has stopped": forall(
                Lease, lambda lease: no(both(reader_of(lease) == reader, now.in_dma(lease), no(now.member(reader))))
            ),
        },
        {"quarantined": now.quarantined.where(lambda thing, owner: owner != reader)},
    )


# ---- actions of a reader -------------------------------------------------------------------------


@action(READER, Reader, part_of=None)
def join(now: ObjectState, reader: Term) -> Step:
    """A new process claims the empty entry of its rank. [member.claim]"""
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


@action(READER, Lease)
def announce(now: ObjectState, lease: Term) -> Step:
    """A get with a count of zero stores its hold word; the writer sees it before the check. [object.evict]"""
    return Step(
        {
            "reader is alive": now.alive(reader_of(lease)),
            "lease is new": no(now.begun(lease)),
            "there is a handle": now.issued(object_of(lease)),
            "count is zero": forall(Lease, lambda other: no(both(in_hand(now, other), same_word(other, lease)))),
        },
        {
            "begun": now.begun.plus(lease),
            "checking": now.checking.plus(lease),
            "word": store_word(now, "word", lease),
            "seen": store_word(now, "seen", lease),
        },
    )


@action(READER, Lease, Lease, part_of="announce")
def share(now: ObjectState, lease: Term, other: Term) -> Step:
    """A get of what this reader holds already: the count goes up and no shared word is touched."""
    return Step(
        {
            "reader is alive": now.alive(reader_of(lease)),
            "lease is new": no(now.begun(lease)),
            "same object is held": both(
                valid(now, other), object_of(other) == object_of(lease), reader_of(other) == reader_of(lease)
            ),
        },
        {"begun": now.begun.plus(lease), "viewed": now.viewed.plus(lease)},
    )


@action(READER, Lease)
def recheck(now: ObjectState, lease: Term) -> Step:
    """The generation is still the handle's: a hit. [object.evict]"""
    return Step(
        {
            "reader is alive": now.alive(reader_of(lease)),
            "get is in flight": now.checking(lease),
            "generation matches": now.is_open(object_of(lease)),
        },
        {"checking": now.checking.minus(lease), "viewed": now.viewed.plus(lease)},
    )


@action(READER, Lease, part_of="recheck")
def recheck_misses(now: ObjectState, lease: Term) -> Step:
    """The generation has moved on: a miss, and the hold word goes back to zero."""
    return Step(
        {
            "reader is alive": now.alive(reader_of(lease)),
            "get is in flight": now.checking(lease),
            "generation differs": no(now.is_open(object_of(lease))),
        },
        {
            "checking": now.checking.minus(lease),
            "word": now.word.minus(object_of(lease), rank_of_lease(lease)),
        },
    )


@action(READER, Lease)
def drop(now: ObjectState, lease: Term) -> Step:
    """The last view under the lease is gone and no gate is open."""
    return _move(now, lease, "viewed", "finished")


@action(READER, Lease, part_of="drop")
def drop_gated(now: ObjectState, lease: Term) -> Step:
    """The last view under the lease is gone, but a device still reads the memory."""
    return _move(now, lease, "viewed", "in_dma")


@action(READER, Lease)
def release_hold(now: ObjectState, lease: Term) -> Step:
    """The count goes to zero, and the hold word with it; the writer may see that later. [object.release]"""
    step = _move(now, lease, "finished", None).with_guard("count is one", only_lease(now, lease))
    return step.with_change("word", now.word.minus(object_of(lease), rank_of_lease(lease)))


@action(READER, Lease, Lease, part_of="release_hold")
def release_one(now: ObjectState, lease: Term, other: Term) -> Step:
    """The count goes down and stays above zero: no shared word is touched."""
    step = _move(now, lease, "finished", None)
    return step.with_guard("count stays above zero", both(lease != other, in_hand(now, other), same_word(other, lease)))


def _move(now: ObjectState, lease: Term, old: str, new: str | None) -> Step:
    """A living reader's lease goes from one phase to the next, or away."""
    changes = {old: now.relations[old].minus(lease)}
    if new is not None:
        changes[new] = now.relations[new].plus(lease)
    return Step({f"lease is {old}": now.relations[old](lease), "reader is alive": now.alive(reader_of(lease))}, changes)


# ---- the environment -----------------------------------------------------------------------------


@action(KERNEL, Slot, Rank, part_of=None)
def flush(now: ObjectState, slot: Term, rank: Term) -> Step:
    """The writer comes to see what the reader has stored in its hold word, whether or not it still lives."""
    return Step(
        {},
        {
            "seen": lambda thing, of: z3.If(
                both(of == rank, slot_of(thing) == slot), now.word(thing, of), now.seen(thing, of)
            )
        },
    )


@action(DEVICE, Lease, part_of=None)
def dma_complete(now: ObjectState, lease: Term) -> Step:
    """The device is done and the gate of a living reader opens."""
    return _move(now, lease, "in_dma", "finished")


@action(DEVICE, Lease, part_of=None)
def dma_stop(now: ObjectState, lease: Term) -> Step:
    """The device stops reading for a process that is dead."""
    return (
        _move(now, lease, "in_dma", None)
        .without_guard("reader is alive")
        .with_guard("reader is dead", no(now.alive(reader_of(lease))))
    )


@action(KERNEL, part_of=None)
def writer_death(now: ObjectState) -> Step:
    """The writer dies; holds and views stay valid."""
    return Step({"writer is alive": now.writer_alive()}, {"writer_alive": nothing})


@action(KERNEL, Reader, part_of=None)
def reader_death(now: ObjectState, reader: Term) -> Step:
    """A reader dies with all its views, its words as they are; a DMA that it started may run on."""

    def of_others(lease: Term) -> Formula:
        return reader_of(lease) != reader

    return Step(
        {"reader is alive": now.alive(reader)},
        {
            "alive": now.alive.minus(reader),
            "checking": now.checking.where(of_others),
            "viewed": now.viewed.where(of_others),
            "finished": now.finished.where(of_others),
        },
    )
