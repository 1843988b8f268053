"""What must hold of membership."""

from __future__ import annotations

from spec.model import Drain, invariant, sometimes
from spec.models.membership_state import (
    EMPTY,
    HELD,
    JOINED,
    JOINING,
    LEASED,
    LEFT,
    LEFT_OVER,
    NOT_READY,
    NOTHING,
    OLD_LEASED,
    READY,
    UNPROTECTED,
    UNREAD,
    WAITING,
    Config,
    Rank,
    ReaderStep,
    State,
    WriterStep,
)


@invariant("S1")
def in_use_is_current(config: Config, state: State) -> str | None:
    """No view of a slot that carries another message by now, none of an object without a word, and none of the dead."""
    for number, rank in enumerate(state.ranks):
        if rank.message == OLD_LEASED:
            return f"reader {number} has a view of a slot that carries another message"
        if rank.step == ReaderStep.DEAD and (rank.object == HELD or rank.message == LEASED):
            return f"the dead process of rank {number} has a view"
        if rank.object == UNPROTECTED:
            return f"a process that left rank {number} has a view of an object, and no word protects it"
    return None


@invariant("S4")
def no_leak(config: Config, state: State) -> str | None:
    """When nobody has anything to do any more, nobody owes a release."""
    if state.writer.step != WriterStep.IDLE or not all(is_settled(rank) for rank in state.ranks):
        return None
    for number, rank in enumerate(state.ranks):
        if rank.owes and rank.message == NOTHING:
            return f"the slot waits for rank {number} for ever"
    return None


def is_settled(rank: Rank) -> bool:
    """What the writer knows of the rank is up to date."""
    if rank.step == ReaderStep.NOBODY:
        return rank.word == EMPTY
    return (rank.step == ReaderStep.RUNNING and rank.member) or (rank.step == ReaderStep.GONE and not rank.member)


@invariant("ROW")
def empty_rows(config: Config, state: State) -> str | None:
    """The rows of an EMPTY entry are clear: a new process inherits nothing."""
    for number, rank in enumerate(state.ranks):
        if rank.word == EMPTY and (rank.object == LEFT_OVER or rank.message != NOTHING or rank.member):
            return f"rank {number} is empty, and its rows are not"
    return None


@invariant("A")
def members_are_admitted(config: Config, state: State) -> str | None:
    """The writer counts as members those whom it has admitted, and a reader works only when it has been."""
    for number, rank in enumerate(state.ranks):
        if rank.member and rank.word not in (JOINED, LEFT):
            return f"rank {number} counts as a member, its entry says {rank.word}"
        if rank.step == ReaderStep.RUNNING and not rank.member and state.writer.step != WriterStep.DEAD:
            return f"reader {number} works and is no member"
    return None


@invariant("R")
def ready_means_all(config: Config, state: State) -> str | None:
    """Once ready, every rank gets every message until somebody dies or leaves."""
    if state.writer.ready != READY:
        return None
    for number, rank in enumerate(state.ranks):
        if not rank.member:
            return f"the writer is ready, and rank {number} is no member"
    return None


@invariant("N")
def missing_are_named(config: Config, state: State) -> str | None:
    """A TimeoutError is of a handshake that is not over, and names exactly the ranks that are missing."""
    if state.writer.step != WriterStep.TIMED_OUT:
        return None
    if state.writer.ready != NOT_READY:
        return "the handshake is over, and it has timed out"
    missing = tuple(number for number, rank in enumerate(state.ranks) if not rank.member)
    return None if state.writer.named == missing else f"missing are {missing}, named are {state.writer.named}"


@invariant("L")
def no_lost_wakeup(config: Config, state: State) -> str | None:
    """No admitted reader sleeps while the writer lives and is not about to wake it."""
    waking = state.writer.step in (WriterStep.LOOK, WriterStep.WAKE)
    for number, rank in enumerate(state.ranks):
        if rank.step != ReaderStep.ASLEEP or rank.word != JOINED or state.writer.step == WriterStep.DEAD:
            continue
        if not waking or state.writer.rank != number:
            return f"reader {number} is admitted and sleeps"
    return None


INVARIANTS = (
    in_use_is_current, no_leak, empty_rows, members_are_admitted, ready_means_all, missing_are_named, no_lost_wakeup,
)  # fmt: skip


def all_settled(config: Config, state: State) -> bool:
    """Everybody is in, or out and its rank free, nobody owes anything; with the writer dead, nobody waits for it."""
    if state.writer.step == WriterStep.DEAD:
        return all(rank.step not in WAITING for rank in state.ranks)
    return state.writer.step == WriterStep.IDLE and all(
        is_settled(rank) and rank.step != ReaderStep.GONE and not rank.owes and rank.message != UNREAD
        for rank in state.ranks
    )


DRAIN = Drain("D", demanded=lambda config, state: True, good=all_settled)


@sometimes("the handshake is over")
def handshake_over(config: Config, state: State) -> bool:
    return state.writer.ready == READY


@sometimes("a joiner sleeps")
def joiner_sleeps(config: Config, state: State) -> bool:
    return any(rank.step == ReaderStep.ASLEEP and rank.word == JOINING for rank in state.ranks)


@sometimes("a joiner dies before it is admitted")
def joiner_dies(config: Config, state: State) -> bool:
    return any(rank.step == ReaderStep.DEAD and rank.word == JOINING for rank in state.ranks)


@sometimes("a dead process is admitted, and found dead later")
def dead_member(config: Config, state: State) -> bool:
    return any(rank.step == ReaderStep.DEAD and rank.word == JOINED for rank in state.ranks)


@sometimes("a new process joins after a death")
def rejoin(config: Config, state: State) -> bool:
    return state.writer.ready not in (READY, NOT_READY) and any(rank.word == JOINING for rank in state.ranks)


@sometimes("a joiner gives up while the writer admits it")
def gives_up_in_time(config: Config, state: State) -> bool:
    return state.writer.step == WriterStep.ADMIT and state.ranks[state.writer.rank].word == LEFT


SOMETIMES = (handshake_over, joiner_sleeps, joiner_dies, dead_member, rejoin)
SOMETIMES_LEFT = (gives_up_in_time,)
