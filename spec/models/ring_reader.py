"""The ring's reader, step by step: look for a record, read it, advance, wake the writer; sleep if there is none.

A reader may be closed by `shutdown()` from any of its threads at any moment, may leave, and may die.
"""

from __future__ import annotations

from spec.model import action, put
from spec.models.ring_state import (
    CURSOR,
    DEAD,
    PARK_WORD,
    PARKED,
    RUNNING,
    SHUTDOWN_CLOSED,
    SHUTDOWN_DONE,
    SHUTDOWN_UNPARKED,
    Config,
    Reader,
    ReaderStep,
    State,
    Store,
    WriterStep,
    futex_wake_reader,
    futex_wake_writer,
    newest,
    normal,
    reader_goes,
    with_park_word,
)

READER = ("reader",)


@action("reader {reader}", over=READER, environment=True)
def call_dequeue(config: Config, state: State, reader: int) -> State | None:
    """Somebody wants a message."""
    me = state.readers[reader]
    return reader_goes(state, reader, ReaderStep.LOOK) if me.step == ReaderStep.IDLE and not me.closed else None


@action("reader {reader}", over=READER, part_of="read", edge="[closed]")
def see_closed(config: Config, state: State, reader: int) -> State | None:
    """The reader has been shut down: the call ends."""
    me = state.readers[reader]
    return reader_goes(state, reader, ReaderStep.END) if me.step == ReaderStep.LOOK and me.closed else None


@action("reader {reader}", over=READER, part_of="read", edge="[ring.publish]")
def see_record(config: Config, state: State, reader: int) -> State | None:
    """Something has been published past this reader's position."""
    me = state.readers[reader]
    if me.step != ReaderStep.LOOK or me.closed or state.published <= me.position:
        return None
    return reader_goes(state, reader, ReaderStep.READ)


@action("reader {reader}", over=READER, part_of="read", edge="[ring.publish]")
def see_nothing(config: Config, state: State, reader: int) -> State | None:
    """Nothing new has been published."""
    me = state.readers[reader]
    if me.step != ReaderStep.LOOK or me.closed or state.published > me.position:
        return None
    return reader_goes(state, reader, ReaderStep.PARK)


@action("reader {reader}", over=READER, part_of="park")
def park_reader(config: Config, state: State, reader: int) -> State | None:
    """Set the park word."""
    me = state.readers[reader]
    if me.step != ReaderStep.PARK:
        return None
    return reader_goes(state, reader, ReaderStep.PARK_FENCE, buffer=(*me.buffer, Store(PARK_WORD, PARKED)))


@action("reader {reader}", over=READER, part_of="park", edge="[park.published]")
def fence_parked_reader(config: Config, state: State, reader: int) -> State | None:
    """Park word before published position: wait until the park word is in memory."""
    me = state.readers[reader]
    if me.step != ReaderStep.PARK_FENCE or me.buffer:
        return None
    return reader_goes(state, reader, ReaderStep.RECHECK)


@action("reader {reader}", over=READER, part_of="recheck", edge="[ring.publish]")
def recheck_record(config: Config, state: State, reader: int) -> State | None:
    """Look again: is there a record by now, or has the reader been closed? Otherwise sleep."""
    me = state.readers[reader]
    if me.step != ReaderStep.RECHECK:
        return None
    something = state.published > me.position or me.closed
    return reader_goes(state, reader, ReaderStep.UNPARK if something else ReaderStep.SLEEP)


@action("reader {reader}", over=READER, part_of="sleep")
def sleep_reader(config: Config, state: State, reader: int) -> State | None:
    """futex_wait: sleep if the park word is still set; otherwise a waker was faster."""
    me = state.readers[reader]
    if me.step != ReaderStep.SLEEP or me.buffer:
        return None
    return reader_goes(state, reader, ReaderStep.ASLEEP if state.park[reader] == PARKED else ReaderStep.LOOK)


@action("reader {reader}", over=READER, environment=True, progress=False)
def wake_reader_spuriously(config: Config, state: State, reader: int) -> State | None:
    """futex_wait returns for no reason."""
    return reader_goes(state, reader, ReaderStep.UNPARK) if state.readers[reader].step == ReaderStep.ASLEEP else None


