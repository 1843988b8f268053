"""What an explicit state of the message-slot model says, in the relations of the proof.

Each slot gets one thing for its current grant and one more for every stale reference.
"""

from __future__ import annotations

from collections.abc import Iterator

from spec.checker import reachable
from spec.models import message_slots
from spec.models import message_slots_state as m
from spec.prove.agreement import Agreement, Facts, compare
from spec.prove.finite import Structure, Thing
from spec.prove.message_slots import MESSAGE_SLOTS

NOW, DEAD = "now", "dead"
PHASES = {
    m.RECEIVED: "received",
    m.LEASED: "viewed",
    m.DMA: "in_dma",
    m.EARLY: "in_dma",
    m.DROPPED: "finished",
}


def message_slots_agree(config: m.Config, *, symmetry: bool = True) -> Agreement:
    """Holds the invariant of message slots against every reachable state of one instance.

    With `symmetry` one state stands for all that differ in numbering only: no conjunct looks at numbers.
    """
    states = reachable(message_slots.model(config), symmetry=symmetry)
    return compare(MESSAGE_SLOTS, states, message_structure)


def message_structure(state: m.State) -> Structure:
    """What an explicit state of the message-slot model says, in the relations of the proof."""
    facts = Facts(MESSAGE_SLOTS)
    if state.writer != m.DEAD:
        facts.say("writer_alive")
    for rank, member in enumerate(state.members):
        _rank_facts(facts, state, rank, member)
    for slot, record in enumerate(state.slots):
        _slot_facts(facts, state, slot, record)
    for slot, phase, (rank, which), current in _references(state):
        grant = _grant(facts, slot, NOW if current else (phase, rank, which))
        facts.say(phase, grant, _reader(facts, rank, which))
    for rank, fenced in enumerate(state.quarantine):
        for slot in fenced:
            facts.say("quarantined", _grant(facts, slot, NOW), _reader(facts, rank, DEAD))
    return facts.structure()


def _rank_facts(facts: Facts, state: m.State, rank: int, member: str) -> None:
    facts.thing("Rank", rank)
    if member == m.EMPTY:
        return
    reader = _reader(facts, rank, NOW)
    facts.say("taken", rank)
    facts.say("member", reader)
    if member in m.IN_VIEW:
        facts.say("counted", rank)
    if member in (m.LEAVING, m.LEFT):
        facts.say("left", reader)
    if state.alive[rank]:
        facts.say("alive", reader)


def _reader(facts: Facts, rank: int, which: str) -> Thing:
    """The present process of a rank, or (all in one) those that died on it and were reclaimed."""
    reader = facts.thing("Reader", (rank, which), rank_of=rank)
    facts.say("started", reader)
    return reader


def _grant(facts: Facts, slot: int, which: Thing) -> Thing:
    """The current grant of a slot, or an old one that one reference still names."""
    grant = (slot, which)
    if grant not in facts.things["Grant"]:
        facts.thing("Grant", grant, slot_of=slot)
        facts.say("used", grant)
        if which == NOW:
            facts.say("current", slot, grant)
        else:
            facts.say("sent", grant)
            facts.say("complete", grant)
    return grant


def _slot_facts(facts: Facts, state: m.State, slot: int, record: m.Slot) -> None:
    facts.thing("Slot", slot)
    grant = _grant(facts, slot, NOW)
    facts.say(_stage(state, slot, record), grant)
    if slot in state.pending and record.owner != m.PUBLISHED:  # only a fault claims what its message still names
        facts.say("pending", _grant(facts, slot, "overtaken"))
    if record.complete:
        facts.say("complete", grant)
    for rank, (done, required) in enumerate(zip(record.done, record.required, strict=True)):
        if done:
            facts.say("done", grant, rank)
        if required:
            facts.say("required", grant, rank)


def _stage(state: m.State, slot: int, record: m.Slot) -> str:
    """A free slot counts as aborted: nothing depends on which way it became free."""
    if record.owner == m.FREE:
        return "freed"
    if record.owner == m.CLAIMED:
        return "filling"
    return "pending" if slot in state.pending or _died_pending(state, slot, record) else "sent"


def _died_pending(state: m.State, slot: int, record: m.Slot) -> bool:
    """The open message died with its writer: its slots are those that a living reader owes and has never met."""
    if state.writer != m.DEAD:
        return False
    met = {reader for number, _, reader, _ in _references(state) if number == slot}
    return any(
        required and not done and state.alive[rank] and (rank, NOW) not in met
        for rank, (done, required) in enumerate(zip(record.done, record.required, strict=True))
    )


def _references(state: m.State) -> Iterator[tuple[int, str, tuple[int, str], bool]]:
    """Every reference: the slot, the proof's word for the phase, whose it is, and is it to the current grant."""
    for rank, queue in enumerate(state.queues):
        for message in queue:
            for entry in message:
                yield entry.slot, "queued", (rank, NOW), entry.current
    for rank, row in enumerate(state.refs):
        for slot, ref in enumerate(row):
            if ref.phase != m.NONE:
                yield slot, PHASES[ref.phase], (rank, NOW), ref.current
    for rank, row in enumerate(state.orphans):
        for slot, ref in enumerate(row):
            if ref.phase != m.NONE:
                reclaimed = state.alive[rank] or state.members[rank] == m.EMPTY or slot in state.quarantine[rank]
                which = DEAD if reclaimed else NOW
                yield slot, PHASES[ref.phase], (rank, which), ref.current
