"""Membership: the table of members, what each process and the writer know, and what hangs on an entry.

To see what an entry protects, each rank carries as much of the two slot protocols as is needed: one message slot, for
which members owe a release, and one object word. Waiting is modelled without store buffers; `spec.models.ring` has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from spec.model import Action, put

# A member word: state, pid and start time in one. NAMELESS occurs with a fault only: a state without a process.
EMPTY, JOINING, JOINED, LEFT, NAMELESS = "empty", "joining", "joined", "left", "nameless"

# What a rank has to do with the message slot; OLD: the slot carries a later message by now.
NOTHING, UNREAD, LEASED, OLD_UNREAD, OLD_LEASED = "-", "unread", "leased", "old unread", "old leased"
OUTDATED = {UNREAD: OLD_UNREAD, LEASED: OLD_LEASED}

# What a rank has to do with the object: a view and the word that protects it, a word that nobody alive has set, or (with
# a fault only) a view without a word.
HELD, LEFT_OVER, UNPROTECTED = "held", "left over", "unprotected"


class ReaderStep:
    """What the process on a rank does next."""

    NOBODY = "no process"
    PARK = "set its park word"
    RECHECK = "is it admitted?"
    SLEEP = "call futex_wait"
    ASLEEP = "asleep"
    UNPARK = "clear its park word, look again"
    RUNNING = "member"
    GONE = "left"
    GAVE_UP = "raised WriterDied"
    DEAD = "dead"
    REUSED = "dead, and its pid is another process's"  # with a variant only
    NAME = "write its pid"  # with a fault only


WAITING = frozenset(
    (ReaderStep.PARK, ReaderStep.RECHECK, ReaderStep.SLEEP, ReaderStep.ASLEEP, ReaderStep.UNPARK, ReaderStep.NAME)
)
KNOWN_DEAD = frozenset((ReaderStep.DEAD, ReaderStep.REUSED))  # the start time tells the two processes apart
NOT_ALIVE = KNOWN_DEAD | {ReaderStep.NOBODY}


class WriterStep:
    """What the writer does next. Between two messages it is IDLE."""

    IDLE = "idle"
    PUBLISH = "publish the slot"
    ENQUEUE = "send the message"
    ADMIT = "admit a joiner"
    LOOK = "look at the joiner's park word"
    WAKE = "wake the joiner"
    TIMED_OUT = "raised TimeoutError"
    DEAD = "dead"


# Deaths may be dealt with in these steps, also in the middle of a message.
MAY_RECLAIM = frozenset((WriterStep.IDLE, WriterStep.PUBLISH, WriterStep.ENQUEUE))

NOT_READY, READY, DEGRADED = "not ready", "ready", "ready once, some have died or left since"


class Writer(NamedTuple):
    """The writer's private state."""

    step: str
    rank: int  # the joiner that it admits
    ready: str
    named: tuple[int, ...] = ()  # the ranks that its TimeoutError names


class Rank(NamedTuple):
    """One entry of the table with all that hangs on it."""

    word: str = EMPTY
    step: str = ReaderStep.NOBODY
    parked: bool = False
    member: bool = False  # in the writer's private mask
    message: str = NOTHING
    owes: bool = False  # required to release what the slot carries now
    object: str = NOTHING


class State(NamedTuple):
    """Everything there is."""

    writer: Writer
    ranks: tuple[Rank, ...]


@dataclass(frozen=True)
class Config:
    """The size of the instance, what is followed, and what a fault changes."""

    readers: int = 1
    messages: bool = True
    objects: bool = True
    leave: bool = True  # a reader may leave and live on
    changed: tuple[tuple[Action, Action | None], ...] = ()  # (an action, the faulty one in its place or None)
    added: tuple[Action, ...] = ()  # actions that only a fault has


UNUSED = Rank()


def initial(config: Config) -> State:
    """No reader has come yet."""
    return State(Writer(WriterStep.IDLE, 0, NOT_READY), (UNUSED,) * config.readers)


def with_rank(state: State, rank: int, **changes: Any) -> State:
    """The state after one rank has changed."""
    return State(state.writer, put(state.ranks, rank, state.ranks[rank]._replace(**changes)))


def writer_goes(state: State, step: str, rank: int = 0) -> State:
    """The writer goes on to `step`."""
    return State(Writer(step, rank, state.writer.ready), state.ranks)


def degraded(state: State) -> State:
    """A member has died or left: not everybody is there any more."""
    if state.writer.ready != READY:
        return state
    return State(state.writer._replace(ready=DEGRADED), state.ranks)
