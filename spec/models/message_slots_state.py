"""The state of the message-slot model, when a slot is free, and which states are alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from spec.model import Action
from spec.symmetry import Order

# What the writer does next. A claimed slot is copied, then published; IDLE is between two slots or two messages.
IDLE, COPY, PUBLISH, DEAD = "idle", "copy", "publish", "dead"
# The owner of a slot, private to the writer.
FREE, CLAIMED, PUBLISHED = "free", "claimed", "published"
LOANED = "loaned"  # with the option `loans` only: the caller fills it, and may put it into a message
# What a reader has to do with a slot. EARLY occurs with a fault only: released, and yet its DMA still runs.
NONE, RECEIVED, LEASED, DMA, DROPPED, EARLY = "-", "received", "leased", "dma", "dropped", "early"
# The writer's private view of a rank. LEAVING: the reader has stored LEFT, the writer has not looked yet.
EMPTY, JOINED, LEAVING, LEFT = "empty", "joined", "leaving", "left"
LENDER = "writer"  # with the option `loans` only: the last row is the writer's own
IN_VIEW = (JOINED, LEAVING)
NO_SLOT = -1


class Slot(NamedTuple):
    """One entry of the slot table: who owns it, is the payload complete, and per reader two bits."""

    owner: str
    complete: bool
    done: tuple[bool, ...]  # the reader's done word equals the slot's generation
    required: tuple[bool, ...]  # the reader has to release this generation before the slot is free


class Ref(NamedTuple):
    """What one reader has to do with one slot, and whether it means the slot's current generation."""

    phase: str
    current: bool


class Entry(NamedTuple):
    """A slot as a message names it."""

    slot: int
    current: bool


Message = tuple[Entry, ...]


class State(NamedTuple):
    """Everything there is. Where there is an item per reader, `loans` adds one for the writer."""

    writer: str
    current: int  # the slot being filled
    pending: tuple[int, ...]  # published slots of the message that is not out yet
    slots: tuple[Slot, ...]
    alive: tuple[bool, ...]
    members: tuple[str, ...]
    refs: tuple[tuple[Ref, ...], ...]
    queues: tuple[tuple[Message, ...], ...]
    quarantine: tuple[tuple[int, ...], ...]  # slots that a dead reader owed: not free until they expire
    orphans: tuple[tuple[Ref, ...], ...]  # DMA of dead readers that nobody waits for except the quarantine


def is_free(config: Config, state: State, slot: int) -> bool:
    """The writer may claim the slot: nobody who is required still has to release it."""
    owner, _, done, required = state.slots[slot]
    if owner == FREE:
        return True
    if owner not in (PUBLISHED, LOANED) or slot in state.pending or any(slot in fenced for fenced in state.quarantine):
        return False
    return all(is_done or not is_required for is_done, is_required in zip(done, required, strict=True))


@dataclass(frozen=True)
class Config:
    """The size of the instance, its options, and what a fault changes."""

    slots: int = 2
    readers: int = 2
    tensors: int = 2  # in one message, at most
    queue: int = 2  # messages in one reader's queue, at most
    leave: bool = False  # a reader may call shutdown() and live on
    skip: bool = False  # a reader may skip a message without looking at it
    quarantine: bool = False  # a dead reader's DMA may outlive the death signal
    loans: bool = False  # the writer lends slots to its caller: one more row, which holds them
    symmetric: bool = True  # no action treats one reader or slot unlike another
    without: tuple[str, ...] = ()  # the names of actions that nobody takes
    changed: tuple[Action, ...] = ()  # actions that replace the one of the same name, or come on top
    is_free: Callable[[Config, State, int], bool] = is_free

    @property
    def rows(self) -> int:
        """Whose release a slot may have to wait for: the readers, and the writer for its loans."""
        return self.readers + self.loans


UNUSED = Ref(NONE, False)
STALE = {
    ref: UNUSED if ref.phase == NONE else Ref(ref.phase, False)
    for ref in (Ref(*each) for each in product((NONE, RECEIVED, LEASED, DMA, DROPPED, EARLY), (False, True)))
}


def initial(config: Config) -> State:
    """All slots free, all readers members, nothing under way."""
    nobody, everybody = (False,) * config.rows, (True,) * config.rows
    return State(
        writer=IDLE,
        current=NO_SLOT,
        pending=(),
        slots=(Slot(FREE, False, nobody, nobody),) * config.slots,
        alive=everybody,
        members=(JOINED,) * config.readers + (LENDER,) * config.loans,
        refs=((UNUSED,) * config.slots,) * config.rows,
        queues=((),) * config.rows,
        quarantine=((),) * config.rows,
        orphans=((UNUSED,) * config.slots if config.quarantine else (),) * config.rows,
    )


def reader_keys(state: State) -> list[tuple[object, ...]]:
    """What the state says about each reader without naming a slot. A writer's own row sorts last, where it is."""
    return [
        (alive, member, sorted(refs), [len(message) for message in queue])
        for alive, member, refs, queue in zip(state.alive, state.members, state.refs, state.queues, strict=True)
    ]


def columns(state: State, readers: Order) -> list[tuple[object, ...]]:
    """Everything that the state says about each slot."""
    named: list[list[tuple[int, int, int, bool]]] = [[] for _ in state.slots]
    for new, old in enumerate(readers):
        for depth, message in enumerate(state.queues[old]):
            for place, entry in enumerate(message):
                named[entry.slot].append((new, depth, place, entry.current))
    return [
        (
            owner,
            complete,
            number == state.current,
            [place for place, slot in enumerate(state.pending) if slot == number],
            [(done[r], required[r], state.refs[r][number]) for r in readers],
            named[number],
            [(number in state.quarantine[r], state.orphans[r][number : number + 1]) for r in readers],
        )
        for number, (owner, complete, done, required) in enumerate(state.slots)
    ]


def renumber(state: State, readers: Order, slots: Order) -> State:
    """The same state with readers and slots in another order."""
    new = {old: number for number, old in enumerate(slots)} | {NO_SLOT: NO_SLOT}
    each = [state.slots[old] for old in slots]
    return State(
        state.writer,
        new[state.current],
        tuple([new[slot] for slot in state.pending]),
        tuple(
            [
                Slot(s.owner, s.complete, tuple([s.done[r] for r in readers]), tuple([s.required[r] for r in readers]))
                for s in each
            ]
        ),
        tuple([state.alive[r] for r in readers]),
        tuple([state.members[r] for r in readers]),
        tuple([tuple([state.refs[r][old] for old in slots]) for r in readers]),
        tuple([tuple([tuple([Entry(new[e.slot], e.current) for e in m]) for m in state.queues[r]]) for r in readers]),
        tuple([tuple(sorted([new[slot] for slot in state.quarantine[r]])) for r in readers]),
        tuple([tuple([state.orphans[r][old] for old in slots]) if state.orphans[r] else () for r in readers]),
    )
