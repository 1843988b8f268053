"""Message slots: the inductive invariant, conjunct by conjunct, and the safety that it implies.

The heart is `reference_is_owed`: whatever a reader refers to is current and waits for that reader's release.
Together with the free test (nothing is claimed that waits for anybody) it gives safety; `owed_has_a_reference`
is its converse and says that nothing leaks.  The other conjuncts make these two inductive.
"""

from __future__ import annotations

from spec.prove.logic import Formula, both, either, forall, implies, no
from spec.prove.message_slots_actions import (
    MESSAGE_SLOTS,
    PHASES,
    STAGES,
    Grant,
    MessageState,
    Rank,
    Reader,
    Slot,
    free,
    is_current,
    owed,
    rank_of,
    refers,
    slot_of,
)

__all__ = ["MESSAGE_SLOTS"]

conjunct, safety_property = MESSAGE_SLOTS.conjunct, MESSAGE_SLOTS.safety_property


# ---- the invariant: the writer's side ------------------------------------------------------------


@conjunct
def one_current_grant(now: MessageState) -> Formula:
    """A slot has one generation at a time."""
    return forall((Slot, Grant, Grant), lambda s, g, h: implies(both(now.current(s, g), now.current(s, h)), g == h))


@conjunct
def current_is_of_its_slot(now: MessageState) -> Formula:
    """A slot's generation is that of a grant of this slot which has been given out."""
    return forall((Slot, Grant), lambda s, g: implies(now.current(s, g), slot_of(g) == s, now.used(g)))


@conjunct
def stage_means_used(now: MessageState) -> Formula:
    """Whatever has a stage has been given out."""
    return forall(Grant, lambda g: implies(either(*[now.relations[stage](g) for stage in STAGES]), now.used(g)))


@conjunct
def used_has_a_stage(now: MessageState) -> Formula:
    """No grant is lost: given out, it is being filled, in a message, out, or aborted."""
    return forall(Grant, lambda g: implies(now.used(g), either(*[now.relations[stage](g) for stage in STAGES])))


MESSAGE_SLOTS.apart("stage", "A grant is in one stage at a time", STAGES)


@conjunct
def one_open_claim(now: MessageState) -> Formula:
    """The writer fills one slot at a time."""
    return forall((Grant, Grant), lambda g, h: implies(both(now.filling(g), now.filling(h)), g == h))


@conjunct
def open_is_current(now: MessageState) -> Formula:
    """What is being filled or waits for its message is the newest generation of its slot."""
    return forall(Grant, lambda g: implies(either(now.filling(g), now.pending(g)), is_current(now, g)))


@conjunct
def published_is_complete(now: MessageState) -> Formula:
    """Nothing is published before its payload is complete."""
    return forall(Grant, lambda g: implies(either(now.pending(g), now.sent(g)), now.complete(g)))


@conjunct
def complete_means_used(now: MessageState) -> Formula:
    """A grant that was never given out has no payload."""
    return forall(Grant, lambda g: implies(now.complete(g), now.used(g)))


# ---- the invariant: who owes what ----------------------------------------------------------------


@conjunct
def required_is_published(now: MessageState) -> Formula:
    """A release is owed only for what has been published, and only by an entry that is not EMPTY."""
    return forall(
        (Grant, Rank),
        lambda g, i: implies(now.required(g, i), now.taken(i), now.used(g), no(now.filling(g))),
    )


@conjunct
def pending_requires_the_counted(now: MessageState) -> Formula:
    """Whoever the writer counts owes a release for every slot of the open message (nobody joins inside it)."""
    return forall((Grant, Rank), lambda g, i: implies(both(now.pending(g), now.counted(i)), now.required(g, i)))


@conjunct
def pending_requires_only_the_counted(now: MessageState) -> Formula:
    """Nobody else owes a release for the open message (nobody who left is dropped inside it)."""
    return forall((Grant, Rank), lambda g, i: implies(both(now.pending(g), now.required(g, i)), now.counted(i)))


@conjunct
def done_is_sent(now: MessageState) -> Formula:
    """Nobody has released what was never sent."""
    return forall((Grant, Rank), lambda g, i: implies(now.done(g, i), now.sent(g)))


# ---- the invariant: membership -------------------------------------------------------------------


@conjunct
def counted_is_taken(now: MessageState) -> Formula:
    """The writer counts no EMPTY entry."""
    return forall(Rank, lambda i: implies(now.counted(i), now.taken(i)))


