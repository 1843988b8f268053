"""What an explicit state of the object-slot model says, in the relations of the proof.

Each slot gets a thing for the object that fills or lives in it, one for the object last evicted, and one for all older.
"""

from __future__ import annotations

from spec.checker import reachable
from spec.models import object_slots
from spec.models import object_slots_state as o
from spec.prove.agreement import Agreement, Facts, compare
from spec.prove.finite import Structure, Thing
from spec.prove.object_slots import OBJECT_SLOTS

NOW, DEAD = "now", "dead"
STAGES = {
    o.FREE: "freed",
    o.FILLING: "filling",
    o.LIVE: "live",
    o.PRESCANNED: "live",
    o.DRAINING: "draining",
}
PHASES = {
    o.CHECKING: "checking",
    o.HELD: "viewed",
    o.DMA: "in_dma",
    o.EARLY: "in_dma",
    o.DROPPED: "finished",
    o.CLEARING: "finished",
}


def object_slots_agree(config: o.Config) -> Agreement:
    """Holds the invariant of object slots against every reachable state of one instance."""
    return compare(OBJECT_SLOTS, reachable(object_slots.model(config)), object_structure)


def object_structure(state: o.State) -> Structure:
    """What an explicit state of the object-slot model says, in the relations of the proof."""
    facts = Facts(OBJECT_SLOTS)
    if state.writer_alive:
        facts.say("writer_alive")
    for slot, record in enumerate(state.slots):
        _slot_facts(facts, slot, record)
    for rank, reader in enumerate(state.readers):
        _reader_facts(facts, rank, reader)
        for slot, hold in enumerate(reader.holds):
            _hold_facts(facts, rank, slot, reader, hold)
    return facts.structure()


def _object(facts: Facts, slot: int, label: str) -> Thing:
    """The object of a slot that a label means; older ones have long been evicted, and count as one."""
    thing = (slot, label)
    if thing not in facts.things["Object"]:
        facts.thing("Object", thing, slot_of=slot)
        facts.say("used", thing)
        if label == o.OLDER:
            for relation in ("freed", "issued", "complete"):
                facts.say(relation, thing)
    return thing


def _slot_facts(facts: Facts, slot: int, record: o.Slot) -> None:
    """A slot that was never used counts as one whose object was aborted: nothing depends on the difference."""
    facts.thing("Slot", slot)
    evicted = record.owner == o.DRAINING or (record.owner == o.FREE and record.complete)
    thing = _object(facts, slot, o.EVICTED if evicted else o.CURRENT)
    facts.say("newest", slot, thing)
    facts.say(STAGES[record.owner], thing)
    if record.complete:
        facts.say("complete", thing)
    if evicted or record.owner in (o.LIVE, o.PRESCANNED):
        facts.say("issued", thing)
    if record.owner in (o.LIVE, o.PRESCANNED) or record.delayed:
        facts.say("is_open", thing)
    for rank, clear in enumerate(record.clear):
        if clear:
            facts.say("cleared", thing, rank)
    if record.oldest_handle == o.OLDER:
        _object(facts, slot, o.OLDER)


def _reader(facts: Facts, rank: int, which: str) -> Thing:
    """The present process of a rank, or (all in one) those that died on it and were reclaimed."""
    reader = facts.thing("Reader", (rank, which), rank_of=rank)
    facts.say("started", reader)
    return reader


def _reader_facts(facts: Facts, rank: int, record: o.Reader) -> None:
    facts.thing("Rank", rank)
    if record.member != o.EMPTY:
        facts.say("taken", rank)
        facts.say("member", _reader(facts, rank, NOW))
    if record.alive:
        facts.say("alive", _reader(facts, rank, NOW))


def _hold_facts(facts: Facts, rank: int, slot: int, record: o.Reader, hold: o.Hold) -> None:
    for relation, label in (("word", hold.word), ("seen", hold.visible)):
        if label != o.NOTHING:
            facts.say(relation, _object(facts, slot, label), rank)
    for number, (phase, label) in enumerate(hold.references):
        if phase in PHASES:
            _lease(facts, (rank, slot, number), PHASES[phase], _object(facts, slot, label), _reader(facts, rank, NOW))
    if hold.fenced != o.NOTHING:
        facts.say("quarantined", _object(facts, slot, hold.fenced), _reader(facts, rank, DEAD))
    if hold.orphan != o.NOTHING:
        reclaimed = hold.fenced == hold.orphan or record.alive or record.member == o.EMPTY
        owner = _reader(facts, rank, DEAD if reclaimed else NOW)
        _lease(facts, (rank, slot, "orphan"), "in_dma", _object(facts, slot, hold.orphan), owner)


def _lease(facts: Facts, lease: Thing, phase: str, thing: Thing, reader: Thing) -> None:
    facts.thing("Lease", lease, object_of=thing, reader_of=reader)
    facts.say("begun", lease)
    facts.say(phase, lease)
