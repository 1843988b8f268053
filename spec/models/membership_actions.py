"""Membership, step by step: join, wait for admission, admit, leave, die, reclaim; and one message and one object."""

from __future__ import annotations

from spec.model import action
from spec.models.membership_state import (
    EMPTY,
    HELD,
    JOINED,
    JOINING,
    KNOWN_DEAD,
    LEASED,
    LEFT,
    LEFT_OVER,
    MAY_RECLAIM,
    NOT_ALIVE,
    NOT_READY,
    NOTHING,
    OLD_LEASED,
    OLD_UNREAD,
    OUTDATED,
    READY,
    UNREAD,
    UNUSED,
    WAITING,
    Config,
    Rank,
    ReaderStep,
    State,
    WriterStep,
    degraded,
    with_rank,
    writer_goes,
)

RANK = ("rank",)

# ------------------------------------------------------------------------------------------------- joining and waiting


@action("reader {rank}", over=RANK, edge="[member.claim]", progress=False)
def join(config: Config, state: State, rank: int) -> State | None:
    """One compare-and-swap of the whole word, EMPTY to JOINING: the entry never lacks its process."""
    if state.writer.step == WriterStep.DEAD or state.ranks[rank].word != EMPTY:
        return None
    return with_rank(state, rank, word=JOINING, step=ReaderStep.PARK)


@action("reader {rank}", over=RANK, part_of="wait_admission")
def park_joiner(config: Config, state: State, rank: int) -> State | None:
    """Set the park word."""
    if state.ranks[rank].step != ReaderStep.PARK:
        return None
    return with_rank(state, rank, step=ReaderStep.RECHECK, parked=True)


@action("reader {rank}", over=RANK, part_of="wait_admission", edge="[member.admit]")
def recheck_admission(config: Config, state: State, rank: int) -> State | None:
    """Look once more before sleeping."""
    me = state.ranks[rank]
    if me.step != ReaderStep.RECHECK:
        return None
    return with_rank(state, rank, step=ReaderStep.UNPARK if me.word == JOINED else ReaderStep.SLEEP)


@action("reader {rank}", over=RANK, part_of="wait_admission")
def sleep_joiner(config: Config, state: State, rank: int) -> State | None:
    """futex_wait: sleep if the park word is still set."""
    me = state.ranks[rank]
    if me.step != ReaderStep.SLEEP:
        return None
    return with_rank(state, rank, step=ReaderStep.ASLEEP if me.parked else ReaderStep.UNPARK)


@action("reader {rank}", over=RANK, part_of="wait_admission")
def end_joiner_slice(config: Config, state: State, rank: int) -> State | None:
    """A slice ends while the writer is dead: its pidfd says so. (Without a death nobody needs the slice.)"""
    if state.ranks[rank].step != ReaderStep.ASLEEP or state.writer.step != WriterStep.DEAD:
        return None
    return with_rank(state, rank, step=ReaderStep.UNPARK)


@action("reader {rank}", over=RANK, part_of="wait_admission")
def unpark_joiner(config: Config, state: State, rank: int) -> State | None:
    """Clear the park word. Admitted: a member. Otherwise wait again, or give up if the writer is dead."""
    me = state.ranks[rank]
    if me.step != ReaderStep.UNPARK:
        return None
    if me.word == JOINED:
        return with_rank(state, rank, step=ReaderStep.RUNNING, parked=False)
    dead = state.writer.step == WriterStep.DEAD
    return with_rank(state, rank, step=ReaderStep.GAVE_UP if dead else ReaderStep.PARK, parked=False)


@action("reader {rank}", over=RANK, edge="[member.leave]", progress=False)
def leave(config: Config, state: State, rank: int) -> State | None:
    """Take no more messages and live on; what is leased is still owed. A joiner that gives up does the same."""
    me = state.ranks[rank]
    if me.step not in (ReaderStep.RUNNING, ReaderStep.PARK):
        return None
    return with_rank(state, rank, word=LEFT, step=ReaderStep.GONE)


@action("reader {rank}", over=RANK, environment=True, progress=False)
def reader_death(config: Config, state: State, rank: int) -> State | None:
    """The process dies, at any moment. Its views go; its words stay."""
    me = state.ranks[rank]
    if me.step in NOT_ALIVE:
        return None
    return with_rank(
        state,
        rank,
        step=ReaderStep.DEAD,
        message=NOTHING if me.message in (LEASED, OLD_LEASED) else me.message,
        object=LEFT_OVER if me.object == HELD else me.object,
    )


