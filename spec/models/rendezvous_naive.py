"""Rendezvous designs that were rejected.

They are natural designs, found in real programs. Each is a list of actions over the state of `rendezvous_state`:

- O_EXCL creates the entry, then its record is written: what does an empty entry mean?
- a complete file is linked (or renamed) into place: check-then-unlink of a stale one;
- the big memory itself lies under the name, unlinked when all expected processes have it.
"""

from __future__ import annotations

from spec.model import action
from spec.models.rendezvous_state import (
    EMPTY,
    GONE,
    LEAVING,
    TERMINAL,
    BigFile,
    Config,
    Record,
    State,
    Step,
    content_of,
    create_at_path,
    harm_of_unlinking,
    live_members,
    move,
    peers,
    unlink,
    write,
)
from spec.models.rendezvous_steps import cleanup, die

PROCESS = ("process",)


class NaiveStep:
    """What a process does next, in the rejected designs. They start at Step.OPEN and end as the recommended one."""

    WRITE = "write the record into my new entry"
    OPEN_EXISTING = "open the existing entry"
    READ = "read the existing entry"
    REMOVE_STALE = "remove the stale entry"
    LINK = "link my complete file into place"
    RENAME = "rename my complete file over the stale one"
    VERIFY = "is the path my file?"
    SIZE = "give the big file its size"
    OPEN_BIG = "open the big file"
    MAP_BIG = "map the big file"
    BARRIER = "wait until all have the big file"
    UNLINK_BIG = "unlink the big file"
    UNMAP = "unmap"


def at(state: State, process: int, step: str) -> bool:
    """Whether that is what the process does next."""
    return state.processes[process].step == step


def own_record(config: Config, process: int) -> Record:
    """The record of a creator."""
    return Record(process, config.instances[process], frozenset((process,)), process)


# ---- O_EXCL, then write


@action("process {process}", over=PROCESS)
def win_the_name(config: Config, state: State, process: int) -> State | None:
    """O_CREAT|O_EXCL succeeds: this process is the creator, its entry is still empty."""
    if not at(state, process, Step.OPEN) or state.path is not None:
        return None
    state = create_at_path(state, EMPTY)
    return move(state, process, NaiveStep.WRITE, entry=state.path, memory=process)


@action("process {process}", over=PROCESS)
def find_the_name_taken(config: Config, state: State, process: int) -> State | None:
    """O_CREAT|O_EXCL fails."""
    if not at(state, process, Step.OPEN) or state.path is None:
        return None
    return move(state, process, NaiveStep.OPEN_EXISTING)


@action("process {process}", over=PROCESS)
def write_own_record(config: Config, state: State, process: int) -> State | None:
    """The creator writes its record."""
    entry = state.processes[process].entry
    if not at(state, process, NaiveStep.WRITE) or entry is None:
        return None
    return move(write(state, entry, own_record(config, process)), process, Step.MEMBER)


def opened(state: State, process: int, if_gone: str) -> State | None:
    """The state after the process has opened what stands at the path; `if_gone` is what it does if nothing does."""
    if not at(state, process, NaiveStep.OPEN_EXISTING):
        return None
    if state.path is None:
        return move(state, process, if_gone)
    return move(state, process, NaiveStep.READ, entry=state.path)


@action("process {process}", over=PROCESS)
def open_existing(config: Config, state: State, process: int) -> State | None:
    """Open the existing entry; if it is gone by now, start again."""
    return opened(state, process, if_gone=Step.OPEN)


@action("process {process}", over=PROCESS)
def attach_or_refuse(config: Config, state: State, process: int) -> State | None:
    """The existing entry records a live process: attach to its memory, or refuse if it is another instance."""
    record = content_of(state, process)
    if not at(state, process, NaiveStep.READ) or not isinstance(record, Record) or not live_members(state, record):
        return None
    if record.instance == config.instances[process]:
        return move(state, process, Step.MEMBER, memory=record.memory)
    return move(state, process, Step.REFUSED, entry=None, memory=None)


def records_nobody_alive(state: State, process: int) -> bool:
    """The process has looked at the existing entry and found no live member in it."""
    return at(state, process, NaiveStep.READ) and not live_members(state, content_of(state, process))


