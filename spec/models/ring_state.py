"""The ring: what lies in shared memory, what each process knows, and how stores become visible.

A store first goes into its process's **store buffer** (oldest first) and reaches shared memory in a step of its own,
`flush`. This is what x86 does (TSO), and it is the reason why a sleeper and its waker need fences: without one a
process can load its partner's word while its own store is still on the way. A fence is a step that waits until the
buffer is empty; an exchange is a fence, too.

Positions count records. Only differences between them matter, so after a step all positions are lowered by the
smallest one. The number of states is finite and the number of records has no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from spec.model import Action, put


class WriterStep:
    """What the writer does next."""

    IDLE = "idle"
    RESERVE = "reserve room"
    WRITE = "write the record"
    PUBLISH = "publish"
    WAKE_FENCE = "fence before waking"
    WAKE = "look at a reader's park word"
    FUTEX_WAKE = "wake a reader"
    PARK = "set its park word"
    PARK_FENCE = "fence before the re-check"
    RECHECK = "look for room again"
    SLEEP = "call futex_wait"
    ASLEEP = "asleep"
    UNPARK = "clear its park word, try again"
    UNPARK_TO_WRITE = "clear its park word, write"
    DEAD = "dead"
    # with a fault only
    LATE_WRITE = "write the record after publishing"
    WAKE_SEEN = "wake those seen parked earlier"
    CLEAR = "clear a reader's park word after waking"
    EARLY_RECHECK = "look for room before parking"
    LATE_PARK = "set its park word after the re-check"


class ReaderStep:
    """What a reader does next."""

    IDLE = "idle"
    LOOK = "look for a record"
    READ = "read the record"
    ADVANCE = "advance its cursor"
    CURSOR_FENCE = "fence before waking"
    WAKE = "look at the writer's park word"
    FUTEX_WAKE = "wake the writer"
    PARK = "set its park word"
    PARK_FENCE = "fence before the re-check"
    RECHECK = "look for a record again"
    SLEEP = "call futex_wait"
    ASLEEP = "asleep"
    UNPARK = "clear its park word"
    LAST_LOOK = "take a last look"
    WRITER_DIED = "raised WriterDied"
    END = "closed"
    LEFT_WAKE = "left: look at the writer's park word"
    LEFT_FUTEX_WAKE = "left: wake the writer"
    GONE = "left"
    DEAD = "dead"
    DEAD_WAKER = "dead, with a wake that it never gave"
    JOINING = "joining"
    # with a fault only
    SELF_JOINED = "joined with a cursor of its own"
    EARLY_RECHECK = "look again before parking"
    LATE_PARK = "set its park word after the re-check"
    EARLY_ADVANCE = "advance its cursor before reading"
    LATE_READ = "read after advancing"
    PID_CHECK = "look at the writer's pidfd after looking at the ring"


# A waker in one of these steps is about to look at every park word (again), or to wake.
WRITER_IS_WAKING = frozenset(
    (
        WriterStep.PUBLISH,
        WriterStep.WAKE_FENCE,
        WriterStep.WAKE,
        WriterStep.FUTEX_WAKE,
        WriterStep.LATE_WRITE,
        WriterStep.WAKE_SEEN,
        WriterStep.CLEAR,
        WriterStep.DEAD,
    )
)
READER_IS_WAKING = frozenset(
    (
        ReaderStep.CURSOR_FENCE,
        ReaderStep.WAKE,
        ReaderStep.FUTEX_WAKE,
        ReaderStep.LEFT_WAKE,
        ReaderStep.LEFT_FUTEX_WAKE,
    )
)
BETWEEN_RECORDS = frozenset((WriterStep.IDLE, WriterStep.RESERVE, WriterStep.UNPARK))  # membership is looked at here
LEFT = frozenset((ReaderStep.LEFT_WAKE, ReaderStep.LEFT_FUTEX_WAKE, ReaderStep.GONE))
DEAD = frozenset((ReaderStep.DEAD, ReaderStep.DEAD_WAKER))
WITHOUT_POSITION = LEFT | DEAD | {ReaderStep.JOINING}

# Shared cells as a store buffer names them. Each process stores only to its own park word and its own position.
PUBLISHED, CURSOR, PARK_WORD = "published", "cursor", "park word"
PARKED, RUNNING = 1, 0

SHUTDOWN_CLOSED, SHUTDOWN_UNPARKED, SHUTDOWN_DONE = 1, 2, 3  # how far shutdown() has come; 0: not called


class Store(NamedTuple):
    """A store on its way to shared memory."""

    cell: str
    value: int


class Writer(NamedTuple):
    """The writer's private state."""

    step: str
    waking: int  # the reader whose park word it looks at
    position: int  # where its next record goes
    buffer: tuple[Store, ...]
    members: tuple[bool, ...]  # its private mask, changed between two records only


