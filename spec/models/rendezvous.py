"""The offload region's rendezvous: how processes that know only a name come to share one memory, and never two.

All workers of an engine instance open the same small *entry file*. The file's lock is the mutex. Under the lock a
process reads the records in the entry: who is alive in which memory? It attaches through a live member, refuses if the
live members belong to another instance, or creates the memory if nobody is alive; then it adds its own record and
unlocks. The memory itself has no name, so it dies with its last process, however that dies. The last member that
leaves removes the name, under the lock.

Any process may die between any two steps, all of them even, and an earlier run may have left an entry of any kind.

Where things are: the state in `rendezvous_state`, the recommended steps in `rendezvous_steps`, rejected designs in
`rendezvous_naive`, seeded faults in `rendezvous_faults`. Here are the properties and the instances.

What is abstracted: gigabytes are one number (the process that created them), a record's checksum is the difference
between a whole and a torn content, a process id is never used twice (the code checks the start time), and the
deadline for the lock is left out, because a lock whose owner is alive is always dropped in a few more steps.
"""

from __future__ import annotations

from itertools import combinations

from spec.model import Action, Drain, Model, Sometimes, Variant, invariant, sometimes
from spec.models import rendezvous_faults as faults
from spec.models import rendezvous_naive as naive
from spec.models.rendezvous_state import (
    EMPTY,
    GONE,
    LEAVING,
    TERMINAL,
    TORN,
    BigFile,
    Config,
    Content,
    EntryFile,
    FailedRecord,
    Population,
    Process,
    Record,
    State,
    Step,
    live_members,
)
from spec.models.rendezvous_steps import (
    RECOMMENDED,
    find_failed_creator,
    find_other_instance,
    find_populated,
    find_unpopulated,
    memory_check_fails,
    pass_barrier,
    path_is_another_file,
    populate,
    population_fails,
    population_of,
)
from spec.models.rendezvous_views import VIEWS

__all__ = ["VARIANTS", "VIEWS", "Config", "model"]


# ---- what must hold


def members(state: State) -> list[tuple[int, int]]:
    """(process, its memory) for all whose constructor has returned, those that are still leaving included."""
    return [
        (number, each.memory)
        for number, each in enumerate(state.processes)
        if each.memory is not None
        and not each.failed
        and (each.step == Step.MEMBER or each.step in LEAVING or each.step == faults.FaultyStep.LOOK)
    ]


@invariant("SB")
def no_split_brain(config: Config, state: State) -> str | None:
    """Members of one instance are in one memory."""
    for (one, memory), (other, other_memory) in combinations(members(state), 2):
        if config.instances[one] == config.instances[other] and memory != other_memory:
            return f"processes {one} and {other} of instance {config.instances[one]} are in different memories"
    return None


@invariant("SH")
def no_sharing(config: Config, state: State) -> str | None:
    """Members of different instances are in different memories."""
    for (one, memory), (other, other_memory) in combinations(members(state), 2):
        if config.instances[one] != config.instances[other] and memory == other_memory:
            return f"instances {config.instances[one]} and {config.instances[other]} share one memory"
    return None


@invariant("ST")
def no_stale_memory(config: Config, state: State) -> str | None:
    """Nobody is in the memory of a run that is over."""
    for process, memory in members(state):
        if memory == GONE:
            return f"process {process} uses the memory of a dead instance"
    return None


@invariant("U")
def no_harmful_unlink(config: Config, state: State) -> str | None:
    """Nobody removes an entry in which another live member stands."""
    return state.harm or None


@invariant("LF")
def nothing_left(config: Config, state: State) -> str | None:
    """When all have finished and nobody died, no name is left (except a failure for the others to read)."""
    if state.path is None or not all(each.step in (Step.CLEANED_UP, Step.REFUSED) for each in state.processes):
        return None
    if isinstance(state.files[state.path].content, FailedRecord):
        return None
    return "everybody has left, nobody died, and yet the entry is there"


@invariant("LK")
def no_memory_under_a_name(config: Config, state: State) -> str | None:
    """When nobody is left, no big memory is left."""
    if state.path is None or not all(each.step in TERMINAL for each in state.processes):
        return None
    return "gigabytes lie under a name, nobody is alive" if is_big_file(state) else None


def is_big_file(state: State) -> bool:
    """The big memory itself stands at the path."""
    return state.path is not None and isinstance(state.files[state.path].content, BigFile)


@invariant("PO")
def members_find_data(config: Config, state: State) -> str | None:
    """With a barrier, whoever is a member has a memory that its creator has populated."""
    if not config.barrier or config.design:
        return None
    for process, each in enumerate(state.processes):
        if each.step == Step.MEMBER and population_of(state, process) != Population.POPULATED:
            return f"process {process} is a member, and the population is {population_of(state, process)}"
    return None