@action("process {process}", over=PROCESS)
def judge_dead_stale(config: Config, state: State, process: int) -> State | None:
    """The existing entry records a dead process: it is stale. An empty one is waited for."""
    if not records_nobody_alive(state, process) or not isinstance(content_of(state, process), Record):
        return None
    return move(state, process, NaiveStep.REMOVE_STALE)


@action("process {process}", over=PROCESS)
def judge_stale(config: Config, state: State, process: int) -> State | None:
    """The existing entry is empty or records a dead process: it is stale."""
    return move(state, process, NaiveStep.REMOVE_STALE) if records_nobody_alive(state, process) else None


@action("process {process}", over=PROCESS)
def remove_stale(config: Config, state: State, process: int) -> State | None:
    """Unlink by path, long after the look: it may be somebody else's entry by now. Then start again."""
    if not at(state, process, NaiveStep.REMOVE_STALE):
        return None
    return move(unlink(state, process), process, Step.OPEN, entry=None)


@action("process {process}", over=PROCESS)
def unlink_own_entry(config: Config, state: State, process: int) -> State | None:
    """Clean-up: the creator removes the name if it is still its own."""
    if not at(state, process, Step.LEAVE):
        return None
    content, entry = content_of(state, process), state.processes[process].entry
    if isinstance(content, Record) and content.creator == process and state.path == entry:
        state = state._replace(path=None)
    return move(state, process, NaiveStep.UNMAP, entry=entry)


@action("process {process}", over=PROCESS)
def unmap(config: Config, state: State, process: int) -> State | None:
    """The clean-up is complete."""
    if not at(state, process, NaiveStep.UNMAP):
        return None
    return move(state, process, Step.CLEANED_UP, entry=None, memory=None)


# ---- a complete file, linked or renamed into place


@action("process {process}", over=PROCESS)
def prepare_complete_file(config: Config, state: State, process: int) -> State | None:
    """Create the memory and write the record into a temporary file."""
    if not at(state, process, Step.OPEN):
        return None
    return move(state, process, NaiveStep.LINK, memory=process)


@action("process {process}", over=PROCESS)
def link_into_place(config: Config, state: State, process: int) -> State | None:
    """The link succeeds if nothing stands at the path."""
    if not at(state, process, NaiveStep.LINK):
        return None
    if state.path is not None:
        return move(state, process, NaiveStep.OPEN_EXISTING)
    state = create_at_path(state, own_record(config, process))
    return move(state, process, Step.MEMBER, entry=state.path)


@action("process {process}", over=PROCESS)
def open_existing_or_link(config: Config, state: State, process: int) -> State | None:
    """Open the existing entry; if it is gone by now, link again."""
    return opened(state, process, if_gone=NaiveStep.LINK)


@action("process {process}", over=PROCESS)
def remove_stale_and_link(config: Config, state: State, process: int) -> State | None:
    """Unlink by path, long after the look: it may be somebody else's entry by now. Then link again."""
    if not at(state, process, NaiveStep.REMOVE_STALE):
        return None
    return move(unlink(state, process), process, NaiveStep.LINK, entry=None)


@action("process {process}", over=PROCESS)
def judge_replaceable(config: Config, state: State, process: int) -> State | None:
    """The existing entry records a dead process: rename over it."""
    return move(state, process, NaiveStep.RENAME) if records_nobody_alive(state, process) else None


def renamed(config: Config, state: State, process: int, then: str) -> State | None:
    """The state after the process has put its file in the place of whatever stands there by now."""
    if not at(state, process, NaiveStep.RENAME):
        return None
    harm = harm_of_unlinking(state, process)
    state = create_at_path(state, own_record(config, process))._replace(harm=harm)
    return move(state, process, then, entry=state.path)


@action("process {process}", over=PROCESS)
def rename_into_place(config: Config, state: State, process: int) -> State | None:
    """Rename over the stale entry."""
    return renamed(config, state, process, then=Step.MEMBER)


@action("process {process}", over=PROCESS)
def rename_to_verify(config: Config, state: State, process: int) -> State | None:
    """Rename over the stale entry, and then look whose file stands there."""
    return renamed(config, state, process, then=NaiveStep.VERIFY)


@action("process {process}", over=PROCESS)
def verify_own_file(config: Config, state: State, process: int) -> State | None:
    """Is it my file that stands at the path?"""
    if not at(state, process, NaiveStep.VERIFY):
        return None
    if state.path == state.processes[process].entry:
        return move(state, process, Step.MEMBER)
    return move(state, process, NaiveStep.OPEN_EXISTING, entry=None)