@action("reader {reader}", over=READER, part_of="last_look")
def end_reader_slice(config: Config, state: State, reader: int) -> State | None:
    """futex_wait times out: look at the writer's pidfd first, and only then at the ring."""
    if state.readers[reader].step != ReaderStep.ASLEEP:
        return None
    dead = state.writer.step == WriterStep.DEAD
    return reader_goes(state, reader, ReaderStep.LAST_LOOK if dead else ReaderStep.UNPARK)


@action("reader {reader}", over=READER, edge="[ring.publish]")
def last_look(config: Config, state: State, reader: int) -> State | None:
    """The writer is dead, so nothing more will come; but something may be there already."""
    me = state.readers[reader]
    if me.step != ReaderStep.LAST_LOOK:
        return None
    record = state.published > me.position
    return reader_goes(state, reader, ReaderStep.UNPARK if record else ReaderStep.WRITER_DIED)


@action("reader {reader}", over=READER, part_of="unpark")
def unpark_reader(config: Config, state: State, reader: int) -> State | None:
    """Clear the park word, and look at everything again."""
    me = state.readers[reader]
    if me.step != ReaderStep.UNPARK:
        return None
    return reader_goes(state, reader, ReaderStep.LOOK, buffer=(*me.buffer, Store(PARK_WORD, RUNNING)))


@action("reader {reader}", over=READER)
def read(config: Config, state: State, reader: int) -> State | None:
    """Read the record, all of it: inline bytes copied out, leases taken."""
    if state.readers[reader].step != ReaderStep.READ:
        return None
    return reader_goes(state, reader, ReaderStep.ADVANCE)


@action("reader {reader}", over=READER, edge="[ring.consume]")
def advance(config: Config, state: State, reader: int) -> State | None:
    """Move the cursor past the record: its room may be used again."""
    me = state.readers[reader]
    if me.step != ReaderStep.ADVANCE:
        return None
    buffer = (*me.buffer, Store(CURSOR, me.position + 1))
    return normal(reader_goes(state, reader, ReaderStep.CURSOR_FENCE, position=me.position + 1, buffer=buffer))


@action("reader {reader}", over=READER, part_of="wake_writer", edge="[park.consumed]")
def fence_cursor(config: Config, state: State, reader: int) -> State | None:
    """Cursor before the writer's park word: wait until the cursor is in memory."""
    me = state.readers[reader]
    if me.step != ReaderStep.CURSOR_FENCE or me.buffer:
        return None
    return reader_goes(state, reader, ReaderStep.WAKE)


# A step in which a reader looks at the writer's park word -> (what follows if it is clear, and if it is set).
LOOKS_AT_WRITER = {
    ReaderStep.WAKE: (ReaderStep.IDLE, ReaderStep.FUTEX_WAKE),
    ReaderStep.LEFT_WAKE: (ReaderStep.GONE, ReaderStep.LEFT_FUTEX_WAKE),
}
WAKES_WRITER = {ReaderStep.FUTEX_WAKE: ReaderStep.IDLE, ReaderStep.LEFT_FUTEX_WAKE: ReaderStep.GONE}


@action("reader {reader}", over=READER, part_of="wake_writer")
def pass_running_writer(config: Config, state: State, reader: int) -> State | None:
    """The writer's park word is clear: it does not sleep, or somebody else is waking it."""
    after = LOOKS_AT_WRITER.get(state.readers[reader].step)
    if after is None or state.park[config.readers] == PARKED:
        return None
    return reader_goes(state, reader, after[0])


@action("reader {reader}", over=READER, part_of="wake_writer")
def take_writer_flag(config: Config, state: State, reader: int) -> State | None:
    """The writer is parked: exchange its park word to 0 first ..."""
    me = state.readers[reader]
    after = LOOKS_AT_WRITER.get(me.step)
    if after is None or state.park[config.readers] != PARKED or me.buffer:
        return None
    return with_park_word(reader_goes(state, reader, after[1]), config.readers, RUNNING)


@action("reader {reader}", over=READER)
def wake_writer(config: Config, state: State, reader: int) -> State | None:
    """... and then wake it."""
    after = WAKES_WRITER.get(state.readers[reader].step)
    return None if after is None else futex_wake_writer(reader_goes(state, reader, after))


