"""How the construction of a region went: said in the entry by one process, read by the others."""

from __future__ import annotations

import os

from arena import errors
from arena.errors import ArenaError
from arena.shm import process
from arena.shm.entry import Entry, Failure
from arena.shm.membership import Member, Wanted, step


def populate(member: Member) -> None:
    """The creator says that it has populated the memory."""
    member.entry.write_populated(member.wanted.nonce)
    step("populate")


def population_fails(member: Member, error: BaseException) -> None:
    """A member says that it failed, so that all who meet at the barrier fail with its error."""
    member.entry.lock()
    try:
        write_failure(member.entry, member.wanted, error)
    finally:
        member.entry.unlock()
    step("population_fails")


def find_populated(member: Member, *, must_be_populated: bool) -> None:
    """After the barrier: raises if any process failed or, where it has to be, the memory was not populated."""
    failure = failure_in(member.entry, member.wanted)
    if failure is not None and failure != member.past_failure:
        step("find_unpopulated")
        raise error_of(member.wanted, failure)
    if must_be_populated and not member.entry.read().is_populated(member.wanted.nonce):
        step("find_unpopulated")
        raise ArenaError(f"the creator of region {member.wanted.engine_id!r} died before it had populated it")
    step("find_populated")


def past_failure(entry: Entry, wanted: Wanted) -> Failure | None:
    """The failure of a process that has ended or met all whom it concerns: those who come now are not among them."""
    failure = failure_in(entry, wanted)
    return None if failure is None or lives(entry, failure) else failure


def lives(entry: Entry, failure: Failure) -> bool:
    """Whether the process that failed is still there for others to hear of it; not if it is this one that asks."""
    held = entry.is_held(failure.place)
    if held is not None:
        return held
    if failure.namespace != process.pid_namespace():
        return True
    return failure.pid != os.getpid() and process.start_time(failure.pid) == failure.start


def find_failed_creator(wanted: Wanted, entry: Entry) -> None:
    """Raises the error of a process of this instance that could not create the memory."""
    failure = failure_in(entry, wanted)
    if failure is not None and lives(entry, failure):
        step("find_failed_creator")
        raise error_of(wanted, failure)


def failure_in(entry: Entry, wanted: Wanted) -> Failure | None:
    """The failure of a process of this instance, if there was one."""
    failure = entry.read().failure
    return failure if failure is not None and failure.nonce == wanted.nonce else None


def write_failure(entry: Entry, wanted: Wanted, error: BaseException) -> bool:
    """Says, under the lock, that this process failed, until the entry is closed; False: another one's failure stands."""
    first = failure_in(entry, wanted)
    if first is not None and lives(entry, first):
        return False
    text = f"{type(error).__name__}\n{text_of(error)}"
    failure = Failure(wanted.nonce, os.getpid(), process.own_start_time(), process.pid_namespace(), text)
    entry.hold(failure.place)
    entry.write_failure(failure)
    return True


def text_of(error: BaseException) -> str:
    """Its text; an error that cannot say one is an error all the same."""
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be had: {type(second).__name__})"


def error_of(wanted: Wanted, failure: Failure) -> ArenaError:
    """The failure that another process left, as an error of the same type if that is one of ours, else named in the text."""
    name, _, text = failure.text.partition("\n")
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ArenaError)):
        kind, text = ArenaError, f"{name}: {text}"
    return kind(f"process {failure.pid} of region {wanted.engine_id!r} failed: {text}")