INVARIANTS = (
    no_harmful_unlink, no_split_brain, no_sharing, no_stale_memory, nothing_left, no_memory_under_a_name,
    members_find_data,
)  # fmt: skip


@invariant("WT")
def nobody_waits_for_ever(config: Config, state: State) -> str | None:
    """Where nobody can move (deaths and a member's wish to leave apart) everybody is a member or has finished."""
    for process, each in enumerate(state.processes):
        if each.step not in TERMINAL and each.step != Step.MEMBER:
            return f"process {process} waits for ever ({each.step})"
    return None


def all_settled(config: Config, state: State) -> bool:
    """Every constructor and every clean-up has come to its end."""
    return all(each.step in TERMINAL or each.step == Step.MEMBER for each in state.processes)


SETTLES = Drain("D", demanded=lambda config, state: True, good=all_settled)


# ---- what must be reachable


@sometimes("all processes of an instance are members")
def all_in(config: Config, state: State) -> bool:
    steps = list(zip((each.step for each in state.processes), config.instances, strict=True))
    return any(all(step == Step.MEMBER for step, name in steps if name == instance) for instance in config.instances)


@sometimes("a joiner outlives the creator")
def creator_outlived(config: Config, state: State) -> bool:
    return any(
        each.step == Step.MEMBER and each.memory != number and state.processes[each.memory].step == Step.DEAD
        for number, each in enumerate(state.processes)
        if each.memory is not None
    )


@sometimes("a second memory after the first has gone")
def second_memory(config: Config, state: State) -> bool:
    return any(
        each.memory == number and number and state.processes[0].step == Step.CLEANED_UP
        for number, each in enumerate(state.processes)
    )


@sometimes("somebody has a file open that has lost its name")
def file_without_name(config: Config, state: State) -> bool:
    return any(each.entry is not None and each.entry != state.path for each in state.processes)


@sometimes("a process dies with the lock")
def torn_entry(config: Config, state: State) -> bool:
    return state.path is not None and state.files[state.path] == EntryFile(TORN, None)


@sometimes("the record of a dead process is met")
def stale_record_met(config: Config, state: State) -> bool:
    if state.path is None or not any(each.step == Step.CREATE for each in state.processes):
        return False
    content = state.files[state.path].content
    return isinstance(content, Record) and not live_members(state, content)


SOMETIMES: tuple[Sometimes, ...] = (all_in, second_memory, file_without_name)
AFTER_DEATHS: tuple[Sometimes, ...] = (creator_outlived, torn_entry, stale_record_met)


# ---- the model

LEFTOVERS = ("none", "other", "same", "torn", "empty")


def initial(config: Config) -> State:
    """Nobody has begun; an earlier run may have left an entry."""
    processes = (Process(Step.OPEN),) * len(config.instances)
    dead_member = frozenset((GONE,))
    left: dict[str, Content] = {
        "other": Record(GONE, "Z", dead_member, GONE),
        "same": Record(GONE, config.instances[0], dead_member, GONE),
        "torn": TORN,
        "empty": EMPTY,
    }
    if config.leftover not in LEFTOVERS:
        raise ValueError(f"leftover is one of {', '.join(LEFTOVERS)}, not {config.leftover!r}")
    if config.leftover == "none":
        return State(None, (), processes)
    return State(0, (EntryFile(left[config.leftover], None),), processes)


def actions_of(config: Config) -> tuple[Action, ...]:
    """The actions that the configuration allows, faulty ones in the place of right ones."""
    if config.design:
        return config.design
    absent = set()
    if not config.may_fail:
        absent |= {memory_check_fails, population_fails, find_failed_creator}
    if not config.barrier:
        absent |= {populate, population_fails, pass_barrier, find_populated, find_unpopulated}
    if len(set(config.instances)) == 1:
        absent.add(find_other_instance)
        if config.barrier:  # nobody leaves before all have come, so nobody's file loses its name
            absent.add(path_is_another_file)
    wrong = dict(config.changed)
    return tuple(wrong.get(each, each) for each in RECOMMENDED if each not in absent) + config.added


def model(config: Config) -> Model:
    """The model of one instance."""
    recommended = not config.design and not config.changed and not config.added
    situations = SOMETIMES + AFTER_DEATHS if config.deaths else SOMETIMES
    return Model(
        name="rendezvous",
        config=config,
        initial=(initial(config),),
        actions=actions_of(config),
        domains={"process": range(len(config.instances))},
        invariants=INVARIANTS,
        deadlocks=(nobody_waits_for_ever,),
        drain=SETTLES,
        sometimes=situations if recommended else (),
    )


