"""Object slots: what is shared, what each process knows.

**A generation number is one of three labels here.** Everything that names a generation of a slot (a word, a lease, a
handle) is compared with the slot's generation for equality only. So it is enough to know whether it names the
`current` generation, the one just `evicted` (its bytes are still there until the slot is claimed again), or an `older`
one, which is stale for ever. Eviction and the next claim move the labels on. The message-slot model needs one bit
where this one needs three labels, because here an evicted generation may still be in use.

Handles travel by any way: a reader may try any handle ever issued, any number of times, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from spec.model import Action, put

# The owner of a slot, private to the writer. PRESCANNED occurs with a fault only.
FREE, FILLING, LIVE, DRAINING, PRESCANNED = "free", "filling", "live", "draining", "prescanned"
# Which generation of its slot something names.
CURRENT, EVICTED, OLDER, NOTHING = "current", "evicted", "older", "-"
LABELS = (CURRENT, EVICTED, OLDER)
# What a reader has: a get that has announced and not re-checked yet, a lease, a dropped lease whose DMA still runs, a
# dropped lease to be released. The others occur with a fault only: released, and yet its DMA runs; counted down, and
# the word not cleared yet; a live handle that missed.
CHECKING, HELD, DMA, DROPPED, EARLY, CLEARING, MISSED = (
    "checking", "held", "dma", "dropped", "early", "clearing", "missed",
)  # fmt: skip
# A reader's entry in the member table. JOINING occurs with a fault only: here a join is the admission by the writer.
EMPTY, JOINING, JOINED = "empty", "joining", "joined"


class Slot(NamedTuple):
    """One entry of the slot table."""

    owner: str
    complete: bool  # the extent holds the bytes of the current generation, or of the evicted one
    clear: tuple[bool, ...]  # since the eviction, the reader's row has once been seen clear
    oldest_handle: str  # the oldest generation for which a handle was given out: NOTHING, EVICTED or OLDER
    delayed: bool = False  # with a fault only: the new generation is still in the writer's store buffer
    refilled: bool = False  # with a fault only: filled again while it drains


class Reference(NamedTuple):
    """A get or a lease of one reader on one slot."""

    phase: str
    label: str


class Hold(NamedTuple):
    """What one reader has to do with one slot."""

    word: str = NOTHING  # the hold word as the reader sees it
    counted: int = 0  # private to the reader's process: its leases on the word's generation
    visible: str = NOTHING  # the hold word as everybody else sees it
    references: tuple[Reference, ...] = ()
    fenced: str = NOTHING  # quarantined by the writer after a death
    orphan: str = NOTHING  # the DMA of a dead process still reads the slot


class Reader(NamedTuple):
    """A reader's process and its entry in the member table."""

    alive: bool
    member: str
    holds: tuple[Hold, ...]


class State(NamedTuple):
    """Everything there is."""

    writer_alive: bool
    slots: tuple[Slot, ...]
    readers: tuple[Reader, ...]


def every_row(state: State, reader: int) -> bool:
    """The eviction scans the rows of all readers, members or not."""
    return True


def is_held(hold: Hold) -> bool:
    """The row still protects the evicted generation: by its hold word, or from quarantine."""
    return hold.visible == EVICTED or hold.fenced == EVICTED


@dataclass(frozen=True)
class Config:
    """The size of the instance, its options, and what a fault changes."""

    slots: int = 1
    readers: int = 1
    leases: int = 2  # of one reader on one slot, at most
    writer_dies: bool = True
    quarantine: bool = False  # a dead reader's DMA may outlive the death signal
    scans_row: Callable[[State, int], bool] = every_row
    is_held: Callable[[Hold], bool] = is_held
    changed: tuple[tuple[Action, Action | None], ...] = ()  # (an action, the faulty one in its place or None)
    added: tuple[Action, ...] = ()  # actions that only a fault has


UNUSED = Hold()


def initial(config: Config) -> State:
    """All slots free, all readers members, no handle given out yet."""
    slot = Slot(FREE, False, (False,) * config.readers, NOTHING)
    reader = Reader(True, JOINED, (UNUSED,) * config.slots)
    return State(True, (slot,) * config.slots, (reader,) * config.readers)


def with_slot(state: State, slot: int, record: Slot) -> State:
    """The state after a slot has changed."""
    return State(state.writer_alive, put(state.slots, slot, record), state.readers)


def with_reader(state: State, reader: int, record: Reader) -> State:
    """The state after a reader has changed."""
    return State(state.writer_alive, state.slots, put(state.readers, reader, record))


def with_hold(state: State, reader: int, slot: int, hold: Hold) -> State:
    """The state after what a reader has to do with a slot has changed."""
    alive, member, holds = state.readers[reader]
    return with_reader(state, reader, Reader(alive, member, put(holds, slot, hold)))


def adding(hold: Hold, phase: str, label: str) -> tuple[Reference, ...]:
    """The references with one more, in a fixed order."""
    return tuple(sorted((*hold.references, Reference(phase, label))))


def moving(hold: Hold, phase: str, label: str, into: str | None) -> tuple[Reference, ...] | None:
    """The references with one of them in another phase, or gone; None if there is no such one."""
    reference = Reference(phase, label)
    if reference not in hold.references:
        return None
    rest = list(hold.references)
    rest.remove(reference)
    if into is not None:
        rest.append(Reference(into, label))
    return tuple(sorted(rest))


def relabelled(state: State, slot: int, labels: dict[str, str]) -> State:
    """The state after the slot's generation has moved on, so that everything that names one has another label."""
    readers = []
    for alive, member, holds in state.readers:
        word, count, visible, references, fenced, orphan = holds[slot]
        hold = Hold(
            labels[word],
            count,
            labels[visible],
            tuple(sorted(Reference(phase, labels[label]) for phase, label in references)),
            labels[fenced],
            labels[orphan],
        )
        readers.append(Reader(alive, member, put(holds, slot, hold)))
    return State(state.writer_alive, state.slots, tuple(readers))


AFTER_EVICTION = {CURRENT: EVICTED, EVICTED: OLDER, OLDER: OLDER, NOTHING: NOTHING}
AFTER_CLAIM = {CURRENT: CURRENT, EVICTED: OLDER, OLDER: OLDER, NOTHING: NOTHING}


def may_be_tried(slot: Slot, label: str) -> bool:
    """A handle of that generation exists, so that a reader may try it at any time."""
    if label == CURRENT:
        return slot.owner in (LIVE, PRESCANNED)
    if label == OLDER:
        return slot.oldest_handle == OLDER
    still_evicted = slot.owner == DRAINING or slot.refilled or (slot.owner == FREE and slot.complete)
    return slot.oldest_handle != NOTHING and still_evicted
