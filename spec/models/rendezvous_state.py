"""The rendezvous: what the processes share, what each one knows, and the few operations on it.

The entry file is named after the engine id. `State.path` says which file stands under that name now, or that none
does; a file that has lost its name lives on as long as somebody has it open. Files are numbered in the order of their
creation and a file that nobody can reach is forgotten, so that the states stay finite. The big memory is named after
the process that created it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from spec.model import Action, put

GONE = 99  # a process of an earlier run, dead long ago, and the memory that it had created


class Step:
    """What a process does next, in the recommended rendezvous."""

    OPEN = "open the entry"
    LOCK = "lock the entry"
    VERIFY = "is the path still this file?"
    READ = "read the records"
    CREATE = "create the memory"
    TRUNCATE = "truncate the entry"
    RECORD = "write the first record"
    ATTACH = "attach through a live member"
    APPEND = "append my record"
    UNLOCK = "unlock the entry"
    POPULATE = "populate the memory"
    BARRIER = "wait at the barrier"
    AFTER_BARRIER = "read how the population went"
    MEMBER = "member"  # the constructor has returned
    LEAVE = "lock the entry to leave"
    ERASE = "erase my record"
    CLOSE = "unmap and close the memory"
    UNLINK = "unlink: I am the last"
    FINISH = "unlock and close the entry"
    CLEANED_UP = "cleaned up"
    REFUSED = "raised an error"
    DEAD = "dead"


TERMINAL = frozenset((Step.CLEANED_UP, Step.REFUSED, Step.DEAD))
LEAVING = frozenset((Step.LEAVE, Step.ERASE, Step.CLOSE, Step.UNLINK, Step.FINISH))


class Population:
    """What the creator's record says about the contents of the memory."""

    UNKNOWN = "unknown"
    POPULATED = "populated"
    FAILED = "failed"


class Record(NamedTuple):
    """The records of one instance. Every member has its own; together they name one memory."""

    memory: int
    instance: str
    members: frozenset[int]
    creator: int
    population: str = Population.UNKNOWN


class FailedRecord(NamedTuple):
    """Left by a creator that could not make the memory, so that the others raise the same error."""

    instance: str
    creator: int


class BigFile(NamedTuple):
    """A peer's design: the memory itself lies under the name."""

    creator: int
    sized: bool


EMPTY = "empty"
TORN = "torn"
Content = Record | FailedRecord | BigFile | str


class EntryFile(NamedTuple):
    """One file (an inode), whether or not the path still leads to it."""

    content: Content
    locked_by: int | None


class Process(NamedTuple):
    """One process. `memo` is what it found out under the lock and acts on in its next step."""

    step: str
    entry: int | None = None  # the file that its descriptor of the entry is open on
    memory: int | None = None  # the memory that it has mapped and whose descriptor it keeps
    memo: Any = None
    failed: bool = False  # it is leaving because the population failed


class State(NamedTuple):
    """The directory, the files and the processes."""

    path: int | None
    files: tuple[EntryFile, ...]
    processes: tuple[Process, ...]
    harm: str = ""  # what an unlink destroyed; empty for ever in a right design


def move(state: State, process: int, step: str, **changes: Any) -> State:
    """The process goes on to `step`."""
    path, files, processes, harm = state
    moved = processes[process]._replace(step=step, **changes)
    after = State(path, files, put(processes, process, moved), harm)
    return forget_unreachable(after) if "entry" in changes else after


def write(state: State, file: int, content: Content) -> State:
    """Replace the content of a file."""
    return state._replace(files=put(state.files, file, state.files[file]._replace(content=content)))


def set_lock(state: State, file: int, owner: int | None) -> State:
    """Take or drop the lock of a file."""
    return state._replace(files=put(state.files, file, state.files[file]._replace(locked_by=owner)))


def create_at_path(state: State, content: Content) -> State:
    """A new file stands at the path; what stood there before has lost its name."""
    return state._replace(path=len(state.files), files=(*state.files, EntryFile(content, None)))


def unlink(state: State, process: int) -> State:
    """Remove the name, and note whom that harms: a live member, not the process itself, may stand in the entry."""
    return forget_unreachable(state._replace(path=None, harm=harm_of_unlinking(state, process)))


def harm_of_unlinking(state: State, process: int) -> str:
    """The complaint if what stands at the path records a live member other than `process`."""
    if state.path is None:
        return ""
    others = [member for member in live_members(state, state.files[state.path].content) if member != process]
    return f"process {process} unlinks the entry in which process {others[0]} lives" if others else ""


def forget_unreachable(state: State) -> State:
    """Drop the files that no path and no descriptor leads to, and number the rest anew."""
    kept = {each.entry for each in state.processes}
    kept.add(state.path)
    kept.discard(None)
    if len(kept) == len(state.files):
        return state
    new: dict[int | None, int | None] = {old: number for number, old in enumerate(sorted(kept))}  # type: ignore[type-var]
    new[None] = None
    return state._replace(
        path=new[state.path],
        files=tuple(file for number, file in enumerate(state.files) if number in kept),
        processes=tuple(each if each.entry is None else each._replace(entry=new[each.entry]) for each in state.processes),
    )


def content_of(state: State, process: int) -> Content:
    """What stands in the file that the process has open."""
    entry = state.processes[process].entry
    return EMPTY if entry is None else state.files[entry].content


def holds(state: State, process: int, memory: int) -> bool:
    """The process has that memory, so it is alive: a dead one has none."""
    return process < len(state.processes) and state.processes[process].memory == memory


def live_members(state: State, content: Content) -> list[int]:
    """The recorded members that are alive, lowest number first."""
    if not isinstance(content, Record):
        return []
    return [member for member in sorted(content.members) if holds(state, member, content.memory)]


@dataclass(frozen=True)
class Config:
    """One instance of the model."""

    instances: str = "AAA"  # one letter per process: the instance that it belongs to
    leftover: str = "none"  # what an earlier run left: none, other, same, torn, empty
    barrier: bool = False  # the creator populates, all meet at a barrier
    may_fail: bool = False  # the creator's memory check or its population may fail
    deaths: bool = True
    expected: int = 0  # with a fault only: unlink as soon as that many are in
    design: tuple[Action, ...] = ()  # the actions of a rejected design; empty: the recommended rendezvous
    changed: tuple[tuple[Action, Action], ...] = ()  # (an action, the faulty one in its place)
    added: tuple[Action, ...] = ()  # actions that only a fault has
    signs_of_life: Callable[[State, Content], list[int]] = live_members


def peers(config: Config, state: State, process: int) -> list[Process]:
    """The processes of the same instance, itself included."""
    mine = config.instances[process]
    return [each for each, name in zip(state.processes, config.instances, strict=True) if name == mine]
