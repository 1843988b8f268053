"""Membership done wrong: each fault changes one or two actions; the property that breaks, and how soon."""

from __future__ import annotations

from spec.model import Action, Variant, action
from spec.models.membership_actions import (
    RANK,
    admit,
    cleared,
    drop_reader,
    end_joiner_slice,
    enqueue,
    join,
    may_time_out,
    pass_running_joiner,
    reclaim,
    retire,
    see_all_ready,
    set_cursor,
    take_joiner_flag,
    time_out,
    timed_out,
    wake_joiner,
    woken,
)
from spec.models.membership_state import (
    EMPTY,
    HELD,
    JOINED,
    JOINING,
    LEFT,
    MAY_RECLAIM,
    NAMELESS,
    NOT_READY,
    NOTHING,
    READY,
    UNPROTECTED,
    UNUSED,
    Config,
    ReaderStep,
    State,
    WriterStep,
    with_rank,
    writer_goes,
)

# ---- joining


@action("reader {rank}", over=RANK, part_of="join", progress=False)
def join_without_name(config: Config, state: State, rank: int) -> State | None:
    """Take the entry by its state alone ..."""
    after = join(config, state, rank)
    return None if after is None else with_rank(after, rank, word=NAMELESS, step=ReaderStep.NAME)


@action("reader {rank}", over=RANK, part_of="join")
def write_name(config: Config, state: State, rank: int) -> State | None:
    """... and write pid and start time afterwards."""
    if state.ranks[rank].step != ReaderStep.NAME:
        return None
    return with_rank(state, rank, word=JOINING, step=ReaderStep.PARK)


@action("writer", over=RANK, part_of="reclaim")
def reclaim_named(config: Config, state: State, rank: int) -> State | None:
    """Only an entry that names a process can be asked whether that is dead."""
    return None if state.ranks[rank].word == NAMELESS else reclaim(config, state, rank)


@action("kernel", over=RANK, environment=True, progress=False)
def reuse_pid(config: Config, state: State, rank: int) -> State | None:
    """Another process gets the pid of a joiner that has died."""
    me = state.ranks[rank]
    if me.step != ReaderStep.DEAD or me.word != JOINING:
        return None
    return with_rank(state, rank, step=ReaderStep.REUSED)


@action("writer", over=RANK, part_of="admit")
def set_cursor_by_pid(config: Config, state: State, rank: int) -> State | None:
    """A joiner whose pid is alive starts with the next message; the start time is not looked at."""
    joiner = state.ranks[rank]
    if joiner.step != ReaderStep.REUSED or joiner.word != JOINING or state.writer.step != WriterStep.IDLE:
        return set_cursor(config, state, rank)
    return writer_goes(state, WriterStep.ADMIT, rank)


@action("writer", over=RANK, part_of="reclaim")
def reclaim_by_pid(config: Config, state: State, rank: int) -> State | None:
    """The pidfd that was opened for the pid is another process's, which lives."""
    return None if state.ranks[rank].step == ReaderStep.REUSED else reclaim(config, state, rank)


@action("writer", over=RANK, part_of="admit")
def admit_inside_message(config: Config, state: State, rank: int) -> State | None:
    """Admit a joiner after the required readers were noted, and before the message goes out."""
    joiner = state.ranks[rank]
    if state.writer.step != WriterStep.ENQUEUE or joiner.word != JOINING or joiner.step == ReaderStep.DEAD:
        return None
    return woken(with_rank(state, rank, word=JOINED, member=True, parked=False), rank)


@action("writer", part_of="admit")
def admit_by_store(config: Config, state: State) -> State | None:
    """Store JOINED, whatever the joiner has done since."""
    rank = state.writer.rank
    if state.writer.step != WriterStep.ADMIT:
        return None
    return writer_goes(with_rank(state, rank, word=JOINED, member=True), WriterStep.LOOK, rank)


