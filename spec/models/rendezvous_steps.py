"""The recommended rendezvous, one function per step.

Whoever holds the lock of the file *at the path* is the only one who may edit, replace or unlink it. No step waits for
another process except for that lock, which the kernel drops when its owner dies.
"""

from __future__ import annotations

from collections.abc import Iterable

from spec.model import action
from spec.models.rendezvous_state import (
    EMPTY,
    LEAVING,
    TERMINAL,
    TORN,
    Config,
    FailedRecord,
    Population,
    Record,
    State,
    Step,
    content_of,
    create_at_path,
    holds,
    live_members,
    move,
    peers,
    set_lock,
    unlink,
    write,
)

LAST = "I am the last"  # a memo: this process will unlink
PROCESS = ("process",)


@action("process {process}", over=PROCESS)
def open_entry(config: Config, state: State, process: int) -> State | None:
    """Open the entry, creating it if it is not there."""
    if state.processes[process].step != Step.OPEN:
        return None
    if state.path is None:
        state = create_at_path(state, EMPTY)
    return move(state, process, Step.LOCK, entry=state.path)


@action("process {process}", over=PROCESS)
def lock(config: Config, state: State, process: int) -> State | None:
    """Take the lock of the open file, wherever its name is now."""
    me = state.processes[process]
    if me.step != Step.LOCK or me.entry is None or state.files[me.entry].locked_by is not None:
        return None
    return move(set_lock(state, me.entry, process), process, Step.VERIFY)


@action("process {process}", over=PROCESS)
def path_is_this_file(config: Config, state: State, process: int) -> State | None:
    """The path still leads to the locked file: from here on nobody else edits it."""
    me = state.processes[process]
    if me.step != Step.VERIFY or state.path != me.entry:
        return None
    return move(state, process, Step.READ)


@action("process {process}", over=PROCESS)
def path_is_another_file(config: Config, state: State, process: int) -> State | None:
    """The locked file has lost its name: start again."""
    me = state.processes[process]
    if me.step != Step.VERIFY or me.entry is None or state.path == me.entry:
        return None
    return move(set_lock(state, me.entry, None), process, Step.OPEN, entry=None)


@action("process {process}", over=PROCESS)
def find_live_member(config: Config, state: State, process: int) -> State | None:
    """A live member of my instance is recorded: attach through it."""
    if state.processes[process].step != Step.READ:
        return None
    content = content_of(state, process)
    alive = config.signs_of_life(state, content)
    if not alive or not isinstance(content, Record) or content.instance != config.instances[process]:
        return None
    return move(state, process, Step.ATTACH, memo=alive[0])


@action("process {process}", over=PROCESS)
def find_other_instance(config: Config, state: State, process: int) -> State | None:
    """A live member of another instance is recorded: raise an error that names it."""
    me = state.processes[process]
    if me.step != Step.READ or me.entry is None:
        return None
    content = content_of(state, process)
    alive = config.signs_of_life(state, content)
    if not alive or not isinstance(content, Record) or content.instance == config.instances[process]:
        return None
    return move(set_lock(state, me.entry, None), process, Step.REFUSED, entry=None)


def finds_failure(config: Config, state: State, process: int) -> bool:
    """The entry holds the failure of a creator of my instance whose process still lives."""
    content = content_of(state, process)
    return (
        isinstance(content, FailedRecord)
        and content.instance == config.instances[process]
        and state.processes[content.creator].step != Step.DEAD
    )


@action("process {process}", over=PROCESS)
def find_failed_creator(config: Config, state: State, process: int) -> State | None:
    """The creator left its failure: raise the same error at once."""
    me = state.processes[process]
    if me.step != Step.READ or me.entry is None or not finds_failure(config, state, process):
        return None
    return move(set_lock(state, me.entry, None), process, Step.REFUSED, entry=None)


@action("process {process}", over=PROCESS)
def find_nobody(config: Config, state: State, process: int) -> State | None:
    """Nobody recorded is alive, or the entry is empty or torn: I am the creator."""
    if state.processes[process].step != Step.READ or finds_failure(config, state, process):
        return None
    if config.signs_of_life(state, content_of(state, process)):
        return None
    return move(state, process, Step.CREATE)


@action("process {process}", over=PROCESS)
def create_memory(config: Config, state: State, process: int) -> State | None:
    """Create the memory: it has no name, so it cannot outlive its processes."""
    if state.processes[process].step != Step.CREATE:
        return None
    return move(state, process, Step.TRUNCATE, memory=process)


