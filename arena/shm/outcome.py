"""How the construction of a region went: said in the entry by one process, read by the others."""

from __future__ import annotations

import os
from dataclasses import replace

from arena import errors
from arena.errors import ArenaError
from arena.shm import process
from arena.shm.entry import Entry, Status
from arena.shm.membership import Member, Wanted, step


def populate(member: Member) -> None:
    """The creator says that it has populated the memory."""
    member.entry.lock()
    try:
        member.entry.write_status(replace(status_of(member.entry, member.wanted), is_populated=True))
    finally:
        member.entry.unlock()
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
    """After the barrier: raises if any member failed or, where it has to be, the memory was not populated."""
    status = status_of(member.entry, member.wanted)
    if status.failure:
        step("find_unpopulated")
        raise error_of(member.wanted, status)
    if must_be_populated and not status.is_populated:
        step("find_unpopulated")
        raise ArenaError(f"the creator of region {member.wanted.engine_id!r} died before it had populated it")
    step("find_populated")


def find_failed_creator(wanted: Wanted, entry: Entry) -> None:
    """Raises the error of a process of this instance that failed for all, and still lives; that of a dead one is past.

    A new attempt of the process that failed is no reason to fail either.
    """
    status = status_of(entry, wanted)
    if not status.failure:
        return
    if status.pid == os.getpid() or process.start_time(status.pid) != status.start:
        entry.write_status(replace(status, failure=""))
        return
    step("find_failed_creator")
    raise error_of(wanted, status)


def status_of(entry: Entry, wanted: Wanted) -> Status:
    """What the entry says of this instance."""
    status = entry.read().status
    return status if status is not None and status.nonce == wanted.nonce else Status(wanted.nonce)


def write_failure(entry: Entry, wanted: Wanted, error: BaseException) -> None:
    """Says, under the lock, that this process failed; the first failure stands."""
    status = status_of(entry, wanted)
    if not status.failure:
        failure = f"{type(error).__name__}\n{error}"
        entry.write_status(replace(status, failure=failure, pid=os.getpid(), start=process.own_start_time()))


def error_of(wanted: Wanted, status: Status) -> ArenaError:
    """The failure that another process left, as an error of the same type."""
    name, _, text = status.failure.partition("\n")
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ArenaError)):
        kind, text = ArenaError, f"{name}: {text}"
    return kind(f"process {status.pid} of region {wanted.engine_id!r} failed: {text}")
