"""The rendezvous' failures: all who pass one barrier agree on how the construction went.  A side model of `rendezvous`.

Each process of an instance comes, is in or fails, tells of a failure in the entry, passes the instance's barrier, and
then looks whether another one has failed.  One that dies before the barrier is replaced.  A stranger, of another
instance, comes and goes.  What a process does under the entry's lock is one step here; `rendezvous` takes it apart.

A failure *counts* for who comes while somebody of its instance holds the meeting's place, as each process does from its
coming until it knows.  One failure fits into an entry: where another instance's stands there, the place alone says it, for
who holds it and is no member has failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from spec.model import Drain, Model, Sometimes, Variant, action, invariant, put, sometimes

PROCESS = ("process",)


@dataclass(frozen=True)
class Config:
    """The instances (a letter per process), how many of each meet, and the rules that the variants drop."""

    instances: str = "AAB"
    seats: tuple[tuple[str, int], ...] = (("A", 2), ("B", 1))
    counts_for_all: bool = True  # not only while the process that failed is there
    stranger_waits: bool = True  # where a failure is still to be met
    entry_waits: bool = True  # the last member leaves the entry where a failure is still to be met


class Step:
    """What a process does next."""

    AWAY, IN, TELL, READY, WAIT, LOOK, MEMBER, LEAVE, GONE, DEAD = (
        "come", "take pages", "tell", "arrive", "wait", "look", "member", "leave", "gone", "dead",
    )  # fmt: skip


class Process(NamedTuple):
    """One process, and what it has met with."""

    step: str = Step.AWAY
    entry: int | None = None
    failed: bool = False
    arrived: bool = False
    passed: bool = False


class Entry(NamedTuple):
    """The file at the path."""

    number: int
    members: frozenset[int] = frozenset()
    failure: int | None = None  # the process that told of it


class State(NamedTuple):
    """What stands at the path, how many entries there were, and the processes."""

    entry: Entry | None
    entries: int
    processes: tuple[Process, ...]


HOLDING = frozenset((Step.IN, Step.TELL, Step.READY, Step.WAIT, Step.LOOK, Step.LEAVE))  # to LEAVE come the failed


def move(state: State, process: int, step: str, **changes: object) -> State:
    me = state.processes[process]._replace(step=step, **changes)  # type: ignore[arg-type]
    return state._replace(processes=put(state.processes, process, me))


def opened(state: State) -> tuple[State, Entry]:
    """With an entry at the path."""
    if state.entry is not None:
        return state, state.entry
    entry = Entry(state.entries)
    return state._replace(entry=entry, entries=state.entries + 1), entry


def alive(state: State, entry: Entry) -> list[int]:
    return [each for each in sorted(entry.members) if state.processes[each].step != Step.DEAD]


def is_held(config: Config, state: State, entry: Entry, instances: str, process: int) -> bool:
    """Whether another process holds the meeting's place of one of those instances."""
    return any(
        number != process
        and config.instances[number] in instances
        and each.entry == entry.number
        and each.step in HOLDING
        for number, each in enumerate(state.processes)
    )


def is_awaited(config: Config, state: State, entry: Entry, process: int) -> bool:
    """Whether a failure stands there that another process is still to meet the others with, or to hear of."""
    return entry.failure is not None and is_held(config, state, entry, config.instances[entry.failure], process)


def counts(config: Config, state: State, entry: Entry, process: int) -> bool:
    """Whether the failure that stands there concerns a process that comes now."""
    if config.counts_for_all:
        return is_held(config, state, entry, config.instances[process], process)
    return entry.failure is not None and state.processes[entry.failure].step not in (Step.GONE, Step.DEAD)


def may_come(config: Config, state: State, process: int) -> bool:
    """A seat is free: nobody has it, or the one who had it died on the way to the barrier."""
    name = config.instances[process]
    peers = [each for each, other in zip(state.processes, config.instances, strict=True) if other == name]
    taken = sum(each.step != Step.AWAY and (each.step != Step.DEAD or each.arrived) for each in peers)
    return state.processes[process].step == Step.AWAY and taken < dict(config.seats)[name]


