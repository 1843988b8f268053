"""What must hold of the ring: nobody sleeps through a wake-up, nothing is overwritten, torn or lost."""

from __future__ import annotations

from spec.model import Drain, invariant, sometimes
from spec.models.ring_state import (
    DEAD,
    READER_IS_WAKING,
    SHUTDOWN_DONE,
    WITHOUT_POSITION,
    WRITER_IS_WAKING,
    Config,
    ReaderStep,
    State,
    WriterStep,
)


@invariant("L")
def no_lost_wakeup(config: Config, state: State) -> str | None:
    """Nobody sleeps when what it waits for is there and nobody is about to wake it."""
    writer = state.writer
    writer_is_through = writer.step not in WRITER_IS_WAKING and not writer.buffer
    for number, reader in enumerate(state.readers):
        if reader.step != ReaderStep.ASLEEP:
            continue
        if writer_is_through and state.published > reader.position and not reader.closed:
            return f"reader {number} sleeps, a record is there, and the writer has finished waking"
        if reader.closed and reader.shutdown == SHUTDOWN_DONE:
            return f"reader {number} sleeps for ever: its shutdown() has finished waking"
    if writer.step == WriterStep.ASLEEP and room_for_the_present(config, state) and not somebody_will_wake(state):
        return "the writer sleeps, there is room, and no reader is about to wake it"
    return None


def room_for_the_present(config: Config, state: State) -> bool:
    """There is room if the members that have left are not counted."""
    return all(
        cursor is None or not member or state.writer.position - cursor < config.capacity or reader.step == ReaderStep.GONE
        for cursor, member, reader in zip(state.cursors, state.writer.members, state.readers, strict=True)
    )


def somebody_will_wake(state: State) -> bool:
    """A reader has yet to look at the writer's park word; or a death is left to the end of the slice."""
    for reader, member in zip(state.readers, state.writer.members, strict=True):
        if reader.buffer or reader.step in READER_IS_WAKING or reader.step == ReaderStep.DEAD_WAKER:
            return True
        if reader.step == ReaderStep.DEAD and member:
            return True
    return False


@invariant("O")
def no_overwrite(config: Config, state: State) -> str | None:
    """The writer never writes into a record that some reader has still to read."""
    writer = state.writer
    for number, reader in enumerate(state.readers):
        if reader.step in WITHOUT_POSITION or reader.step == ReaderStep.SELF_JOINED:
            continue
        behind = writer.position - reader.position
        reading = reader.step in (ReaderStep.READ, ReaderStep.LATE_READ)
        if behind > config.capacity or (reading and writer.step == WriterStep.PUBLISH and behind >= config.capacity):
            return f"the record that reader {number} has still to read is overwritten"
    return None


@invariant("T")
def no_torn_record(config: Config, state: State) -> str | None:
    """No reader reads a record that is not written yet."""
    if state.writer.step != WriterStep.LATE_WRITE:
        return None
    for number, reader in enumerate(state.readers):
        if reader.step == ReaderStep.READ and reader.position == state.writer.position - 1:
            return f"reader {number} reads a record that is not written"
    return None


@invariant("M")
def no_lost_record(config: Config, state: State) -> str | None:
    """WriterDied is raised only if the writer is dead and all that it published has been read."""
    for number, reader in enumerate(state.readers):
        if reader.step != ReaderStep.WRITER_DIED:
            continue
        if state.published > reader.position:
            return f"reader {number} says WriterDied with a record unread"
        if state.writer.step != WriterStep.DEAD:
            return f"reader {number} says WriterDied and the writer lives"
    return None


INVARIANTS = (no_lost_wakeup, no_overwrite, no_torn_record, no_lost_record)

FINISHED = DEAD | {
    ReaderStep.END, ReaderStep.WRITER_DIED, ReaderStep.JOINING, ReaderStep.SELF_JOINED, ReaderStep.GONE,
}  # fmt: skip


def all_settled(config: Config, state: State) -> bool:
    """The writer has sent what it had, and every reader has read it or waits for no record."""
    if state.writer.step not in (WriterStep.IDLE, WriterStep.DEAD):
        return False
    return all(
        reader.step in FINISHED
        or (reader.step in (ReaderStep.IDLE, ReaderStep.ASLEEP) and (state.published <= reader.position or reader.closed))
        for reader in state.readers
    )


def dead_are_dropped(config: Config, state: State) -> bool:
    """No dead reader counts for room any more."""
    return state.writer.step == WriterStep.DEAD or not any(
        member and reader.step in DEAD for member, reader in zip(state.writer.members, state.readers, strict=True)
    )


DRAIN = Drain("stuck", demanded=lambda config, state: True, good=all_settled)
DROPS_THE_DEAD = Drain(
    "stuck",
    demanded=lambda config, state: True,
    good=lambda config, state: all_settled(config, state) and dead_are_dropped(config, state),
)


@sometimes("the writer sleeps for want of room")
def writer_sleeps(config: Config, state: State) -> bool:
    return state.writer.step == WriterStep.ASLEEP


@sometimes("a reader sleeps while a record is on its way")
def reader_sleeps(config: Config, state: State) -> bool:
    return any(each.step == ReaderStep.ASLEEP for each in state.readers) and bool(state.writer.buffer)


@sometimes("the ring is full")
def full(config: Config, state: State) -> bool:
    return any(
        state.published - cursor == config.capacity and member
        for cursor, member in zip(state.cursors, state.writer.members, strict=True)
        if cursor is not None
    )


@sometimes("a store of each kind waits in the buffers at once")
def buffers_race(config: Config, state: State) -> bool:
    return bool(state.writer.buffer) and all(each.buffer for each in state.readers)


SOMETIMES = (writer_sleeps, reader_sleeps, full, buffers_race)