# ------------------------------------------------------------------------------------------ what the writer does about it


@action("writer", over=RANK, part_of="admit")
def set_cursor(config: Config, state: State, rank: int) -> State | None:
    """Between two messages: a joiner whose process lives starts with the next message."""
    joiner = state.ranks[rank]
    if state.writer.step != WriterStep.IDLE or joiner.word != JOINING or joiner.step in KNOWN_DEAD:
        return None
    return writer_goes(state, WriterStep.ADMIT, rank)


@action("writer", edge="[member.admit]")
def admit(config: Config, state: State) -> State | None:
    """One compare-and-swap, JOINING to JOINED: a joiner that has given up meanwhile stays LEFT."""
    rank = state.writer.rank
    if state.writer.step != WriterStep.ADMIT:
        return None
    if state.ranks[rank].word != JOINING:
        return writer_goes(state, WriterStep.IDLE)
    return writer_goes(with_rank(state, rank, word=JOINED, member=True), WriterStep.LOOK, rank)


@action("writer", part_of="admit")
def pass_running_joiner(config: Config, state: State) -> State | None:
    """The joiner's park word is clear: it does not sleep and will look again."""
    if state.writer.step != WriterStep.LOOK or state.ranks[state.writer.rank].parked:
        return None
    return writer_goes(state, WriterStep.IDLE)


@action("writer", part_of="admit")
def take_joiner_flag(config: Config, state: State) -> State | None:
    """The joiner is parked: exchange its park word to 0 first ..."""
    rank = state.writer.rank
    if state.writer.step != WriterStep.LOOK or not state.ranks[rank].parked:
        return None
    return writer_goes(with_rank(state, rank, parked=False), WriterStep.WAKE, rank)


@action("writer", part_of="admit")
def wake_joiner(config: Config, state: State) -> State | None:
    """... and then wake it."""
    if state.writer.step != WriterStep.WAKE:
        return None
    return writer_goes(woken(state, state.writer.rank), WriterStep.IDLE)


def woken(state: State, rank: int) -> State:
    """The state after a futex_wake on the rank's park word."""
    return with_rank(state, rank, step=ReaderStep.UNPARK) if state.ranks[rank].step == ReaderStep.ASLEEP else state


@action("writer", over=RANK, edge="[member.leave]")
def drop_reader(config: Config, state: State, rank: int) -> State | None:
    """Between two messages: a member has left. What it never read it does not owe; what it leased it does."""
    me = state.ranks[rank]
    if state.writer.step != WriterStep.IDLE or me.word != LEFT or not me.member:
        return None
    unread = me.message in (UNREAD, OLD_UNREAD)
    dropped = with_rank(state, rank, member=False, message=NOTHING if unread else me.message, owes=me.owes and not unread)
    return degraded(dropped)


@action("writer", over=RANK, edge="[member.reclaim]")
def reclaim(config: Config, state: State, rank: int) -> State | None:
    """A pidfd has proved a death, of a member, a joiner or one that had left: clear its rows, and then its entry."""
    me = state.ranks[rank]
    if state.writer.step not in MAY_RECLAIM or me.step not in KNOWN_DEAD or me.word == EMPTY:
        return None
    return cleared(state, rank, UNUSED)


def cleared(state: State, rank: int, left: Rank) -> State:
    """The state after an entry has been cleared; `left` is what stays of it."""
    ranks = (*state.ranks[:rank], left, *state.ranks[rank + 1 :])
    after = State(state.writer, ranks)
    return degraded(after) if state.ranks[rank].member else after


@action("writer", over=RANK, part_of="reclaim", edge="[member.reclaim]")
def retire(config: Config, state: State, rank: int) -> State | None:
    """One that has left owes nothing and holds no object: its rank is free, though its process lives."""
    me = state.ranks[rank]
    if state.writer.step not in MAY_RECLAIM or me.word != LEFT or me.step != ReaderStep.GONE:
        return None
    if me.member or me.owes or me.object != NOTHING:
        return None
    return cleared(state, rank, UNUSED)


@action("writer", part_of="wait_until_ready")
def see_all_ready(config: Config, state: State) -> State | None:
    """Every rank is a member: the handshake is over."""
    if state.writer.step != WriterStep.IDLE or state.writer.ready != NOT_READY:
        return None
    if not all(each.member for each in state.ranks):
        return None
    return State(state.writer._replace(ready=READY), state.ranks)