@action("process {process}", over=PROCESS)
def memory_check_fails(config: Config, state: State, process: int) -> State | None:
    """Too little memory: leave the failure in the entry for the others, and raise."""
    me = state.processes[process]
    if not config.may_fail or me.step != Step.CREATE or me.entry is None:
        return None
    state = write(state, me.entry, FailedRecord(config.instances[process], process))
    return move(set_lock(state, me.entry, None), process, Step.REFUSED, entry=None)


@action("process {process}", over=PROCESS)
def truncate_entry(config: Config, state: State, process: int) -> State | None:
    """Empty the entry in place, whatever was left in it: no unlink, no rename."""
    me = state.processes[process]
    if me.step != Step.TRUNCATE or me.entry is None:
        return None
    return move(write(state, me.entry, TORN), process, Step.RECORD)


@action("process {process}", over=PROCESS)
def write_record(config: Config, state: State, process: int) -> State | None:
    """Write the first record: the creator's."""
    me = state.processes[process]
    if me.step != Step.RECORD or me.entry is None:
        return None
    record = Record(process, config.instances[process], frozenset((process,)), process)
    return move(write(state, me.entry, record), process, Step.UNLOCK)


@action("process {process}", over=PROCESS)
def attach_memory(config: Config, state: State, process: int) -> State | None:
    """Open the memory through the live member's descriptor and map it."""
    me = state.processes[process]
    if me.step != Step.ATTACH:
        return None
    record = content_of(state, process)
    if not isinstance(record, Record) or not holds(state, me.memo, record.memory):
        return None
    return move(state, process, Step.APPEND, memory=record.memory, memo=None)


@action("process {process}", over=PROCESS)
def member_died_meanwhile(config: Config, state: State, process: int) -> State | None:
    """The member through which I wanted to attach is gone: look at the records again."""
    me = state.processes[process]
    if me.step != Step.ATTACH:
        return None
    record = content_of(state, process)
    if isinstance(record, Record) and holds(state, me.memo, record.memory):
        return None
    return move(state, process, Step.READ, memo=None)


@action("process {process}", over=PROCESS)
def append_record(config: Config, state: State, process: int) -> State | None:
    """Write my own record, over a dead member's if there is one: every member is a sign of life, not only the creator."""
    record = content_of(state, process)
    dead_members = record.members - set(live_members(state, record)) if isinstance(record, Record) else ()
    return record_in_place_of(state, process, dead_members)


def record_in_place_of(state: State, process: int, members: Iterable[int]) -> State | None:
    """Write the process's record in one write, over that of the first of those members, or else at the end."""
    me = state.processes[process]
    record = content_of(state, process)
    if me.step != Step.APPEND or me.entry is None or not isinstance(record, Record):
        return None
    kept = record.members - set(sorted(members)[:1])
    return move(write(state, me.entry, record._replace(members=kept | {process})), process, Step.UNLOCK)


@action("process {process}", over=PROCESS)
def unlock(config: Config, state: State, process: int) -> State | None:
    """Drop the lock. Without a barrier the constructor returns here."""
    me = state.processes[process]
    if me.step != Step.UNLOCK or me.entry is None:
        return None
    after = Step.MEMBER
    if config.barrier:
        after = Step.POPULATE if me.memory == process else Step.BARRIER
    return move(set_lock(state, me.entry, None), process, after)


@action("process {process}", over=PROCESS)
def populate(config: Config, state: State, process: int) -> State | None:
    """The creator fills the memory, outside the lock, and says so in its own record."""
    return finish_population(state, process, Population.POPULATED)


@action("process {process}", over=PROCESS)
def population_fails(config: Config, state: State, process: int) -> State | None:
    """The creator cannot fill the memory, and says so in its own record."""
    return finish_population(state, process, Population.FAILED) if config.may_fail else None


def finish_population(state: State, process: int, outcome: str) -> State | None:
    """The creator writes how the population went."""
    me = state.processes[process]
    record = content_of(state, process)
    if me.step != Step.POPULATE or me.entry is None or not isinstance(record, Record):
        return None
    return move(write(state, me.entry, record._replace(population=outcome)), process, Step.BARRIER)


# At the barrier, past it, or never to come.
ARRIVED = TERMINAL | LEAVING | {Step.BARRIER, Step.AFTER_BARRIER, Step.MEMBER}


