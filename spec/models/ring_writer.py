"""The ring's writer, step by step: reserve room, write, publish, wake who sleeps; sleep if there is no room.

Membership is looked at between two records only: dead readers are dropped, those that left too, joiners admitted.
"""

from __future__ import annotations

from spec.model import action, put
from spec.models.ring_state import (
    BETWEEN_RECORDS,
    DEAD,
    LEFT,
    PARK_WORD,
    PARKED,
    PUBLISHED,
    RUNNING,
    Config,
    Reader,
    ReaderStep,
    State,
    Store,
    WriterStep,
    futex_wake_reader,
    has_room,
    newest,
    normal,
    with_park_word,
    writer_goes,
)


@action("writer", environment=True, progress=False)
def call_enqueue(config: Config, state: State) -> State | None:
    """Somebody has a message to send."""
    return writer_goes(state, WriterStep.RESERVE) if state.writer.step == WriterStep.IDLE else None


@action("writer", edge="[ring.consume]")
def reserve(config: Config, state: State) -> State | None:
    """There is room: take it, before anything of the message is visible."""
    if state.writer.step != WriterStep.RESERVE or not has_room(config, state):
        return None
    return writer_goes(state, WriterStep.WRITE)


@action("writer", part_of="reserve")
def find_no_room(config: Config, state: State) -> State | None:
    """Some member is a whole ring behind."""
    if state.writer.step != WriterStep.RESERVE or has_room(config, state):
        return None
    return writer_goes(state, WriterStep.PARK)


@action("writer", part_of="park")
def park_writer(config: Config, state: State) -> State | None:
    """Set the park word."""
    if state.writer.step != WriterStep.PARK:
        return None
    return writer_goes(state, WriterStep.PARK_FENCE, buffer=(*state.writer.buffer, Store(PARK_WORD, PARKED)))


@action("writer", part_of="park", edge="[park.consumed]")
def fence_parked_writer(config: Config, state: State) -> State | None:
    """Park word before cursors: wait until the park word is in memory."""
    if state.writer.step != WriterStep.PARK_FENCE or state.writer.buffer:
        return None
    return writer_goes(state, WriterStep.RECHECK)


@action("writer", part_of="recheck", edge="[ring.consume]")
def recheck_room(config: Config, state: State) -> State | None:
    """Look again: is there room by now, or has a reader left? Otherwise sleep."""
    if state.writer.step != WriterStep.RECHECK:
        return None
    if has_room(config, state):
        return writer_goes(state, WriterStep.UNPARK_TO_WRITE)
    return writer_goes(state, WriterStep.UNPARK if somebody_left(state) else WriterStep.SLEEP)


def somebody_left(state: State) -> bool:
    """A member has stored LEFT, and the writer has not dropped it yet."""
    return any(member and reader.step in LEFT for member, reader in zip(state.writer.members, state.readers, strict=True))


@action("writer", part_of="sleep")
def sleep_writer(config: Config, state: State) -> State | None:
    """futex_wait: sleep if the park word is still set; otherwise a waker was faster."""
    if state.writer.step != WriterStep.SLEEP or state.writer.buffer:
        return None
    return writer_goes(state, WriterStep.ASLEEP if state.park[config.readers] == PARKED else WriterStep.RESERVE)


@action("writer", environment=True, progress=False)
def wake_writer_spuriously(config: Config, state: State) -> State | None:
    """futex_wait returns for no reason."""
    return writer_goes(state, WriterStep.UNPARK) if state.writer.step == WriterStep.ASLEEP else None


@action("writer", environment=True)
def end_writer_slice(config: Config, state: State) -> State | None:
    """futex_wait times out. From here on nobody relies on a wake that a dead process never gave."""
    if state.writer.step != WriterStep.ASLEEP:
        return None
    readers = tuple(Reader(ReaderStep.DEAD, 0) if each.step == ReaderStep.DEAD_WAKER else each for each in state.readers)
    return writer_goes(state._replace(readers=readers), WriterStep.UNPARK)


@action("writer", part_of="unpark")
def unpark_writer(config: Config, state: State) -> State | None:
    """Clear the park word; then write if the re-check found room, else look at everything again."""
    after = {WriterStep.UNPARK: WriterStep.RESERVE, WriterStep.UNPARK_TO_WRITE: WriterStep.WRITE}.get(state.writer.step)
    if after is None:
        return None
    return writer_goes(state, after, buffer=(*state.writer.buffer, Store(PARK_WORD, RUNNING)))


@action("writer")
def write(config: Config, state: State) -> State | None:
    """Write the record into the room."""
    return writer_goes(state, WriterStep.PUBLISH) if state.writer.step == WriterStep.WRITE else None


@action("writer", edge="[ring.publish]")
def publish(config: Config, state: State) -> State | None:
    """Move the published position past the record."""
    if state.writer.step != WriterStep.PUBLISH:
        return None
    return published(state, WriterStep.WAKE_FENCE)


