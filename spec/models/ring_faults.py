"""The ring done wrong: actions that a fault puts in the place of the right ones. The table is in `ring_variants`."""

from __future__ import annotations

from spec.model import action, put
from spec.models.ring_reader import (
    READER,
    join,
    may_shut_down,
    see_nothing,
    see_record,
)
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
    ReaderStep,
    State,
    Store,
    WriterStep,
    futex_wake_reader,
    futex_wake_writer,
    has_room,
    normal,
    reader_goes,
    with_park_word,
    writer_goes,
)
from spec.models.ring_writer import (
    find_no_room,
    next_reader_or_idle,
    published,
    wake_reader,
    without,
)

# ---- a fence that is not there


@action("writer", part_of="wake_readers")
def skip_published_fence(config: Config, state: State) -> State | None:
    """Go on to the park words while the published position may still be on its way."""
    return writer_goes(state, WriterStep.WAKE) if state.writer.step == WriterStep.WAKE_FENCE else None


@action("writer", part_of="park")
def skip_parked_writer_fence(config: Config, state: State) -> State | None:
    """Go on to the cursors while the park word may still be on its way."""
    return writer_goes(state, WriterStep.RECHECK) if state.writer.step == WriterStep.PARK_FENCE else None


@action("reader {reader}", over=READER, part_of="park")
def skip_parked_reader_fence(config: Config, state: State, reader: int) -> State | None:
    """Go on to the published position while the park word may still be on its way."""
    if state.readers[reader].step != ReaderStep.PARK_FENCE:
        return None
    return reader_goes(state, reader, ReaderStep.RECHECK)


@action("reader {reader}", over=READER, part_of="wake_writer")
def skip_cursor_fence(config: Config, state: State, reader: int) -> State | None:
    """Go on to the writer's park word while the cursor may still be on its way."""
    if state.readers[reader].step != ReaderStep.CURSOR_FENCE:
        return None
    return reader_goes(state, reader, ReaderStep.WAKE)


# ---- the park word set after the re-check


@action("writer", part_of="reserve")
def find_no_room_unparked(config: Config, state: State) -> State | None:
    """Some member is a whole ring behind: look once more before parking."""
    after = find_no_room(config, state)
    return None if after is None else writer_goes(after, WriterStep.EARLY_RECHECK)


@action("writer", part_of="recheck")
def recheck_room_unparked(config: Config, state: State) -> State | None:
    """The re-check comes before the park word."""
    if state.writer.step != WriterStep.EARLY_RECHECK:
        return None
    return writer_goes(state, WriterStep.WRITE if has_room(config, state) else WriterStep.LATE_PARK)


@action("writer", part_of="park")
def park_writer_late(config: Config, state: State) -> State | None:
    """Set the park word after the last look."""
    if state.writer.step != WriterStep.LATE_PARK:
        return None
    return writer_goes(state, WriterStep.SLEEP, buffer=(*state.writer.buffer, Store(PARK_WORD, PARKED)))


@action("reader {reader}", over=READER, part_of="read")
def see_nothing_unparked(config: Config, state: State, reader: int) -> State | None:
    """Nothing new has been published: look once more before parking."""
    after = see_nothing(config, state, reader)
    return None if after is None else reader_goes(after, reader, ReaderStep.EARLY_RECHECK)


@action("reader {reader}", over=READER, part_of="recheck")
def recheck_record_unparked(config: Config, state: State, reader: int) -> State | None:
    """The re-check comes before the park word."""
    me = state.readers[reader]
    if me.step != ReaderStep.EARLY_RECHECK:
        return None
    something = state.published > me.position or me.closed
    return reader_goes(state, reader, ReaderStep.LOOK if something else ReaderStep.LATE_PARK)


@action("reader {reader}", over=READER, part_of="park")
def park_reader_late(config: Config, state: State, reader: int) -> State | None:
    """Set the park word after the last look."""
    me = state.readers[reader]
    if me.step != ReaderStep.LATE_PARK:
        return None
    return reader_goes(state, reader, ReaderStep.SLEEP, buffer=(*me.buffer, Store(PARK_WORD, PARKED)))


# ---- waking done wrong


@action("writer", part_of="write")
def write_after_a_look(config: Config, state: State) -> State | None:
    """Note who is parked, and only then write and publish."""
    if state.writer.step != WriterStep.WRITE:
        return None
    seen = sum(word << reader for reader, word in enumerate(state.park[: config.readers]))
    return writer_goes(state, WriterStep.PUBLISH, seen)


