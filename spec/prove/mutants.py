"""Seeded design faults: each is a small edit of an action, and each breaks the proof at a conjunct that names it.

Most are natural designs, not typing errors: a death signal that fires too early, a free test over the present
members, a count and a store that are not one step.  `breaks` is where the proof must fail, as (action, conjunct).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spec.prove import message_slots_actions as m
from spec.prove import object_slots_actions as o
from spec.prove.logic import Action, Step, Term, Theory, both, either, forall, implies, no
from spec.prove.message_slots import MESSAGE_SLOTS
from spec.prove.object_slots import OBJECT_SLOTS

Edit = Callable[..., Step]


@dataclass(frozen=True)
class Mutant:
    """A fault: what it is in words, the edits that make it, and the conditions that must fail."""

    theory: Theory[Any]
    name: str
    words: str
    edits: Mapping[str, Edit]
    breaks: frozenset[tuple[str, str]]
    added: Mapping[str, Action[Any]] = field(default_factory=dict)

    def apply(self) -> Theory[Any]:
        """The theory with the fault in it."""
        edited = {name: self.theory.actions[name].edited(edit) for name, edit in self.edits.items()}
        return self.theory.with_actions({**edited, **self.added})

    @property
    def touched(self) -> frozenset[str]:
        """The actions that the fault changes: the others' conditions hold as before."""
        return frozenset([*self.edits, *self.added])


def _without_guard(name: str) -> Edit:
    return lambda step, *_: step.without_guard(name)


def _without_change(name: str) -> Edit:
    return lambda step, *_: step.without_change(name)


# ---- message slots -------------------------------------------------------------------------------


def _release_before_the_device(step: Step, now: m.MessageState, grant: Term, reader: Term) -> Step:
    return step.with_change("done", m.store_done(now, grant, m.rank_of(reader)))


def _free_while_pending(step: Step, now: m.MessageState, slot: Term, grant: Term) -> Step:
    """Nobody is required, so nobody is missing: a published slot of the open message looks free."""
    looks_free = forall(
        (m.Grant, m.Rank, m.Reader),
        lambda g, i, r: implies(
            now.current(slot, g),
            either(now.freed(g), both(either(now.sent(g), now.pending(g)), no(m.owed(now, g, i)))),
            no(now.quarantined(g, r)),
        ),
    )
    return step.with_guard("slot is free", looks_free)


def _abort_forgets_published(step: Step, now: m.MessageState) -> Step:
    return step.with_change("freed", now.freed.union(now.filling))


def _left_owes_nothing(step: Step, now: m.MessageState, reader: Term) -> Step:
    return step.with_change("required", now.required.where(lambda g, i: i != m.rank_of(reader)))


def _release_again(step: Step, now: m.MessageState, grant: Term, reader: Term) -> Step:
    """A second finalizer stores the generation of a grant that was released before, some time later."""
    late = both(now.alive(reader), now.sent(grant), no(m.refers(now, grant, reader)))
    return Step({"released before": late}, {"done": m.store_done(now, grant, m.rank_of(reader))})


