"""Object slots: the inductive invariant, conjunct by conjunct, and the safety that it implies.

The heart is a pair.  `lease_has_its_word`: while a reader has anything in hand, its hold word says so to the
writer.  `held_is_not_reused`: what is held is live or draining, and no scan has passed its row.  The announcement
makes the first true before the check can make the second matter; that is the hazard pointer.
"""

from __future__ import annotations

from spec.prove.logic import Formula, both, either, exists, forall, implies, no
from spec.prove.object_slots_actions import (
    OBJECT_SLOTS,
    PHASES,
    STAGES,
    Lease,
    Object,
    ObjectState,
    Rank,
    Reader,
    Slot,
    in_hand,
    is_newest,
    object_of,
    rank_of,
    rank_of_lease,
    reader_of,
    same_word,
    slot_of,
    slot_of_lease,
    valid,
)

__all__ = ["OBJECT_SLOTS"]

conjunct, safety_property = OBJECT_SLOTS.conjunct, OBJECT_SLOTS.safety_property


# ---- the invariant: the writer's side ------------------------------------------------------------


@conjunct
def one_newest_object(now: ObjectState) -> Formula:
    """A slot has one newest object."""
    return forall((Slot, Object, Object), lambda s, o, p: implies(both(now.newest(s, o), now.newest(s, p)), o == p))


@conjunct
def newest_is_of_its_slot(now: ObjectState) -> Formula:
    """A slot's newest object belongs to it and has been given out."""
    return forall((Slot, Object), lambda s, o: implies(now.newest(s, o), slot_of(o) == s, now.used(o)))


@conjunct
def stage_means_used(now: ObjectState) -> Formula:
    """Whatever has a stage has been given out."""
    return forall(Object, lambda o: implies(either(*[now.relations[stage](o) for stage in STAGES]), now.used(o)))


@conjunct
def used_has_a_stage(now: ObjectState) -> Formula:
    """No object is lost: given out, it is being filled, live, draining, or gone."""
    return forall(Object, lambda o: implies(now.used(o), either(*[now.relations[stage](o) for stage in STAGES])))


OBJECT_SLOTS.apart("stage", "An object is in one stage at a time", STAGES)


@conjunct
def occupied_is_newest(now: ObjectState) -> Formula:
    """What is being filled, live or draining is the newest object of its slot."""
    return forall(Object, lambda o: implies(either(now.filling(o), now.live(o), now.draining(o)), is_newest(now, o)))


@conjunct
def published_is_complete(now: ObjectState) -> Formula:
    """Nothing is live or draining whose payload is not complete."""
    return forall(Object, lambda o: implies(either(now.live(o), now.draining(o)), now.complete(o)))


@conjunct
def complete_means_used(now: ObjectState) -> Formula:
    """An object that was never given out has no payload."""
    return forall(Object, lambda o: implies(now.complete(o), now.used(o)))


# ---- the invariant: generations, handles, scans --------------------------------------------------


@conjunct
def open_is_live(now: ObjectState) -> Formula:
    """A generation word matches no handle but a live object's."""
    return forall(Object, lambda o: implies(now.is_open(o), now.live(o)))


@conjunct
def live_is_open(now: ObjectState) -> Formula:
    """A live object's handle matches, and there are handles of it."""
    return forall(Object, lambda o: implies(now.live(o), now.is_open(o), now.issued(o)))


@conjunct
def issued_was_published(now: ObjectState) -> Formula:
    """There are handles only of what has been published."""
    return forall(Object, lambda o: implies(now.issued(o), now.used(o), no(now.filling(o))))


@conjunct
def cleared_is_closed(now: ObjectState) -> Formula:
    """A row is passed only after the generation word has closed."""
    return forall((Object, Rank), lambda o, i: implies(now.cleared(o, i), now.issued(o), no(now.is_open(o))))


@conjunct
def draining_was_issued(now: ObjectState) -> Formula:
    """What drains has been published before."""
    return forall(Object, lambda o: implies(now.draining(o), now.issued(o)))


# ---- the invariant: membership -------------------------------------------------------------------


@conjunct
def alive_is_member(now: ObjectState) -> Formula:
    """A living reader owns its entry: only the dead are reclaimed."""
    return forall(Reader, lambda r: implies(now.alive(r), now.member(r)))


@conjunct
def member_has_started(now: ObjectState) -> Formula:
    """Who owns an entry has claimed it, and the entry is not EMPTY."""
    return forall(Reader, lambda r: implies(now.member(r), now.started(r), now.taken(rank_of(r))))


@conjunct
def one_member_per_rank(now: ObjectState) -> Formula:
    """An entry has one owner."""
    return forall(
        (Reader, Reader),
        lambda r, q: implies(both(now.member(r), now.member(q), rank_of(r) == rank_of(q)), r == q),
    )


@conjunct
def quarantine_is_of_the_dead(now: ObjectState) -> Formula:
    """A quarantine's cause is a process that will not come back."""
    return forall((Object, Reader), lambda o, r: implies(now.quarantined(o, r), now.started(r), no(now.member(r))))


# ---- the invariant: hold words and leases --------------------------------------------------------


@conjunct
def lease_has_begun(now: ObjectState) -> Formula:
    """A lease is of an object whose handle was about."""
    return forall(Lease, lambda k: implies(in_hand(now, k), now.begun(k), now.issued(object_of(k))))


OBJECT_SLOTS.apart("phase", "A lease is in one phase at a time", PHASES)