@action("writer", part_of="publish")
def publish_to_those_seen(config: Config, state: State) -> State | None:
    """Publish; the readers to wake have been noted before."""
    if state.writer.step != WriterStep.PUBLISH:
        return None
    return writer_goes(published(state, WriterStep.WAKE_SEEN), WriterStep.WAKE_SEEN, state.writer.waking)


@action("writer", part_of="wake_readers")
def wake_those_seen(config: Config, state: State) -> State | None:
    """Wake the readers that were noted, and nobody else."""
    if state.writer.step != WriterStep.WAKE_SEEN or state.writer.buffer:
        return None
    for reader in range(config.readers):
        if state.writer.waking >> reader & 1:
            state = futex_wake_reader(with_park_word(state, reader, RUNNING), reader)
    return writer_goes(state, WriterStep.IDLE)


@action("writer", part_of="wake_readers")
def wake_one_reader(config: Config, state: State) -> State | None:
    """Wake the first reader that is parked, and leave it at that."""
    after = wake_reader(config, state)
    return None if after is None else writer_goes(after, WriterStep.IDLE)


@action("writer", part_of="wake_readers")
def see_reader_flag(config: Config, state: State) -> State | None:
    """This reader is parked; its word is left as it is."""
    reader = state.writer.waking
    if state.writer.step != WriterStep.WAKE or state.park[reader] != PARKED:
        return None
    return writer_goes(state, WriterStep.FUTEX_WAKE, reader)


@action("writer", part_of="wake_readers")
def wake_reader_then_clear(config: Config, state: State) -> State | None:
    """Wake first, clear the word afterwards."""
    reader = state.writer.waking
    if state.writer.step != WriterStep.FUTEX_WAKE:
        return None
    return writer_goes(futex_wake_reader(state, reader), WriterStep.CLEAR, reader)


@action("writer", part_of="wake_readers")
def clear_reader_flag(config: Config, state: State) -> State | None:
    """Clear the word, which may have been set anew by now."""
    reader = state.writer.waking
    if state.writer.step != WriterStep.CLEAR:
        return None
    return with_park_word(next_reader_or_idle(config, state, reader), reader, RUNNING)


# ---- sleeping done wrong


@action("writer", part_of="sleep")
def sleep_writer_blindly(config: Config, state: State) -> State | None:
    """Sleep without a comparison of the word."""
    if state.writer.step != WriterStep.SLEEP or state.writer.buffer:
        return None
    return writer_goes(state, WriterStep.ASLEEP)


@action("reader {reader}", over=READER, part_of="sleep")
def sleep_reader_blindly(config: Config, state: State, reader: int) -> State | None:
    """Sleep without a comparison of the word."""
    me = state.readers[reader]
    if me.step != ReaderStep.SLEEP or me.buffer:
        return None
    return reader_goes(state, reader, ReaderStep.ASLEEP)


@action("reader {reader}", over=READER, part_of="sleep")
def sleep_reader_on_position(config: Config, state: State, reader: int) -> State | None:
    """Sleep on the published position itself: the futex compares it with the reader's own."""
    me = state.readers[reader]
    if me.step != ReaderStep.SLEEP or me.buffer:
        return None
    return reader_goes(state, reader, ReaderStep.ASLEEP if state.published == me.position else ReaderStep.UNPARK)


@action("reader {reader}", over=READER, part_of="last_look")
def end_slice_at_the_ring(config: Config, state: State, reader: int) -> State | None:
    """futex_wait times out: look at the ring first ..."""
    me = state.readers[reader]
    if me.step != ReaderStep.ASLEEP:
        return None
    record = state.published > me.position
    return reader_goes(state, reader, ReaderStep.UNPARK if record else ReaderStep.PID_CHECK)


@action("reader {reader}", over=READER, part_of="last_look")
def look_at_pidfd_last(config: Config, state: State, reader: int) -> State | None:
    """... and at the pidfd second: what was published in between is lost."""
    if state.readers[reader].step != ReaderStep.PID_CHECK:
        return None
    dead = state.writer.step == WriterStep.DEAD
    return reader_goes(state, reader, ReaderStep.WRITER_DIED if dead else ReaderStep.UNPARK)


# ---- shutdown done wrong


@action("reader {reader}", over=READER, part_of="shutdown")
def shutdown_wake_only(config: Config, state: State, reader: int) -> State | None:
    """Wake whoever sleeps and leave the word set."""
    me = state.readers[reader]
    if me.shutdown != SHUTDOWN_CLOSED or not may_shut_down(me):
        return None
    return futex_wake_reader(reader_goes(state, reader, me.step, shutdown=SHUTDOWN_DONE), reader)