def _message_mutants() -> list[Mutant]:
    def mutant(name: str, words: str, breaks: set[tuple[str, str]], **edits: Edit) -> Mutant:
        return Mutant(MESSAGE_SLOTS, name, words, edits, frozenset(breaks))

    again = replace(MESSAGE_SLOTS.actions["release"].edited(_release_again), name="release_again")
    return [
        mutant(
            "early_done",
            "the release is stored when the last view is gone, before the device is done",
            {("drop_gated", "reference_is_owed")},
            drop_gated=_release_before_the_device,
        ),
        mutant(
            "lock",
            "a death signal that can fire before the dead one's DMA is quiet, and no quarantine",
            {("reclaim", "reference_is_a_members")},
            reclaim=_without_change("quarantined"),
        ),
        mutant(
            "short_quarantine",
            "the quarantine ends while the DMA still runs",
            {("expire", "reference_is_a_members")},
            expire=_without_guard("its DMA has stopped"),
        ),
        mutant(
            "timeout",
            "a reader that has been silent for long is reclaimed, alive or not",
            {("reclaim", "reference_is_a_members"), ("reclaim", "alive_is_member")},
            reclaim=_without_guard("reader is dead"),
        ),
        mutant(
            "inherit",
            "a restarted reader finds the queue of the dead one",
            {("reclaim", "reference_is_a_members")},
            reclaim=_without_change("queued"),
        ),
        mutant(
            "join_any",
            "a joiner is admitted in the middle of a message",
            {("admit", "pending_requires_the_counted")},
            admit=_without_guard("between two messages"),
        ),
        mutant(
            "vacuous",
            "with no reader left to wait for, a slot of the open message looks free",
            {("claim", "open_is_current")},
            claim=_free_while_pending,
        ),
        mutant(
            "abort_leak",
            "abort gives back the open claim and forgets what was published for the message",
            {("abort", "used_has_a_stage")},
            abort=_abort_forgets_published,
        ),
        mutant(
            "early_publish",
            "the slot is published before its payload is complete",
            {("publish", "published_is_complete")},
            publish=_without_guard("payload is complete"),
        ),
        mutant(
            "discard_forgets",
            "a reader that fails between receive and lease forgets the slot",
            {("discard", "owed_has_a_reference")},
            discard=_without_change("finished"),
        ),
        mutant(
            "fork_keeps_view",
            "a forked child of a killed reader keeps the view",
            {("reader_death", "only_the_living_hold")},
            reader_death=_without_change("viewed"),
        ),
        mutant(
            "left_owes_nothing",
            "a reader that has left is struck from every slot, leased ones too",
            {("drop_reader", "reference_is_owed")},
            drop_reader=_left_owes_nothing,
        ),
        mutant(
            "left_owes_all",
            "a reader that has left is struck from no slot, not even from those it never read",
            {("drop_reader", "owed_has_a_reference")},
            drop_reader=_without_change("required"),
        ),
        mutant(
            "left_any",
            "LEFT is looked at in the middle of a message",
            {("drop_reader", "pending_requires_only_the_counted")},
            drop_reader=_without_guard("between two messages"),
        ),
        mutant(
            "leave_in_record",
            "a reader leaves in the middle of a record",
            {("leave", "left_between_records")},
            leave=_without_guard("between two records"),
        ),
        Mutant(
            MESSAGE_SLOTS,
            "release_again",
            "a finalizer that runs twice stores an old generation over a newer one",
            {},
            frozenset({("release_again", "owed_has_a_reference")}),
            {again.name: again},
        ),
    ]


# ---- object slots --------------------------------------------------------------------------------


def _re_put_while_draining(step: Step, now: o.ObjectState, slot: Term, thing: Term) -> Step:
    idle = forall(o.Object, lambda p: implies(now.newest(slot, p), either(now.freed(p), now.draining(p))))
    return step.with_guard("slot is free", idle)


def _scan_first(step: Step, now: o.ObjectState, thing: Term, rank: Term) -> Step:
    return step.with_guard("object is draining", either(now.draining(thing), now.live(thing)))


def _evict_frees(step: Step, now: o.ObjectState, thing: Term) -> Step:
    return step.without_change("draining").with_change("freed", now.freed.plus(thing))


def _announce_overwrites(step: Step, now: o.ObjectState, lease: Term) -> Step:
    """A get of another generation stores over the word of a live lease."""
    clash = forall(
        o.Lease,
        lambda k: implies(
            both(o.in_hand(now, k), o.same_word(k, lease)),
            no(now.checking(k)),
            o.object_of(k) != o.object_of(lease),
        ),
    )
    return step.with_guard("count is zero", clash)