# ---- seeded faults and rejected designs: what breaks, and after how many steps

VARIANTS: dict[str, Variant] = {
    "lock-unchecked": Variant(
        "lock without inode check: the path is not checked after locking", Config(changed=faults.UNCHECKED_LOCK), "SB", 27
    ),
    "only-creator-counts": Variant(
        "only the creator counts: a live joiner is no sign of life", Config(signs_of_life=faults.only_the_creator), "SB", 24
    ),
    "joiner-unrecorded": Variant(
        "joiner unrecorded: a joiner leaves no record", Config(changed=faults.UNRECORDED_JOINER), "SB", 23
    ),
    "list-rewritten": Variant(
        "list rewritten in place: a death tears the list of the living",
        Config(changed=faults.REWRITTEN_LIST, added=(faults.rewrite_list,)),
        "SB",
        23,
    ),
    "place-unchecked": Variant(
        "record over any record: a live member's makes room for the next one's",
        Config(changed=faults.UNCHECKED_PLACE),
        "SB",
        23,
    ),
    "cleanup-unlocked": Variant(
        "clean-up without the lock: stat, then unlink",
        Config("AAB", changed=faults.UNLOCKED_CLEANUP, added=faults.BY_INODE),
        "U",
        17,
    ),
    "cleanup-by-path": Variant(
        "clean-up by path: unlink whatever stands there",
        Config("AAB", changed=faults.UNLOCKED_CLEANUP, added=faults.BY_PATH),
        "U",
        17,
    ),
    "unlink-before-close": Variant(
        "unlink before close: the name goes before the memory", Config(changed=faults.EARLY_UNLINK), "SB", 20
    ),
    "lock-outlives-owner": Variant(
        "lock outlives its owner: a forked child keeps the dead owner's lock", Config(changed=faults.STICKY_LOCK), "WT", 5
    ),
    "unlink-at-two-of-three": Variant(
        "unlink when two are in, a third comes: the late joiner finds no entry",
        Config(expected=2, changed=faults.COUNTED_APPEND, added=(faults.unlink_when_all_are_in,)),
        "SB",
        23,
    ),
    "unlink-at-three": Variant(
        "unlink when all three are in: right if nobody ever comes later",
        Config(expected=3, changed=faults.COUNTED_APPEND, added=(faults.unlink_when_all_are_in,)),
    ),
    "unlink-at-three-of-four": Variant(
        "unlink when three are in, one is replaced: a restarted worker finds no entry",
        Config("AAAA", expected=3, changed=faults.COUNTED_APPEND, added=(faults.unlink_when_all_are_in,)),
        "SB",
        30,
    ),
    "population-unchecked": Variant(
        "population not checked: the barrier also lets those pass whose creator has died",
        Config("AA", barrier=True, changed=faults.TRUSTED_BARRIER),
        "PO",
        17,
    ),
    "exclusive-wait": Variant(
        "O_EXCL, empty means wait: the creator died before it wrote", Config(design=naive.EXCLUSIVE_WAIT), "WT", 5
    ),
    "exclusive-steal": Variant(
        "O_EXCL, empty means stale: the creator was about to write", Config(design=naive.EXCLUSIVE_STEAL), "U", 6
    ),
    "link": Variant(
        "link a complete file: a stale entry is checked, then unlinked", Config(leftover="other", design=naive.LINK), "U", 11
    ),
    "rename": Variant(
        "rename a complete file: two rename over the same stale entry",
        Config(leftover="other", design=naive.RENAME),
        "U",
        10,
    ),
    "rename-verify": Variant(
        "rename, then verify: the look after the rename comes too late",
        Config(leftover="other", design=naive.RENAME_VERIFY),
        "U",
        10,
    ),
    "big-file": Variant("big file, no barrier: a death leaks gigabytes", Config("AA", design=naive.BIG_FILE), "LK", 3),
    "big-file-two-instances": Variant(
        "big file, no barrier, two instances: a death leaks gigabytes", Config("AB", design=naive.BIG_FILE), "LK", 3
    ),
    "big-file-barrier": Variant(
        "big file, barrier, no deaths: right if nobody dies or comes late",
        Config("AA", barrier=True, deaths=False, design=naive.BIG_FILE),
    ),
    "big-file-late-third": Variant(
        "big file, late third: the name is gone when it comes", Config(deaths=False, design=naive.BIG_FILE), "SB", 8
    ),
    "big-file-stale": Variant(
        "big file, stale file: the leftover is taken for a live one",
        Config("AA", leftover="other", barrier=True, deaths=False, design=naive.BIG_FILE),
        "ST",
        7,
    ),
}