@action("writer", over=RANK, part_of="admit")
def set_cursor_and_unpark(config: Config, state: State, rank: int) -> State | None:
    """Clear the joiner's park word before it is JOINED."""
    after = set_cursor(config, state, rank)
    return None if after is None else with_rank(after, rank, parked=False)


@action("writer", part_of="admit")
def wake_joiner_unasked(config: Config, state: State) -> State | None:
    """Wake the joiner without a look at its park word, and without clearing it."""
    if state.writer.step != WriterStep.LOOK:
        return None
    return writer_goes(woken(state, state.writer.rank), WriterStep.IDLE)


# ---- the handshake


@action("writer", part_of="wait_until_ready")
def see_all_claimed(config: Config, state: State) -> State | None:
    """Every entry is taken; whether the writer has admitted it is not asked."""
    if state.writer.step != WriterStep.IDLE or state.writer.ready != NOT_READY:
        return None
    if any(each.word == EMPTY for each in state.ranks):
        return None
    return State(state.writer._replace(ready=READY), state.ranks)


@action("writer", part_of="wait_until_ready", progress=False)
def time_out_by_words(config: Config, state: State) -> State | None:
    """Name the ranks whose entries are EMPTY; those that wait to be admitted are not named."""
    if not may_time_out(state):
        return None
    return timed_out(state, tuple(rank for rank, each in enumerate(state.ranks) if each.word == EMPTY))


# ---- leaving


@action("writer", over=RANK, part_of="drop_reader")
def drop_with_leases(config: Config, state: State, rank: int) -> State | None:
    """Forgive the one that has left everything that it owes, leases included."""
    after = drop_reader(config, state, rank)
    return None if after is None else with_rank(after, rank, owes=False)


@action("writer", over=RANK, part_of="drop_reader")
def drop_with_debts(config: Config, state: State, rank: int) -> State | None:
    """Forgive the one that has left nothing, not even what it never read."""
    after = drop_reader(config, state, rank)
    return None if after is None else with_rank(after, rank, owes=state.ranks[rank].owes)


@action("writer", part_of="enqueue")
def enqueue_by_words(config: Config, state: State) -> State | None:
    """Look at the entries again in the middle of a message: one that has just left does not get it."""
    after = enqueue(config, state)
    if after is None:
        return None
    for rank, each in enumerate(state.ranks):
        if each.word != JOINED:
            after = with_rank(after, rank, message=each.message)
    return after


@action("writer", over=RANK, part_of="reclaim")
def retire_with_object(config: Config, state: State, rank: int) -> State | None:
    """Clear the rows of one that has left and lives, though it holds an object."""
    me = state.ranks[rank]
    if state.writer.step not in MAY_RECLAIM or me.word != LEFT or me.step != ReaderStep.GONE or me.member or me.owes:
        return None
    return cleared(state, rank, UNUSED._replace(object=UNPROTECTED if me.object == HELD else NOTHING))


# ---- deaths


@action("writer", over=RANK, part_of="reclaim")
def reclaim_but_words(config: Config, state: State, rank: int) -> State | None:
    """Clear the dead one's entry and leave its hold words."""
    after = reclaim(config, state, rank)
    return None if after is None else with_rank(after, rank, object=state.ranks[rank].object)


@action("writer", over=RANK, part_of="reclaim")
def reclaim_but_queue(config: Config, state: State, rank: int) -> State | None:
    """Clear the dead one's entry and leave its queue."""
    after = reclaim(config, state, rank)
    return None if after is None else with_rank(after, rank, message=state.ranks[rank].message)


@action("writer", over=RANK, part_of="reclaim")
def reclaim_members(config: Config, state: State, rank: int) -> State | None:
    """Reclaim members only, and no joiner that has died."""
    return reclaim(config, state, rank) if state.ranks[rank].member else None