def published(state: State, step: str) -> State:
    """The state after the writer has stored the next published position; it goes on to `step`."""
    position = state.writer.position + 1
    buffer = (*state.writer.buffer, Store(PUBLISHED, position))
    return writer_goes(state, step, position=position, buffer=buffer)


@action("writer", part_of="wake_readers", edge="[park.published]")
def fence_published(config: Config, state: State) -> State | None:
    """Published position before park words: wait until the position is in memory."""
    if state.writer.step != WriterStep.WAKE_FENCE or state.writer.buffer:
        return None
    return writer_goes(state, WriterStep.WAKE)


def next_reader_or_idle(config: Config, state: State, reader: int) -> State:
    """The writer is through with one reader's park word."""
    more = reader + 1 < config.readers
    return writer_goes(state, WriterStep.WAKE, reader + 1) if more else writer_goes(state, WriterStep.IDLE)


@action("writer", part_of="wake_readers")
def pass_running_reader(config: Config, state: State) -> State | None:
    """This reader's park word is clear: it does not sleep, or somebody else is waking it."""
    reader = state.writer.waking
    if state.writer.step != WriterStep.WAKE or state.park[reader] == PARKED:
        return None
    return next_reader_or_idle(config, state, reader)


@action("writer", part_of="wake_readers")
def take_reader_flag(config: Config, state: State) -> State | None:
    """This reader is parked: exchange its park word to 0 first ..."""
    reader = state.writer.waking
    if state.writer.step != WriterStep.WAKE or state.park[reader] != PARKED or state.writer.buffer:
        return None
    return with_park_word(writer_goes(state, WriterStep.FUTEX_WAKE, reader), reader, RUNNING)


@action("writer", part_of="wake_readers")
def wake_reader(config: Config, state: State) -> State | None:
    """... and then wake it."""
    reader = state.writer.waking
    if state.writer.step != WriterStep.FUTEX_WAKE:
        return None
    return next_reader_or_idle(config, futex_wake_reader(state, reader), reader)


def without(state: State, reader: int) -> State:
    """The reader counts no more, neither for room nor for wake-ups."""
    writer = state.writer._replace(members=put(state.writer.members, reader, False))
    return normal(state._replace(writer=writer, cursors=put(state.cursors, reader, None)))


@action("writer", over=("reader",), part_of="drop_reader", edge="[member.reclaim]")
def drop_dead(config: Config, state: State, reader: int) -> State | None:
    """A pidfd has proved the reader's death: drop it, and clear its park word for a successor."""
    if not state.writer.members[reader] or state.readers[reader].step not in DEAD:
        return None
    if state.writer.step not in BETWEEN_RECORDS:
        return None
    return with_park_word(without(state, reader), reader, RUNNING)


@action("writer", over=("reader",), part_of="drop_reader", edge="[member.leave]")
def drop_left(config: Config, state: State, reader: int) -> State | None:
    """The reader has stored LEFT: drop it."""
    if not state.writer.members[reader] or state.readers[reader].step not in LEFT:
        return None
    return without(state, reader) if state.writer.step in BETWEEN_RECORDS else None


@action("writer", over=("reader",), edge="[member.admit]", progress=False)
def admit(config: Config, state: State, reader: int) -> State | None:
    """Let a joiner in, between two messages: the *writer* sets its cursor, to what it has published."""
    if state.readers[reader].step != ReaderStep.JOINING or state.writer.members[reader]:
        return None
    if state.writer.step != WriterStep.IDLE or state.writer.buffer:
        return None
    writer = state.writer._replace(members=put(state.writer.members, reader, True))
    return normal(
        state._replace(
            writer=writer,
            readers=put(state.readers, reader, Reader(ReaderStep.IDLE, writer.position)),
            cursors=put(state.cursors, reader, writer.position),
        )
    )


@action("writer", environment=True)
def flush_writer(config: Config, state: State) -> State | None:
    """The writer's oldest store reaches shared memory."""
    if not state.writer.buffer:
        return None
    store, *rest = state.writer.buffer
    state = state._replace(writer=state.writer._replace(buffer=tuple(rest)))
    if store.cell == PARK_WORD:
        return with_park_word(state, config.readers, store.value)
    return normal(state._replace(published=store.value))


@action("writer", environment=True, progress=False)
def writer_death(config: Config, state: State) -> State | None:
    """The writer dies. What it has stored reaches memory; its park word is nobody's any more."""
    if state.writer.step == WriterStep.DEAD:
        return None
    position = newest(state.writer.buffer, PUBLISHED, state.published)
    state = with_park_word(state._replace(published=position), config.readers, RUNNING)
    return normal(writer_goes(state, WriterStep.DEAD, buffer=()))


WRITER_ACTIONS = (
    call_enqueue, reserve, find_no_room, park_writer, fence_parked_writer, recheck_room, sleep_writer,
    wake_writer_spuriously, end_writer_slice, unpark_writer, write, publish, fence_published, pass_running_reader,
    take_reader_flag, wake_reader, drop_dead, drop_left, admit, flush_writer, writer_death,
)  # fmt: skip