# ---- the big memory under the name


@action("process {process}", over=PROCESS)
def create_big_file(config: Config, state: State, process: int) -> State | None:
    """O_CREAT|O_EXCL succeeds: the file under the name is the memory, without a size yet."""
    if not at(state, process, Step.OPEN) or state.path is not None:
        return None
    state = create_at_path(state, BigFile(process, sized=False))
    return move(state, process, NaiveStep.SIZE, entry=state.path)


@action("process {process}", over=PROCESS)
def find_big_file(config: Config, state: State, process: int) -> State | None:
    """O_CREAT|O_EXCL fails."""
    if not at(state, process, Step.OPEN) or state.path is None:
        return None
    return move(state, process, NaiveStep.OPEN_BIG)


@action("process {process}", over=PROCESS)
def size_big_file(config: Config, state: State, process: int) -> State | None:
    """The creator gives the file its size and maps it."""
    entry = state.processes[process].entry
    if not at(state, process, NaiveStep.SIZE) or entry is None:
        return None
    return move(write(state, entry, BigFile(process, sized=True)), process, NaiveStep.BARRIER, memory=process)


@action("process {process}", over=PROCESS)
def open_big_file(config: Config, state: State, process: int) -> State | None:
    """Open it, or start again if it is gone."""
    if not at(state, process, NaiveStep.OPEN_BIG):
        return None
    if state.path is None:
        return move(state, process, Step.OPEN)
    return move(state, process, NaiveStep.MAP_BIG, entry=state.path)


@action("process {process}", over=PROCESS)
def map_big_file(config: Config, state: State, process: int) -> State | None:
    """Wait until the file has its size, then map it, whoever's it is."""
    if not at(state, process, NaiveStep.MAP_BIG):
        return None
    content = content_of(state, process)
    if isinstance(content, BigFile) and content.sized:
        return move(state, process, NaiveStep.BARRIER, memory=content.creator)
    if isinstance(content, Record):  # the leftover of an earlier run
        return move(state, process, NaiveStep.BARRIER, memory=GONE)
    return None


HAVE_BIG_FILE = TERMINAL | LEAVING | {NaiveStep.BARRIER, NaiveStep.UNLINK_BIG, Step.MEMBER}


@action("process {process}", over=PROCESS)
def big_file_barrier(config: Config, state: State, process: int) -> State | None:
    """With a barrier: wait until all have mapped it. The creator (and process 0) unlinks."""
    if not at(state, process, NaiveStep.BARRIER):
        return None
    if config.barrier and any(each.step not in HAVE_BIG_FILE for each in peers(config, state, process)):
        return None
    unlinks = process == 0 or state.processes[process].memory == process
    return move(state, process, NaiveStep.UNLINK_BIG if unlinks else Step.MEMBER)


@action("process {process}", over=PROCESS)
def unlink_big_file(config: Config, state: State, process: int) -> State | None:
    """Remove the name."""
    if not at(state, process, NaiveStep.UNLINK_BIG):
        return None
    return move(state._replace(path=None), process, Step.MEMBER, entry=state.processes[process].entry)


COMMON = (cleanup, unlink_own_entry, unmap, die)
READ_EXISTING = (open_existing, attach_or_refuse)
EXCLUSIVE = (win_the_name, find_the_name_taken, write_own_record, *READ_EXISTING, remove_stale, *COMMON)
EXCLUSIVE_WAIT = (*EXCLUSIVE, judge_dead_stale)
EXCLUSIVE_STEAL = (*EXCLUSIVE, judge_stale)
COMPLETE = (prepare_complete_file, link_into_place, open_existing_or_link, attach_or_refuse, *COMMON)
LINK = (*COMPLETE, judge_stale, remove_stale_and_link)
RENAME = (*COMPLETE, judge_replaceable, rename_into_place)
RENAME_VERIFY = (*COMPLETE, judge_replaceable, rename_to_verify, verify_own_file)
BIG_FILE = (
    create_big_file, find_big_file, size_big_file, open_big_file, map_big_file, big_file_barrier, unlink_big_file,
    *COMMON,
)  # fmt: skip