@action("writer", part_of="wait_until_ready", progress=False)
def time_out(config: Config, state: State) -> State | None:
    """The time for the handshake is up: raise an error that names the ranks that are missing."""
    if not may_time_out(state):
        return None
    return timed_out(state, tuple(rank for rank, each in enumerate(state.ranks) if not each.member))


def may_time_out(state: State) -> bool:
    """The writer waits for the handshake, and not all are there."""
    if state.writer.step != WriterStep.IDLE or state.writer.ready != NOT_READY:
        return False
    return not all(each.member for each in state.ranks)


def timed_out(state: State, named: tuple[int, ...]) -> State:
    """The state after the error that names those ranks."""
    return State(state.writer._replace(step=WriterStep.TIMED_OUT, named=named), state.ranks)


@action("writer", part_of="wait_until_ready")
def wait_again(config: Config, state: State) -> State | None:
    """The caller has seen the error, and goes on."""
    return writer_goes(state, WriterStep.IDLE) if state.writer.step == WriterStep.TIMED_OUT else None


@action("writer", environment=True, progress=False)
def writer_death(config: Config, state: State) -> State | None:
    """The writer dies."""
    return None if state.writer.step == WriterStep.DEAD else writer_goes(state, WriterStep.DEAD)


# -------------------------------------------------------------------------------------------------- one message, one slot


@action("writer", progress=False)
def claim(config: Config, state: State) -> State | None:
    """The slot is free, nobody owes a release: begin a message. Older references to the slot are out of date."""
    if state.writer.step != WriterStep.IDLE or any(each.owes for each in state.ranks):
        return None
    ranks = tuple(each._replace(message=OUTDATED.get(each.message, each.message)) for each in state.ranks)
    return writer_goes(State(state.writer, ranks), WriterStep.PUBLISH)


@action("writer")
def publish(config: Config, state: State) -> State | None:
    """The present members are required to release the slot."""
    if state.writer.step != WriterStep.PUBLISH:
        return None
    ranks = tuple(each._replace(owes=each.member) for each in state.ranks)
    return writer_goes(State(state.writer, ranks), WriterStep.ENQUEUE)


@action("writer")
def enqueue(config: Config, state: State) -> State | None:
    """The message goes to every member."""
    if state.writer.step != WriterStep.ENQUEUE:
        return None
    ranks = tuple(each._replace(message=UNREAD) if each.member else each for each in state.ranks)
    return writer_goes(State(state.writer, ranks), WriterStep.IDLE)


@action("reader {rank}", over=RANK)
def receive(config: Config, state: State, rank: int) -> State | None:
    """Take the message and lease its slot."""
    me = state.ranks[rank]
    if me.step != ReaderStep.RUNNING or me.message not in (UNREAD, OLD_UNREAD):
        return None
    return with_rank(state, rank, message=LEASED if me.message == UNREAD else OLD_LEASED)


@action("reader {rank}", over=RANK)
def release(config: Config, state: State, rank: int) -> State | None:
    """Store the leased generation into the done word; an old one frees nothing."""
    me = state.ranks[rank]
    if me.step in NOT_ALIVE or me.message not in (LEASED, OLD_LEASED):
        return None
    return with_rank(state, rank, message=NOTHING, owes=me.owes and me.message != LEASED)


# ----------------------------------------------------------------------------------------------------------- one object


@action("reader {rank}", over=RANK, progress=False)
def announce(config: Config, state: State, rank: int) -> State | None:
    """Store a hold word, and have a view. A joiner may do so, too."""
    me = state.ranks[rank]
    if me.step not in WAITING and me.step != ReaderStep.RUNNING:
        return None
    return with_rank(state, rank, object=HELD) if me.object == NOTHING else None


@action("reader {rank}", over=RANK)
def release_hold(config: Config, state: State, rank: int) -> State | None:
    """Let the object go, and clear the word."""
    me = state.ranks[rank]
    if me.step in NOT_ALIVE or me.object != HELD:
        return None
    return with_rank(state, rank, object=NOTHING)


HANDSHAKE = (
    join, park_joiner, recheck_admission, sleep_joiner, end_joiner_slice, unpark_joiner, reader_death, set_cursor, admit,
    pass_running_joiner, take_joiner_flag, wake_joiner, reclaim, see_all_ready, time_out, wait_again, writer_death,
)  # fmt: skip
LEAVING = (leave, drop_reader, retire)
MESSAGES = (claim, publish, enqueue, receive, release)
OBJECTS = (announce, release_hold)