@action("process {process}", over=PROCESS)
def come(config: Config, state: State, process: int) -> State | None:
    """Come in as a member, or be refused: by a live member of another instance, or by a failure that counts."""
    if not may_come(config, state, process):
        return None
    state, entry = opened(state)
    name, members = config.instances[process], alive(state, entry)
    mine = entry.failure is not None and config.instances[entry.failure] == name
    if members:
        if config.instances[members[0]] != name:
            return move(state, process, Step.TELL, entry=entry.number, failed=True)
        kept = entry.failure if mine and counts(config, state, entry, process) else None
        entry = entry._replace(members=frozenset((*members, process)), failure=kept)
    elif (mine or config.counts_for_all) and counts(config, state, entry, process):
        return move(state, process, Step.READY, entry=entry.number, failed=True)
    elif config.stranger_waits and is_held(config, state, entry, config.instances, process):
        return move(state, process, Step.TELL, entry=entry.number, failed=True)
    else:
        entry = entry._replace(members=frozenset((process,)), failure=None)
    return move(state._replace(entry=entry), process, Step.IN, entry=entry.number)


@action("process {process}", over=PROCESS)
def fail_before(config: Config, state: State, process: int) -> State | None:
    """There is nobody, and too little memory."""
    after = come(config, state, process)
    if after is None or after.entry is None:
        return None
    if after.processes[process].failed or after.entry.members != {process}:
        return None
    state, entry = opened(state)
    return move(state, process, Step.TELL, entry=entry.number, failed=True)


@action("process {process}", over=PROCESS)
def fail_within(config: Config, state: State, process: int) -> State | None:
    """A member cannot take its pages."""
    if state.processes[process].step != Step.IN:
        return None
    return move(state, process, Step.TELL, failed=True)


@action("process {process}", over=PROCESS)
def tell(config: Config, state: State, process: int) -> State | None:
    """Write the failure into the entry, unless one stands there that is still to be met."""
    if state.processes[process].step != Step.TELL:
        return None
    state, entry = opened(state)
    name = config.instances[process]
    if entry.failure is not None and config.instances[entry.failure] == name:
        stands = counts(config, state, entry, process)
    else:
        is_ours = any(config.instances[each] == name for each in alive(state, entry))
        stands = not is_ours and is_awaited(config, state, entry, process)
    if not stands:
        state = state._replace(entry=entry._replace(failure=process))
    return move(state, process, Step.READY, entry=entry.number)


@action("process {process}", over=PROCESS)
def arrive(config: Config, state: State, process: int) -> State | None:
    """Call the barrier."""
    if state.processes[process].step not in (Step.IN, Step.READY):
        return None
    return move(state, process, Step.WAIT, arrived=True)


@action("process {process}", over=PROCESS)
def pass_barrier(config: Config, state: State, process: int) -> State | None:
    """As many have called it as are to meet, the dead among them included."""
    name = config.instances[process]
    arrived = sum(each.arrived for each, other in zip(state.processes, config.instances, strict=True) if other == name)
    if state.processes[process].step != Step.WAIT or arrived < dict(config.seats)[name]:
        return None
    return move(state, process, Step.LOOK, passed=True)


@action("process {process}", over=PROCESS)
def look(config: Config, state: State, process: int) -> State | None:
    """A member, unless this one, or another of the instance, has failed."""
    me, entry = state.processes[process], state.entry
    if me.step != Step.LOOK:
        return None
    told = entry.failure if entry is not None and entry.number == me.entry else None
    failed = me.failed or (told is not None and config.instances[told] == config.instances[process])
    return move(state, process, Step.LEAVE if failed else Step.MEMBER, failed=failed)


