"""How the construction of a region went: said in the entry by one process, read by the others."""

from __future__ import annotations

import os

from arena import errors
from arena.errors import ArenaError, AttachError
from arena.shm import process
from arena.shm.backing import survivors
from arena.shm.entry import MEETING_BYTES, MEETING_PLACES, Entry, Failure, meeting_place
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
    if failure is not None:
        step("find_unpopulated")
        raise error_of(member.wanted, failure)
    if must_be_populated and not member.entry.read().is_populated(member.wanted.nonce):
        step("find_unpopulated")
        raise ArenaError(f"the creator of region {member.wanted.engine_id!r} died before it had populated it")
    step("find_populated")


def forget_past_failure(entry: Entry) -> None:
    """Erases, under the lock, a failure that all whom it concerns know of: who comes now is not among them."""
    failure = entry.read().failure
    if failure is not None and not lives(entry, failure):
        entry.erase_failure()


def is_awaited(entry: Entry) -> bool:
    """Whether somebody else, of whatever instance, has come to it and does not know yet how it went for all."""
    return bool(entry.is_held(MEETING_PLACES, MEETING_BYTES))


def lives(entry: Entry, failure: Failure) -> bool:
    """Whether the failure counts for who comes now: somebody else has it to tell, or may be still to hear of it."""
    held = entry.is_held(failure.place), entry.is_held(meeting_place(failure.nonce))
    if None not in held:
        return any(held)
    if failure.namespace != process.pid_namespace():
        return True
    return failure.pid != os.getpid() and process.start_time(failure.pid) == failure.start


def find_failed_creator(wanted: Wanted, entry: Entry) -> None:
    """Raises the error of a process of this instance that could not create the memory.

    Another instance that has failed is alive until all who meet at its barrier know: who comes later must find it.
    """
    failure = failure_in(entry, wanted)
    if failure is not None and lives(entry, failure):
        step("find_failed_creator")
        raise error_of(wanted, failure)
    if entry.is_held(meeting_place(wanted.nonce)):  # by one that is no member, as nobody is
        step("find_failed_creator")
        raise ArenaError(
            f"a process of region {wanted.engine_id!r} failed, and another instance's failure was in the way of its own: "
            "its own text says why"
        )
    if is_awaited(entry):
        step("find_other_instance")
        raise AttachError(
            f"region {wanted.engine_id!r} belongs to an instance with another nonce that has failed, and whose processes "
            "have not all passed their barrier yet: wait until they have, or end them, or use another engine_id"
        )


def failure_in(entry: Entry, wanted: Wanted) -> Failure | None:
    """The failure of a process of this instance, if there was one."""
    failure = entry.read().failure
    return failure if failure is not None and failure.nonce == wanted.nonce else None


def write_failure(entry: Entry, wanted: Wanted, error: BaseException) -> bool:
    """Says, under the lock, that this process failed, until the entry is closed; False: another one's failure stands."""
    first = entry.read().failure
    if first is not None and _stands(entry, first, wanted):
        return False
    text = f"{type(error).__name__}\n{text_of(error)}"
    failure = Failure(wanted.nonce, os.getpid(), process.own_start_time(), process.pid_namespace(), text)
    if not wanted.meets:
        entry.hold(failure.place)
    entry.write_failure(failure)
    return True


def _stands(entry: Entry, first: Failure, wanted: Wanted) -> bool:
    """The first one of an instance stands; that of another one too, unless the living members are of this one."""
    if first.nonce == wanted.nonce:
        return lives(entry, first)
    is_met = bool(entry.is_held(meeting_place(first.nonce)))
    return is_met and all(member.nonce != wanted.nonce for member in survivors(entry).values())


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