@action("process {process}", over=PROCESS)
def pass_barrier(config: Config, state: State, process: int) -> State | None:
    """Every process of the instance has come to the barrier, or is gone."""
    if state.processes[process].step != Step.BARRIER:
        return None
    if any(each.step not in ARRIVED for each in peers(config, state, process)):
        return None
    return move(state, process, Step.AFTER_BARRIER)


def population_of(state: State, process: int) -> str:
    """What the creator's record says."""
    record = content_of(state, process)
    return record.population if isinstance(record, Record) else Population.UNKNOWN


@action("process {process}", over=PROCESS)
def find_populated(config: Config, state: State, process: int) -> State | None:
    """The creator's record says that the memory is populated: the constructor returns."""
    if state.processes[process].step != Step.AFTER_BARRIER or population_of(state, process) != Population.POPULATED:
        return None
    return move(state, process, Step.MEMBER)


@action("process {process}", over=PROCESS)
def find_unpopulated(config: Config, state: State, process: int) -> State | None:
    """The record says that the population failed, or nothing because the creator died: leave and raise."""
    if state.processes[process].step != Step.AFTER_BARRIER or population_of(state, process) == Population.POPULATED:
        return None
    return move(state, process, Step.LEAVE, failed=True)


@action("process {process}", over=PROCESS, progress=False)
def cleanup(config: Config, state: State, process: int) -> State | None:
    """A member wants to leave."""
    if state.processes[process].step != Step.MEMBER:
        return None
    return move(state, process, Step.LEAVE)


@action("process {process}", over=PROCESS)
def lock_to_leave(config: Config, state: State, process: int) -> State | None:
    """Take the lock once more."""
    me = state.processes[process]
    if me.step != Step.LEAVE or me.entry is None or state.files[me.entry].locked_by is not None:
        return None
    return move(set_lock(state, me.entry, process), process, Step.ERASE)


@action("process {process}", over=PROCESS)
def erase_record(config: Config, state: State, process: int) -> State | None:
    """Erase my own record, and see whether anybody else is left and the name is still this file's."""
    me = state.processes[process]
    if me.step != Step.ERASE or me.entry is None:
        return None
    content = content_of(state, process)
    if isinstance(content, Record):
        content = content._replace(members=content.members - {process})
    others = [member for member in live_members(state, content) if member != process]
    last = not others and state.path == me.entry
    state = write(state, me.entry, content)
    return move(state, process, Step.CLOSE, memo=LAST if last else None)


@action("process {process}", over=PROCESS)
def close_memory(config: Config, state: State, process: int) -> State | None:
    """Unmap and close the memory: before the unlink, so that a successor never meets it."""
    me = state.processes[process]
    if me.step != Step.CLOSE:
        return None
    return move(state, process, Step.UNLINK if me.memo == LAST else Step.FINISH, memory=None, memo=None)


@action("process {process}", over=PROCESS)
def unlink_entry(config: Config, state: State, process: int) -> State | None:
    """The last member removes the name, under the lock."""
    if state.processes[process].step != Step.UNLINK:
        return None
    return move(unlink(state, process), process, Step.FINISH)


@action("process {process}", over=PROCESS)
def close_entry(config: Config, state: State, process: int) -> State | None:
    """Unlock and close the entry: the clean-up, or the constructor's error, is complete."""
    me = state.processes[process]
    if me.step != Step.FINISH or me.entry is None:
        return None
    after = Step.REFUSED if me.failed else Step.CLEANED_UP
    return move(set_lock(state, me.entry, None), process, after, entry=None, memory=None, failed=False)


@action("process {process}", over=PROCESS, progress=False, environment=True)
def die(config: Config, state: State, process: int) -> State | None:
    """SIGKILL. The kernel closes everything and drops the locks."""
    me = state.processes[process]
    if not config.deaths or me.step in TERMINAL:
        return None
    files = tuple(file._replace(locked_by=None) if file.locked_by == process else file for file in state.files)
    return dead(state._replace(files=files), process)


def dead(state: State, process: int) -> State:
    """The process is gone, with all that it had open or mapped."""
    return move(state, process, Step.DEAD, entry=None, memory=None, memo=None, failed=False)


RECOMMENDED = (
    open_entry, lock, path_is_this_file, path_is_another_file, find_live_member, find_other_instance,
    find_failed_creator, find_nobody, create_memory, memory_check_fails, truncate_entry, write_record, attach_memory,
    member_died_meanwhile, append_record, unlock, populate, population_fails, pass_barrier, find_populated,
    find_unpopulated, cleanup, lock_to_leave, erase_record, close_memory, unlink_entry, close_entry, die,
)  # fmt: skip