class Reader(NamedTuple):
    """A reader's private state, and what its other threads have done with shutdown()."""

    step: str
    position: int  # the next record to read
    buffer: tuple[Store, ...] = ()
    closed: bool = False
    shutdown: int = 0


class State(NamedTuple):
    """The processes and the shared memory."""

    writer: Writer
    readers: tuple[Reader, ...]
    published: int
    park: tuple[int, ...]  # one word per reader, the writer's last; it is the word that the futex waits on
    cursors: tuple[int | None, ...]  # None: dropped, it counts no more for room


@dataclass(frozen=True)
class Config:
    """The size of the instance, what may happen in it, and what a fault changes."""

    readers: int = 1
    capacity: int = 1
    shutdown: bool = True  # a reader may call shutdown(), from any thread, at any moment
    leave: bool = True  # a reader that has been shut down leaves the membership
    deaths: bool = True
    rejoin: bool = True  # a new process may take a dead reader's rank
    spurious: bool = True  # futex_wait may return for no reason
    slices: bool = False  # lost wakes of dead wakers are remembered and left to the end of a slice
    changed: tuple[tuple[Action, Action | None], ...] = ()  # (an action, the faulty one in its place or None)
    added: tuple[Action, ...] = ()  # actions that only a fault has


def initial(config: Config) -> State:
    """Nothing published, all readers are members and nobody sleeps."""
    return State(
        Writer(WriterStep.IDLE, 0, 0, (), (True,) * config.readers),
        (Reader(ReaderStep.IDLE, 0),) * config.readers,
        0,
        (RUNNING,) * (config.readers + 1),
        (0,) * config.readers,
    )


def writer_goes(state: State, step: str, waking: int = 0, **changes: Any) -> State:
    """The writer goes on to `step`."""
    return state._replace(writer=state.writer._replace(step=step, waking=waking, **changes))


def reader_goes(state: State, reader: int, step: str, **changes: Any) -> State:
    """A reader goes on to `step`."""
    writer, readers, published, park, cursors = state
    return State(writer, put(readers, reader, readers[reader]._replace(step=step, **changes)), published, park, cursors)


def with_park_word(state: State, owner: int, word: int) -> State:
    """The state after a process's park word has changed."""
    writer, readers, published, park, cursors = state
    return State(writer, readers, published, put(park, owner, word), cursors)


def has_room(config: Config, state: State) -> bool:
    """No member is a whole ring behind."""
    position, members = state.writer.position, state.writer.members
    return all(
        cursor is None or not member or position - cursor < config.capacity
        for cursor, member in zip(state.cursors, members, strict=True)
    )


def futex_wake_reader(state: State, reader: int) -> State:
    """Whoever sleeps on the reader's park word goes on: it clears its word and looks again."""
    if state.readers[reader].step != ReaderStep.ASLEEP:
        return state
    return reader_goes(state, reader, ReaderStep.LOOK)


def futex_wake_writer(state: State) -> State:
    """If the writer sleeps on its park word it goes on and looks again."""
    return writer_goes(state, WriterStep.RESERVE) if state.writer.step == WriterStep.ASLEEP else state


def newest(buffer: tuple[Store, ...], cell: str, in_memory: int) -> int:
    """The value that a cell will have when the whole buffer has been flushed."""
    for store in reversed(buffer):
        if store.cell == cell:
            return store.value
    return in_memory


def lowered(buffer: tuple[Store, ...], by: int) -> tuple[Store, ...]:
    """A store buffer with all positions lowered."""
    return tuple(store if store.cell == PARK_WORD else Store(store.cell, store.value - by) for store in buffer)


def normal(state: State) -> State:
    """The same state with all positions lowered by the smallest one."""
    writer, readers, published, park, cursors = state
    lowest = min([published, *(each for each in cursors if each is not None)])  # no other position is before these
    if lowest == 0:
        return state
    return State(
        writer._replace(position=writer.position - lowest, buffer=lowered(writer.buffer, lowest)),
        tuple(
            reader
            if reader.step in WITHOUT_POSITION
            else reader._replace(position=reader.position - lowest, buffer=lowered(reader.buffer, lowest))
            for reader in readers
        ),
        published - lowest,
        park,
        tuple(None if cursor is None else cursor - lowest for cursor in cursors),
    )