@conjunct
def lease_is_a_members(now: ObjectState) -> Formula:
    """Only an entry's owner has leases; but the DMA of a dead one may run on in quarantine."""
    return forall(
        Lease,
        lambda k: implies(
            in_hand(now, k),
            either(now.member(reader_of(k)), both(now.in_dma(k), now.quarantined(object_of(k), reader_of(k)))),
        ),
    )


@conjunct
def only_the_living_hold(now: ObjectState) -> Formula:
    """A dead reader has no gets in flight and no views; at most a DMA of it is still running."""
    return forall(
        Lease,
        lambda k: implies(either(now.checking(k), now.viewed(k), now.finished(k)), now.alive(reader_of(k))),
    )


@conjunct
def lease_has_its_word(now: ObjectState) -> Formula:
    """WORD: a member's lease is named by its hold word, as the reader and as the writer sees it."""
    return forall(
        Lease,
        lambda k: implies(
            both(in_hand(now, k), now.member(reader_of(k))),
            now.word(object_of(k), rank_of_lease(k)),
            now.seen(object_of(k), rank_of_lease(k)),
        ),
    )


@conjunct
def word_names_one(now: ObjectState) -> Formula:
    """A hold word has one generation, as its reader sees it."""
    return forall(
        (Object, Object, Rank),
        lambda o, p, i: implies(both(now.word(o, i), now.word(p, i), slot_of(o) == slot_of(p)), o == p),
    )


@conjunct
def seen_word_names_one(now: ObjectState) -> Formula:
    """A hold word has one generation, as the writer sees it."""
    return forall(
        (Object, Object, Rank),
        lambda o, p, i: implies(both(now.seen(o, i), now.seen(p, i), slot_of(o) == slot_of(p)), o == p),
    )


@conjunct
def row_is_a_members(now: ObjectState) -> Formula:
    """The row of an EMPTY entry is zero."""
    return forall((Object, Rank), lambda o, i: implies(either(now.word(o, i), now.seen(o, i)), now.taken(i)))


@conjunct
def get_is_alone(now: ObjectState) -> Formula:
    """A get in flight shares its hold word with no other lease (the lock of the reader's process)."""
    return forall(
        (Lease, Lease),
        lambda k, m: implies(both(now.checking(k), in_hand(now, m), same_word(k, m)), k == m),
    )


@conjunct
def held_is_not_reused(now: ObjectState) -> Formula:
    """KEY: what is held is newest, live or draining, and the scan has not passed its row, or it is in quarantine."""
    return forall(
        Lease,
        lambda k: implies(
            valid(now, k),
            is_newest(now, object_of(k)),
            either(now.live(object_of(k)), now.draining(object_of(k))),
            either(no(now.cleared(object_of(k), rank_of_lease(k))), now.quarantined(object_of(k), reader_of(k))),
        ),
    )


@OBJECT_SLOTS.existential_conjunct
def word_has_its_lease(now: ObjectState) -> Formula:
    """NO LEAK: where a living reader's hold word names an object, there is a lease that will zero it."""
    return forall(
        (Object, Reader),
        lambda o, r: implies(
            both(now.word(o, rank_of(r)), now.member(r), now.alive(r)),
            exists(Lease, lambda k: both(in_hand(now, k), object_of(k) == o, reader_of(k) == r)),
        ),
    )


# ---- safety: what all this is for ----------------------------------------------------------------


@safety_property
def no_reuse_under_a_reader(now: ObjectState) -> Formula:
    """S1, S2: what a view or a device reads is the slot's newest object, complete, not freed, not being filled."""
    return forall(
        Lease,
        lambda k: implies(
            either(now.viewed(k), now.in_dma(k)),
            is_newest(now, object_of(k)),
            now.complete(object_of(k)),
            no(now.freed(object_of(k))),
            no(now.filling(object_of(k))),
        ),
    )


@safety_property
def one_object_per_slot(now: ObjectState) -> Formula:
    """S3: a slot with a live object has no other, live or draining."""
    return forall(
        (Object, Object),
        lambda o, p: implies(both(now.live(o), either(now.live(p), now.draining(p)), slot_of(o) == slot_of(p)), o == p),
    )


@safety_property
def live_handle_hits(now: ObjectState) -> Formula:
    """H: if a reader holds anything of a live object's slot, it is that object, and its generation word is open."""
    return forall(
        (Object, Lease),
        lambda o, k: implies(
            both(now.live(o), valid(now, k), slot_of_lease(k) == slot_of(o)), object_of(k) == o, now.is_open(o)
        ),
    )


@safety_property
def one_generation_per_word(now: ObjectState) -> Formula:
    """A reader never has two generations of one slot in hand."""
    return forall(
        (Lease, Lease),
        lambda k, m: implies(
            both(in_hand(now, k), in_hand(now, m), now.member(reader_of(k)), same_word(k, m)),
            object_of(k) == object_of(m),
        ),
    )


@safety_property
def old_handle_misses(now: ObjectState) -> Formula:
    """A handle of an evicted object never matches, whatever its slot carries now."""
    return forall(Object, lambda o: implies(both(now.issued(o), no(now.live(o))), no(now.is_open(o))))


@OBJECT_SLOTS.existential_safety
def drain_waits_for_a_lease(now: ObjectState) -> Formula:
    """S4: a word that keeps a slot from draining is a claimed entry's, and a living owner has the lease for it."""
    return forall(
        (Object, Reader),
        lambda o, r: implies(
            both(now.draining(o), now.word(o, rank_of(r)), now.member(r), now.alive(r)),
            now.taken(rank_of(r)),
            exists(Lease, lambda k: both(in_hand(now, k), object_of(k) == o, reader_of(k) == r)),
        ),
    )
