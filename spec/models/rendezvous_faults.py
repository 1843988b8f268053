"""Seeded faults of the recommended rendezvous: each replaces one or two of its actions by a plausible wrong one."""

from __future__ import annotations

from spec.model import Action, action
from spec.models.rendezvous_naive import PROCESS, NaiveStep, at, unmap
from spec.models.rendezvous_state import (
    TERMINAL,
    TORN,
    Config,
    Content,
    Record,
    State,
    Step,
    content_of,
    forget_unreachable,
    holds,
    live_members,
    move,
    unlink,
    write,
)
from spec.models.rendezvous_steps import (
    append_record,
    attach_memory,
    cleanup,
    dead,
    die,
    erase_record,
    lock,
    pass_barrier,
    record_in_place_of,
)


class FaultyStep:
    """What a process does next, with a fault."""

    REWRITE = "write the list again"
    UNLINK_EARLY = "unlink: all are in"
    LOOK = "may I unlink?"
    UNLINK = "unlink without the lock"


def only_the_creator(state: State, content: Content) -> list[int]:
    """Fault: only the creator's life counts."""
    if isinstance(content, Record) and holds(state, content.creator, content.memory):
        return [content.creator]
    return []


@action("process {process}", over=PROCESS, part_of="lock")
def lock_unchecked(config: Config, state: State, process: int) -> State | None:
    """Take the lock and read, without a look at what stands at the path by now."""
    after = lock(config, state, process)
    return None if after is None else move(after, process, Step.READ)


@action("process {process}", over=PROCESS, part_of="attach_memory")
def attach_unrecorded(config: Config, state: State, process: int) -> State | None:
    """Map the memory and leave no record of it."""
    after = attach_memory(config, state, process)
    return None if after is None else move(after, process, Step.UNLOCK)


@action("process {process}", over=PROCESS, part_of="append_record")
def truncate_list(config: Config, state: State, process: int) -> State | None:
    """Rewrite the list of members in place: first it is torn ..."""
    me = state.processes[process]
    record = content_of(state, process)
    if me.step != Step.APPEND or me.entry is None or not isinstance(record, Record):
        return None
    longer = record._replace(members=record.members | {process})
    return move(write(state, me.entry, TORN), process, FaultyStep.REWRITE, memo=longer)


@action("process {process}", over=PROCESS, part_of="append_record")
def rewrite_list(config: Config, state: State, process: int) -> State | None:
    """... then it is whole again, if the process lives that long."""
    me = state.processes[process]
    if me.step != FaultyStep.REWRITE or me.entry is None:
        return None
    return move(write(state, me.entry, me.memo), process, Step.UNLOCK, memo=None)


@action("process {process}", over=PROCESS, part_of="append_record")
def record_in_any_place(config: Config, state: State, process: int) -> State | None:
    """Write my record over another's, without a look whether its process lives."""
    record = content_of(state, process)
    return record_in_place_of(state, process, record.members if isinstance(record, Record) else ())


@action("process {process}", over=PROCESS, part_of="append_record")
def append_and_count(config: Config, state: State, process: int) -> State | None:
    """Append my record and see whether all who are expected are in."""
    after = append_record(config, state, process)
    if after is None or len(live_members(after, content_of(after, process))) < config.expected:
        return after
    return move(after, process, FaultyStep.UNLINK_EARLY)


@action("process {process}", over=PROCESS)
def unlink_when_all_are_in(config: Config, state: State, process: int) -> State | None:
    """Remove the name as soon as everybody who is expected is in."""
    if not at(state, process, FaultyStep.UNLINK_EARLY):
        return None
    return move(forget_unreachable(state._replace(path=None)), process, Step.UNLOCK)


@action("process {process}", over=PROCESS, part_of="erase_record")
def erase_then_unlink(config: Config, state: State, process: int) -> State | None:
    """Erase my record; if I am the last, remove the name while I still have the memory."""
    after = erase_record(config, state, process)
    if after is None:
        return None
    last = after.processes[process].memo is not None
    return move(after, process, Step.UNLINK if last else Step.FINISH, memo=None)


@action("process {process}", over=PROCESS, progress=False, environment=True)
def die_but_keep_lock(config: Config, state: State, process: int) -> State | None:
    """SIGKILL; a forked child still has the descriptor, so the lock stays."""
    me = state.processes[process]
    return None if not config.deaths or me.step in TERMINAL else dead(state, process)


@action("process {process}", over=PROCESS, part_of="pass_barrier")
def trust_barrier(config: Config, state: State, process: int) -> State | None:
    """Pass the barrier and return, without a look at how the population went."""
    after = pass_barrier(config, state, process)
    return None if after is None else move(after, process, Step.MEMBER)


@action("process {process}", over=PROCESS, progress=False, part_of="cleanup")
def cleanup_unlocked(config: Config, state: State, process: int) -> State | None:
    """A member wants to leave, and does not take the lock for it."""
    return move(state, process, FaultyStep.LOOK) if at(state, process, Step.MEMBER) else None


def looked(state: State, process: int, name_stands: bool) -> State | None:
    """The state after a leaving member has looked whether it may remove the name."""
    if not at(state, process, FaultyStep.LOOK):
        return None
    others = [member for member in live_members(state, content_of(state, process)) if member != process]
    return move(state, process, FaultyStep.UNLINK if name_stands and not others else NaiveStep.UNMAP)


@action("process {process}", over=PROCESS)
def look_at_inode(config: Config, state: State, process: int) -> State | None:
    """Is the path still my file, and nobody else alive in it?"""
    return looked(state, process, name_stands=state.path == state.processes[process].entry)


@action("process {process}", over=PROCESS)
def look_at_path(config: Config, state: State, process: int) -> State | None:
    """Is there something at the path, and nobody else alive in my file?"""
    return looked(state, process, name_stands=state.path is not None)


@action("process {process}", over=PROCESS)
def unlink_unlocked(config: Config, state: State, process: int) -> State | None:
    """Remove the name, on the strength of a look that may be old."""
    if not at(state, process, FaultyStep.UNLINK):
        return None
    return move(unlink(state, process), process, NaiveStep.UNMAP)


UNCHECKED_LOCK = ((lock, lock_unchecked),)
UNRECORDED_JOINER = ((attach_memory, attach_unrecorded),)
REWRITTEN_LIST = ((append_record, truncate_list),)
UNCHECKED_PLACE = ((append_record, record_in_any_place),)
COUNTED_APPEND = ((append_record, append_and_count),)
EARLY_UNLINK = ((erase_record, erase_then_unlink),)
STICKY_LOCK = ((die, die_but_keep_lock),)
TRUSTED_BARRIER = ((pass_barrier, trust_barrier),)
UNLOCKED_CLEANUP = ((cleanup, cleanup_unlocked),)
BY_INODE: tuple[Action, ...] = (look_at_inode, unlink_unlocked, unmap)
BY_PATH: tuple[Action, ...] = (look_at_path, unlink_unlocked, unmap)