def may_shut_down(reader: Reader) -> bool:
    """The reader is a member that still works (or has just stored LEFT)."""
    return reader.step not in DEAD and reader.step not in (
        ReaderStep.JOINING,
        ReaderStep.SELF_JOINED,
        ReaderStep.GONE,
        ReaderStep.WRITER_DIED,
    )


@action("reader {reader}", over=READER, edge="[closed]", progress=False)
def shutdown(config: Config, state: State, reader: int) -> State | None:
    """Another thread of the reader's process calls shutdown(): closed, then ..."""
    me = state.readers[reader]
    if me.shutdown or not may_shut_down(me):
        return None
    return reader_goes(state, reader, me.step, closed=True, shutdown=SHUTDOWN_CLOSED)


@action("reader {reader}", over=READER, part_of="shutdown")
def shutdown_unpark(config: Config, state: State, reader: int) -> State | None:
    """... the park word is cleared, whatever it was, then ..."""
    me = state.readers[reader]
    if me.shutdown != SHUTDOWN_CLOSED or not may_shut_down(me):
        return None
    return with_park_word(reader_goes(state, reader, me.step, shutdown=SHUTDOWN_UNPARKED), reader, RUNNING)


@action("reader {reader}", over=READER, part_of="shutdown")
def shutdown_wake(config: Config, state: State, reader: int) -> State | None:
    """... whoever sleeps is woken, whether or not the word was set."""
    me = state.readers[reader]
    if me.shutdown != SHUTDOWN_UNPARKED or not may_shut_down(me):
        return None
    return futex_wake_reader(reader_goes(state, reader, me.step, shutdown=SHUTDOWN_DONE), reader)


@action("reader {reader}", over=READER, edge="[member.leave]")
def leave(config: Config, state: State, reader: int) -> State | None:
    """A closed reader stores LEFT after its last cursor, and then looks whether the writer sleeps."""
    me = state.readers[reader]
    if not me.closed or me.step not in (ReaderStep.END, ReaderStep.IDLE) or me.buffer:
        return None
    return normal(reader_goes(state, reader, ReaderStep.LEFT_WAKE, position=0))


@action("reader {reader}", over=READER, environment=True)
def flush_reader(config: Config, state: State, reader: int) -> State | None:
    """The reader's oldest store reaches shared memory."""
    me = state.readers[reader]
    if not me.buffer:
        return None
    store, *rest = me.buffer
    state = reader_goes(state, reader, me.step, buffer=tuple(rest))
    if store.cell == PARK_WORD:
        return with_park_word(state, reader, store.value)
    return normal(state._replace(cursors=put(state.cursors, reader, store.value)))


@action("reader {reader}", over=READER, environment=True, progress=False)
def reader_death(config: Config, state: State, reader: int) -> State | None:
    """The reader dies. What it has stored reaches memory; a wake that it was about to give does not happen."""
    me = state.readers[reader]
    if me.step in DEAD or me.step in (ReaderStep.JOINING, ReaderStep.SELF_JOINED, ReaderStep.GONE):
        return None
    state = with_park_word(state, reader, newest(me.buffer, PARK_WORD, state.park[reader]))
    cursor = state.cursors[reader]
    if cursor is not None:
        state = state._replace(cursors=put(state.cursors, reader, newest(me.buffer, CURSOR, cursor)))
    owes_wake = config.slices and me.step in WAKES_WRITER
    dead = Reader(ReaderStep.DEAD_WAKER if owes_wake else ReaderStep.DEAD, 0)
    return normal(state._replace(readers=put(state.readers, reader, dead)))


@action("reader {reader}", over=READER, environment=True, progress=False)
def join(config: Config, state: State, reader: int) -> State | None:
    """A new process claims the rank of a dead one, and waits to be admitted."""
    if state.readers[reader].step not in DEAD or state.writer.members[reader] or state.writer.step == WriterStep.DEAD:
        return None
    return reader_goes(state, reader, ReaderStep.JOINING)


READER_ACTIONS = (
    call_dequeue, see_closed, see_record, see_nothing, park_reader, fence_parked_reader, recheck_record, sleep_reader,
    wake_reader_spuriously, end_reader_slice, last_look, unpark_reader, read, advance, fence_cursor,
    pass_running_writer, take_writer_flag, wake_writer, shutdown, shutdown_unpark, shutdown_wake, leave, flush_reader,
    reader_death, join,
)  # fmt: skip
