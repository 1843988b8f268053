"""Proof and explicit model speak of the same protocol: every conjunct holds on every reachable explicit state.

The explicit models keep one bit of a generation, "still current".  Here each slot gets one thing for its current
grant and one more for every stale reference, so a conjunct can be evaluated as it stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from spec.checker import reachable
from spec.model import Model
from spec.models import message_slots
from spec.models import message_slots_state as m
from spec.prove.finite import Structure, Thing, evaluator
from spec.prove.logic import Theory
from spec.prove.message_slots import MESSAGE_SLOTS

NOW, DEAD = "now", "dead"
PHASES = {
    m.RECEIVED: "received",
    m.LEASED: "viewed",
    m.DMA: "in_dma",
    m.EARLY: "in_dma",
    m.DROPPED: "finished",
}


@dataclass(frozen=True)
class Disagreement:
    """An explicit state on which conjuncts fail."""

    state: Any
    conjuncts: tuple[str, ...]


@dataclass(frozen=True)
class Agreement:
    """What the comparison found: how many states it looked at, and the first disagreement."""

    states: int
    disagreement: Disagreement | None


class _Facts:
    """Collects things and facts of one structure."""

    def __init__(self, theory: Theory[Any]) -> None:
        self.things: dict[str, dict[Thing, None]] = {sort.name(): {} for sort in theory.sorts}
        self.relations: dict[str, set[tuple[Thing, ...]]] = {each.name: set() for each in theory.state()}
        self.functions: dict[str, dict[tuple[Thing, ...], Thing]] = defaultdict(dict)

    def say(self, relation: str, *things: Thing) -> None:
        self.relations[relation].add(things)

    def structure(self) -> Structure:
        return Structure(
            {sort: tuple(things) for sort, things in self.things.items()},
            {name: frozenset(held) for name, held in self.relations.items()},
            self.functions,
        )


def compare(theory: Theory[Any], states: Iterable[Any], structure_of: Callable[[Any], Structure]) -> Agreement:
    """Evaluates every conjunct on the structure of every state, up to the first that fails."""
    conjuncts = evaluator(theory)
    count = 0
    for state in states:
        count += 1
        violated = conjuncts.violated(structure_of(state))
        if violated:
            return Agreement(count, Disagreement(state, tuple(violated)))
    return Agreement(count, None)


# ---- message slots -------------------------------------------------------------------------------


def message_slots_agree(config: m.Config, *, symmetry: bool = True) -> Agreement:
    """Holds the invariant of message slots against every reachable state of one instance.

    With `symmetry` one state stands for all that differ in numbering only: no conjunct looks at numbers.
    """
    instance: Model = message_slots.model(config)
    return compare(MESSAGE_SLOTS, reachable(instance, symmetry=symmetry), message_structure)


def message_structure(state: m.State) -> Structure:
    """What an explicit state of the message-slot model says, in the relations of the proof."""
    facts = _Facts(MESSAGE_SLOTS)
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


def _rank_facts(facts: _Facts, state: m.State, rank: int, member: str) -> None:
    facts.things["Rank"][rank] = None
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


def _reader(facts: _Facts, rank: int, which: str) -> Thing:
    """The present process of a rank, or (all in one) those that died on it and were reclaimed."""
    reader = (rank, which)
    facts.things["Reader"][reader] = None
    facts.functions["rank_of"][(reader,)] = rank
    facts.say("started", reader)
    return reader


def _grant(facts: _Facts, slot: int, which: Thing) -> Thing:
    """The current grant of a slot, or an old one that one reference still names."""
    grant = (slot, which)
    if grant not in facts.things["Grant"]:
        facts.things["Grant"][grant] = None
        facts.functions["slot_of"][(grant,)] = slot
        facts.say("used", grant)
        if which == NOW:
            facts.say("current", slot, grant)
        else:
            facts.say("sent", grant)
            facts.say("complete", grant)
    return grant


def _slot_facts(facts: _Facts, state: m.State, slot: int, record: m.Slot) -> None:
    facts.things["Slot"][slot] = None
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