def _release_before_the_device_object(step: Step, now: o.ObjectState, lease: Term) -> Step:
    words = now.word.minus(o.object_of(lease), o.rank_of_lease(lease))
    return step.with_guard("count is one", o.only_lease(now, lease)).with_change("word", words)


def _object_mutants() -> list[Mutant]:
    def mutant(name: str, words: str, breaks: set[tuple[str, str]], **edits: Edit) -> Mutant:
        return Mutant(OBJECT_SLOTS, name, words, edits, frozenset(breaks))

    return [
        mutant(
            "nocheck",
            "a get does not look at the generation again after its announcement",
            {("recheck", "held_is_not_reused")},
            recheck=_without_guard("generation matches"),
        ),
        mutant(
            "late_hold",
            "the reader's hold store is seen only after its check (acquire/release on the reader's side)",
            {("announce", "lease_has_its_word")},
            announce=_without_change("seen"),
        ),
        mutant(
            "late_close",
            "the writer's generation store is seen only after its scan (acquire/release on its side)",
            {("evict", "open_is_live")},
            evict=_without_change("is_open"),
        ),
        mutant(
            "scan_first",
            "the writer looks at the hold words before it closes the generation",
            {("scan", "cleared_is_closed")},
            scan=_scan_first,
        ),
        mutant(
            "nodrain",
            "an evicted slot is free at once",
            {("evict", "held_is_not_reused")},
            evict=_evict_frees,
        ),
        mutant(
            "early",
            "the hold word is zeroed when the last view is gone, before the device is done",
            {("drop_gated", "lease_has_its_word")},
            drop_gated=_release_before_the_device_object,
        ),
        mutant(
            "lock",
            "a death signal that can fire before the dead one's DMA is quiet, and no quarantine",
            {("reclaim", "lease_is_a_members")},
            reclaim=_without_change("quarantined"),
        ),
        mutant(
            "short_quarantine",
            "the quarantine ends while the DMA still runs",
            {("expire", "lease_is_a_members"), ("expire", "held_is_not_reused")},
            expire=_without_guard("its DMA has stopped"),
        ),
        mutant(
            "quarantine_ignored",
            "the scan ends without a look at the quarantine",
            {("scan_ends", "held_is_not_reused")},
            scan_ends=_without_guard("no quarantine"),
        ),
        mutant(
            "timeout",
            "a reader that has been silent for long is reclaimed, alive or not",
            {("reclaim", "lease_is_a_members"), ("reclaim", "alive_is_member")},
            reclaim=_without_guard("reader is dead"),
        ),
        mutant(
            "inherit",
            "a dead reader's row is not zeroed, and its successor finds it",
            {("reclaim", "row_is_a_members")},
            reclaim=lambda step, *_: step.without_change("word").without_change("seen"),
        ),
        mutant(
            "overwrite",
            "a stale get stores over the word of a live lease",
            {("announce", "lease_has_its_word"), ("announce", "get_is_alone")},
            announce=_announce_overwrites,
        ),
        mutant(
            "racycount",
            "the count and the store of zero are not one step",
            {("release_hold", "lease_has_its_word")},
            release_hold=_without_guard("count is one"),
        ),
        mutant(
            "reput",
            "a draining slot is filled again",
            {("claim", "held_is_not_reused"), ("claim", "occupied_is_newest")},
            claim=_re_put_while_draining,
        ),
        mutant(
            "early_publish",
            "the generation opens before the payload is complete",
            {("publish_object", "published_is_complete")},
            publish_object=_without_guard("payload is complete"),
        ),
        mutant(
            "abort_leak",
            "an aborted put does not give its slot back",
            {("abort", "used_has_a_stage")},
            abort=_without_change("freed"),
        ),
    ]


MUTANTS: dict[str, dict[str, Mutant]] = {
    "message_slots": {each.name: each for each in _message_mutants()},
    "object_slots": {each.name: each for each in _object_mutants()},
}