@action("reader {reader}", over=READER, part_of="shutdown")
def shutdown_if_parked(config: Config, state: State, reader: int) -> State | None:
    """Exchange the word, and wake only if it was set."""
    me = state.readers[reader]
    if me.shutdown != SHUTDOWN_CLOSED or not may_shut_down(me):
        return None
    if state.park[reader] != PARKED:
        return reader_goes(state, reader, me.step, shutdown=SHUTDOWN_DONE)
    return with_park_word(reader_goes(state, reader, me.step, shutdown=SHUTDOWN_UNPARKED), reader, RUNNING)


# ---- records done wrong


@action("reader {reader}", over=READER, part_of="read")
def see_record_and_advance(config: Config, state: State, reader: int) -> State | None:
    """Something has been published: advance first."""
    after = see_record(config, state, reader)
    return None if after is None else reader_goes(after, reader, ReaderStep.EARLY_ADVANCE)


@action("reader {reader}", over=READER, part_of="advance")
def advance_early(config: Config, state: State, reader: int) -> State | None:
    """Move the cursor past a record that has not been read yet."""
    me = state.readers[reader]
    if me.step != ReaderStep.EARLY_ADVANCE:
        return None
    return reader_goes(state, reader, ReaderStep.LATE_READ, buffer=(*me.buffer, Store(CURSOR, me.position + 1)))


@action("reader {reader}", over=READER, part_of="read")
def read_late(config: Config, state: State, reader: int) -> State | None:
    """Read the record when its room may already be used again."""
    me = state.readers[reader]
    if me.step != ReaderStep.LATE_READ:
        return None
    return normal(reader_goes(state, reader, ReaderStep.CURSOR_FENCE, position=me.position + 1))


@action("writer", part_of="publish")
def publish_first(config: Config, state: State) -> State | None:
    """Publish a record that is not written yet."""
    return published(state, WriterStep.LATE_WRITE) if state.writer.step == WriterStep.WRITE else None


@action("writer", part_of="write")
def write_late(config: Config, state: State) -> State | None:
    """Write the record when readers may already look at it."""
    return writer_goes(state, WriterStep.WAKE_FENCE) if state.writer.step == WriterStep.LATE_WRITE else None


# ---- membership done wrong


@action("reader {reader}", over=READER, environment=True, progress=False)
def join_with_own_cursor(config: Config, state: State, reader: int) -> State | None:
    """A new process claims the rank and sets its cursor itself, to what it sees published."""
    if join(config, state, reader) is None:
        return None
    cursors = put(state.cursors, reader, state.published)
    joined = reader_goes(state, reader, ReaderStep.SELF_JOINED, position=state.published)
    return normal(joined._replace(cursors=cursors))


@action("writer", over=READER, part_of="admit", progress=False)
def admit_as_it_is(config: Config, state: State, reader: int) -> State | None:
    """Let a joiner in with the cursor that it has set."""
    if state.readers[reader].step != ReaderStep.SELF_JOINED or state.writer.members[reader]:
        return None
    if state.writer.step != WriterStep.IDLE:
        return None
    writer = state.writer._replace(members=put(state.writer.members, reader, True))
    return reader_goes(state._replace(writer=writer), reader, ReaderStep.IDLE)


WAITS_FOR_ROOM = frozenset((WriterStep.PARK, WriterStep.PARK_FENCE, WriterStep.RECHECK, WriterStep.SLEEP, WriterStep.ASLEEP))


@action("writer's watcher", over=READER, part_of="drop_reader")
def watcher_drops_dead(config: Config, state: State, reader: int) -> State | None:
    """Another thread of the writer drops the dead reader while enqueue waits for room, and wakes nobody."""
    if not state.writer.members[reader] or state.readers[reader].step not in DEAD:
        return None
    if state.writer.step not in WAITS_FOR_ROOM:
        return None
    return with_park_word(without(state, reader), reader, RUNNING)


@action("writer's watcher", over=READER, part_of="drop_reader")
def watcher_drops_dead_and_wakes(config: Config, state: State, reader: int) -> State | None:
    """Another thread drops the dead reader, takes the writer's park word and wakes it."""
    after = watcher_drops_dead(config, state, reader)
    return None if after is None else futex_wake_writer(with_park_word(after, config.readers, RUNNING))