@action("writer", over=RANK, part_of="reclaim")
def reclaim_present(config: Config, state: State, rank: int) -> State | None:
    """Reclaim joiners and members, and nobody that had left before it died."""
    return None if state.ranks[rank].word == LEFT else reclaim(config, state, rank)


def changed(*changes: tuple[Action, Action | None], added: tuple[Action, ...] = ()) -> Config:
    """One reader, with some actions changed."""
    return Config(changed=changes, added=added)


UNPARKED_FIRST = (set_cursor, set_cursor_and_unpark)

VARIANTS: dict[str, Variant] = {
    "claim-in-two-steps": Variant(
        "claim in two steps: a death between the two leaves an entry without a process",
        changed((join, join_without_name), (reclaim, reclaim_named), added=(write_name,)),
        "D",
        2,
    ),
    "pid-reused": Variant("pid reused, start time checked: right", changed(added=(reuse_pid,))),
    "pid-reused-unchecked": Variant(
        "pid reused, start time not checked: a stranger counts for a joiner",
        changed((set_cursor, set_cursor_by_pid), (reclaim, reclaim_by_pid), added=(reuse_pid,)),
        "D",
        3,
    ),
    "join-inside-message": Variant(
        "join inside a message: the joiner is sent what it is not required to release",
        changed(added=(admit_inside_message,)),
        "S1",
        10,
    ),
    "admit-by-store": Variant(
        "admission by a store: it overwrites LEFT, and the rank is a member that never reads",
        changed((admit, admit_by_store)),
        "D",
        3,
    ),
    "unparked-before-joined": Variant(
        "park word cleared before JOINED, wake if it is set: who sleeps already is not woken",
        changed(UNPARKED_FIRST),
        "L",
        7,
    ),
    "unparked-before-joined-unasked": Variant(
        "park word cleared before JOINED, wake unasked: who is about to sleep is woken too early",
        changed(
            UNPARKED_FIRST,
            (pass_running_joiner, wake_joiner_unasked),
            (take_joiner_flag, None),
            (wake_joiner, None),
        ),
        "L",
        7,
    ),
    "ready-when-claimed": Variant(
        "ready when all have claimed: one that is not admitted misses the first message",
        changed((see_all_ready, see_all_claimed)),
        "R",
        2,
    ),
    "names-empty-only": Variant(
        "time-out names empty entries: who waits for admission is not named", changed((time_out, time_out_by_words)), "N", 2
    ),
    "left-owes-nothing": Variant(
        "one that has left is forgiven its leases, too", changed((drop_reader, drop_with_leases)), "S1", 14
    ),
    "left-owes-unread": Variant(
        "one that has left is not forgiven what it never read", changed((drop_reader, drop_with_debts)), "S4", 9
    ),
    "left-seen-mid-message": Variant(
        "entries looked at again inside a message: one that has left owes what it was never sent",
        changed((enqueue, enqueue_by_words)),
        "S4",
        9,
    ),
    "left-cleared-under-object": Variant(
        "the rows of one that has left are cleared under its object: only leases of messages were asked for",
        changed((retire, retire_with_object)),
        "S1",
        4,
    ),
    "words-kept": Variant(
        "reclaim leaves the words: the next process inherits a hold", changed((reclaim, reclaim_but_words)), "ROW", 4
    ),
    "queue-kept": Variant(
        "reclaim leaves the queue: the next process inherits a message", changed((reclaim, reclaim_but_queue)), "ROW", 9
    ),
    "only-members-reclaimed": Variant(
        "only members reclaimed: a dead joiner keeps the rank", changed((reclaim, reclaim_members)), "D", 2
    ),
    "left-not-reclaimed": Variant(
        "the left are not reclaimed: a death after the leave keeps the rank", changed((reclaim, reclaim_present)), "D", 3
    ),
    "no-slices": Variant(
        "joiner without slices: nobody tells it of the writer's death", changed((end_joiner_slice, None)), "D", 2
    ),
}