@conjunct
def alive_is_member(now: MessageState) -> Formula:
    """A living reader owns its entry: only the dead are reclaimed."""
    return forall(Reader, lambda r: implies(now.alive(r), now.member(r)))


@conjunct
def member_has_started(now: MessageState) -> Formula:
    """Who owns an entry has claimed it, and the entry is not EMPTY."""
    return forall(Reader, lambda r: implies(now.member(r), now.started(r), now.taken(rank_of(r))))


@conjunct
def one_member_per_rank(now: MessageState) -> Formula:
    """An entry has one owner."""
    return forall(
        (Reader, Reader),
        lambda r, q: implies(both(now.member(r), now.member(q), rank_of(r) == rank_of(q)), r == q),
    )


@conjunct
def left_between_records(now: MessageState) -> Formula:
    """A reader that has left is not in the middle of a record."""
    return forall((Grant, Reader), lambda g, r: implies(now.left(r), no(now.received(g, r))))


# ---- the invariant: references -------------------------------------------------------------------


MESSAGE_SLOTS.apart("phase", "A reference is in one phase at a time", PHASES)


@conjunct
def reference_is_sent(now: MessageState) -> Formula:
    """Readers refer only to what has been sent."""
    return forall((Grant, Reader), lambda g, r: implies(refers(now, g, r), now.sent(g)))


@conjunct
def reference_is_a_members(now: MessageState) -> Formula:
    """Only an entry's owner refers to grants; but the DMA of a dead one may run on in quarantine."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(refers(now, g, r), either(now.member(r), both(now.in_dma(g, r), now.quarantined(g, r)))),
    )


@conjunct
def reference_is_owed(now: MessageState) -> Formula:
    """KEY: what a member refers to is current, and waits for this member's release."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(both(refers(now, g, r), now.member(r)), is_current(now, g), owed(now, g, rank_of(r))),
    )


@conjunct
def only_the_living_hold(now: MessageState) -> Formula:
    """A dead reader has no views; at most a DMA of it is still running."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(either(now.received(g, r), now.viewed(g, r), now.finished(g, r)), now.alive(r)),
    )


@conjunct
def quarantined_is_current(now: MessageState) -> Formula:
    """A quarantined slot is not claimed again, and its cause is a process that will not come back."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(now.quarantined(g, r), is_current(now, g), now.started(r), no(now.member(r))),
    )


@conjunct
def owed_has_a_reference(now: MessageState) -> Formula:
    """NO LEAK: a living reader that owes a release still has the reference that will bring it."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(
            both(now.sent(g), is_current(now, g), owed(now, g, rank_of(r)), now.member(r)),
            either(refers(now, g, r), no(now.alive(r))),
        ),
    )


# ---- safety: what all this is for ----------------------------------------------------------------


@safety_property
def no_reuse_under_a_reader(now: MessageState) -> Formula:
    """S1, S2: what a view or a device reads is the slot's current grant, sent, and complete."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(either(now.viewed(g, r), now.in_dma(g, r)), is_current(now, g), now.sent(g), now.complete(g)),
    )


@safety_property
def no_slot_twice_in_a_message(now: MessageState) -> Formula:
    """S3: a message has no slot twice."""
    return forall(
        (Grant, Grant),
        lambda g, h: implies(both(now.pending(g), now.pending(h), slot_of(g) == slot_of(h)), g == h),
    )


@safety_property
def no_claim_under_a_reader(now: MessageState) -> Formula:
    """S1 as the writer sees it: a slot that could be claimed now is read by nobody."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(either(now.viewed(g, r), now.in_dma(g, r)), no(free(now, slot_of(g)))),
    )


@safety_property
def no_leak(now: MessageState) -> Formula:
    """S4: a sent slot waits for nobody but a living reader with a reference, a dead one, or a quarantine."""
    return forall(
        (Grant, Reader),
        lambda g, r: implies(
            both(is_current(now, g), now.sent(g), owed(now, g, rank_of(r)), now.member(r), now.alive(r)),
            refers(now, g, r),
        ),
    )


@safety_property
def queue_counts_for_room(now: MessageState) -> Formula:
    """A message waits only in queues of members, so reclaiming and dropping empties every queue that nobody reads."""
    return forall((Grant, Reader), lambda g, r: implies(now.queued(g, r), now.member(r), now.required(g, rank_of(r))))