@action("process {process}", over=PROCESS, progress=False)
def leave(config: Config, state: State, process: int) -> State | None:
    """Close the entry; whoever finds nobody in it, and nothing that is still to be met, removes it."""
    me, entry = state.processes[process], state.entry
    if me.step not in (Step.LEAVE, Step.MEMBER):
        return None
    state = move(state, process, Step.GONE, entry=None)
    if entry is None or entry.number != me.entry:
        return state
    entry = entry._replace(members=entry.members - {process})
    is_last = not alive(state, entry) and not (
        config.entry_waits and is_held(config, state, entry, config.instances, process)
    )
    return state._replace(entry=None if is_last else entry)


@action("process {process}", over=PROCESS, progress=False, environment=True)
def die(config: Config, state: State, process: int) -> State | None:
    """SIGKILL: the kernel drops what it holds."""
    if state.processes[process].step in (Step.AWAY, Step.GONE, Step.DEAD):
        return None
    return move(state, process, Step.DEAD, entry=None)


@invariant("AG")
def all_agree(config: Config, state: State) -> str | None:
    """Of those who have passed one barrier, all are in or all have failed."""
    passed = [(number, each) for number, each in enumerate(state.processes) if each.passed]
    for (one, mine), (other, theirs) in combinations(passed, 2):
        if config.instances[one] != config.instances[other]:
            continue
        for number, each, failed in ((one, mine, theirs), (other, theirs, mine)):
            if failed.failed and not each.failed and each.step in (Step.MEMBER, Step.GONE):
                return f"process {number} is in, and one that it has met at the barrier has failed"
    return None


TO_ARRIVE = (Step.AWAY, Step.IN, Step.TELL, Step.READY)
THROUGH = (Step.AWAY, Step.MEMBER, Step.LEAVE, Step.GONE, Step.DEAD)


def all_know(config: Config, state: State) -> bool:
    """Nobody waits at a barrier that enough have come to, or can still come to, nor on the way to it."""
    for name, seats in config.seats:
        peers = [each for each, other in zip(state.processes, config.instances, strict=True) if other == name]
        enough = sum(each.arrived or each.step in TO_ARRIVE for each in peers) >= seats
        if enough and not all(each.step in THROUGH for each in peers):
            return False
    return True


@sometimes("one is replaced after it has told")
def replaced(config: Config, state: State) -> bool:
    return any(each.step == Step.DEAD and each.failed and not each.arrived for each in state.processes) and any(
        each.step == Step.MEMBER for each in state.processes
    )


@sometimes("a stranger is refused because of a failure")
def stranger_refused(config: Config, state: State) -> bool:
    return state.processes[-1].failed and state.entry is not None and not state.entry.members


def model(config: Config) -> Model:
    """One instance that meets, and a stranger."""
    situations: tuple[Sometimes, ...] = (stranger_refused,) if "B" in config.instances else ()
    situations += (replaced,) if config.instances.count("A") > dict(config.seats)["A"] else ()
    rules = config.counts_for_all and config.stranger_waits and config.entry_waits
    return Model(
        name="rendezvous_meeting",
        config=config,
        initial=(State(None, 0, (Process(),) * len(config.instances)),),
        actions=(come, fail_before, fail_within, tell, arrive, pass_barrier, look, leave, die),
        domains={"process": range(len(config.instances))},
        invariants=(all_agree,),
        drain=Drain("D", demanded=lambda config, state: True, good=all_know),
        sometimes=situations if rules else (),
    )


VARIANTS: dict[str, Variant] = {
    "failure-dies": Variant(
        "a failure counts while the process that told of it lives", Config("AAA", counts_for_all=False), "AG", 13
    ),
    "stranger-takes-over": Variant(
        "a stranger takes the entry over from a failure: all agree, but its text is lost", Config(stranger_waits=False)
    ),
    "entry-removed": Variant(
        "the last member removes the entry, and a failure with it", Config(entry_waits=False), "AG", 13
    ),
}
