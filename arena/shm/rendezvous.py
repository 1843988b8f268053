"""How processes that know only a name come to share one memory, and never two.

All of them open one small *entry file*; its lock is the mutex.  Under the lock a process reads who is alive in which
memory.  It attaches through a live member, refuses if the live members belong to another instance, or creates the
memory if nobody is alive; then it adds its own record and unlocks.  The last member that leaves removes the name.

The steps are those of the model in ``spec/models/rendezvous.py``, under the same names.  What was tried there and
breaks: a lock without the look at the path's inode, only the creator as the sign of life, a list that is rewritten in
place, an unlink without the lock or before the memory is closed, and every form of ``O_EXCL``, ``link`` and ``rename``.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from arena.errors import ArenaError, AttachError, CapacityError
from arena.shm import process
from arena.shm.backing import Backing, Records, check_capacity, memory_path, remove_memory, survivors
from arena.shm.capacity import HUGE_PAGE
from arena.shm.descriptors import close_kept
from arena.shm.directory import check_directory, make_directory, remove_directory
from arena.shm.entry import NO_RANK, Entry, Record, free_offset, meeting_place
from arena.shm.layout import align
from arena.shm.membership import Member, Place, Wanted, step
from arena.shm.native import ffi, lib
from arena.shm.outcome import failure_in, find_failed_creator, forget_past_failure, is_awaited, lives, write_failure
from arena.shm.shortage import typed

log = logging.getLogger("arena.shm")

RETRIES_MAX = 1000  # each is one more entry that lost its name under our eyes


# ---- to come in


@typed("a place in the region")
def join(wanted: Wanted, place: Place) -> Member:
    """Comes into the region, as its creator if nobody else is alive.  Waits for nobody but short holders of the lock.

    Args:
        wanted: what to come for.
        place: what is filled in with what this process then has.

    Raises:
        AttachError: a live instance has the name, the rank is taken, the sizes differ, or the memory is out of reach.
        CapacityError: the memory is not there.
        ArenaError: another process of this instance failed to create it: its error.
        TimeoutError: the entry stays locked; the text names the holder.
    """
    entry = lock_entry(wanted, place)
    try:
        backing = wanted.make_backing()
        member = _attach(wanted, backing, entry, place) or _create(wanted, backing, entry, place)
        unlock(entry)
        return member
    except BaseException:
        if place.member is None:
            close_new_memory(place)
        entry.unlock()  # whoever has the place leaves it, and takes the lock for that
        raise


def lock_entry(wanted: Wanted, place: Place) -> Entry:
    """The entry that stands at the path, locked: from here on nobody else edits, replaces or unlinks it."""
    if place.entry is not None:  # from a moment ago: it holds the meeting's place
        lock(place.entry)
        if path_is_this_file(place.entry):
            return place.entry
        path_is_another_file(place.entry)
    for _ in range(RETRIES_MAX):
        make_directory(wanted.directory)
        try:
            entry = open_entry(wanted.path)
        except FileNotFoundError:  # the last member of another region has removed the empty directory
            continue
        try:
            lock(entry)
            check_directory(wanted.directory)
            if path_is_this_file(entry):
                if wanted.meets:
                    entry.hold(meeting_place(wanted.nonce))
                place.entry = entry
                return entry
        except BaseException:
            entry.close()
            raise
        path_is_another_file(entry)
    raise AttachError(f"{wanted.path} was replaced {RETRIES_MAX} times while it was being opened: who does that?")


def open_entry(path: Path, *, create: bool = True) -> Entry:
    """Opens the entry, making it if it is not there."""
    entry = Entry.open(path, create=create)
    try:
        step("open_entry")
    except BaseException:
        entry.close()
        raise
    return entry


def lock(entry: Entry) -> None:
    """Takes the lock of the open file, wherever its name is now."""
    entry.lock()
    step("lock")


def path_is_this_file(entry: Entry) -> bool:
    """Whether the path still leads to the locked file."""
    if not entry.is_at_path():
        return False
    step("path_is_this_file")
    return True


def path_is_another_file(entry: Entry) -> None:
    """The locked file has lost its name: its last member left.  Start again."""
    entry.close()
    step("path_is_another_file")


def _attach(wanted: Wanted, backing: Backing, entry: Entry, place: Place) -> Member | None:
    """Comes in through a live member; None if there is none."""
    for _ in range(RETRIES_MAX):
        alive = survivors(entry)
        if not alive:
            find_failed_creator(wanted, entry)
            step("find_nobody")
            return None
        find_other_instance(wanted, alive)
        step("find_live_member")
        if attach_memory(wanted, backing, next(iter(alive.values())), place):
            return append_record(wanted, backing, entry, place, alive)
        step("member_died_meanwhile")
    raise AttachError(f"{RETRIES_MAX} members of {wanted.path} were alive and had no memory: report this")


def find_other_instance(wanted: Wanted, alive: Records) -> None:
    """Raises if the live members are another instance, or have other memory or sizes, or one of them has this rank."""
    for member in alive.values():
        if member.nonce != wanted.nonce:
            step("find_other_instance")
            raise AttachError(
                f"region {wanted.engine_id!r} belongs to a live instance with another nonce (process {member.pid}, "
                f"rank {member.rank_text}): end it, or use another engine_id"
            )
    for member in alive.values():
        if member.backing != wanted.backing:
            raise AttachError(
                f"region {wanted.engine_id!r} has backing={member.backing!r} (process {member.pid}), and this process "
                f"wants backing={wanted.backing!r}: all must pass the same"
            )
        if wanted.rank is not None and member.rank == wanted.rank:
            raise AttachError(
                f"rank {wanted.rank} of region {wanted.engine_id!r} is held by process {member.pid}, which is alive: "
                "end it, or give every instance its own nonce"
            )
        if (member.size, member.row_bytes) != (wanted.nbytes, wanted.row_bytes):
            raise AttachError(
                f"region {wanted.engine_id!r} has {member.size} bytes in rows of {member.row_bytes} (process "
                f"{member.pid}), and this process wants {wanted.nbytes} in rows of {wanted.row_bytes}: all must pass "
                "the same num_chunks and kv_bytes_per_chunk"
            )


def attach_memory(wanted: Wanted, backing: Backing, member: Record, place: Place) -> bool:
    """Opens the memory through a live member; False if it has died meanwhile."""
    place.memory_fd = backing.open(member)
    if place.memory_fd is None:
        return False
    status = os.fstat(place.memory_fd)
    if status.st_size not in (wanted.nbytes, align(wanted.nbytes, HUGE_PAGE)):
        raise AttachError(f"the memory of process {member.pid} has {status.st_size} bytes, not {member.size}")
    step("attach_memory")
    return True


def append_record(wanted: Wanted, backing: Backing, entry: Entry, place: Place, alive: Records) -> Member:
    """Maps the memory and records this process: every member is a sign of life, not only the creator.

    A dead member's record makes room for it: the entry grows with the members, not with the deaths.
    """
    member = _become_member(wanted, backing, entry, place, alive)
    step("append_record")
    return member


def _create(wanted: Wanted, backing: Backing, entry: Entry, place: Place) -> Member:
    try:
        create_memory(wanted, backing, place)
        truncate_entry(entry)
        return write_record(wanted, backing, entry, place)
    except BaseException as error:
        if place.member is None:
            close_new_memory(place)
            remove_memory(memory_path(wanted.path))
            memory_check_fails(wanted, entry, error, place)
        raise


def close_new_memory(place: Place) -> None:
    """Closes, once, the memory of a process that did not become a member."""
    fd, place.memory_fd = place.memory_fd, None
    if fd is not None:
        close_kept(fd)


def create_memory(wanted: Wanted, backing: Backing, place: Place) -> None:
    """Makes the memory, if all checks say that it is there."""
    remove_memory(memory_path(wanted.path))  # a dead instance's: nobody has it, and its bytes count as used
    check_capacity(wanted.nbytes, wanted.backing, huge_pages=wanted.huge_pages)
    if wanted.check is not None:
        wanted.check(wanted.nbytes)
    place.memory_fd = backing.create(wanted.nbytes, huge_pages=wanted.huge_pages)
    step("create_memory")


def memory_check_fails(wanted: Wanted, entry: Entry, error: BaseException, place: Place) -> None:
    """Leaves the failure for the others to read; or, if nobody is going to, nothing at all."""
    try:
        if wanted.leaves_failure:
            place.has_told = write_failure(entry, wanted, error)
        else:
            entry.unlink()
            remove_directory(wanted.directory)
    except (OSError, ArenaError) as second:  # the first error is the one that counts
        log.warning("region %r failed, and the others cannot be told: %s", wanted.engine_id, second)
    step("memory_check_fails")


def truncate_entry(entry: Entry) -> None:
    """Empties the entry in place, whatever was left in it: no unlink, no rename."""
    entry.truncate()
    step("truncate_entry")


def write_record(wanted: Wanted, backing: Backing, entry: Entry, place: Place) -> Member:
    """Maps the new memory and writes the first record."""
    member = _become_member(wanted, backing, entry, place, alive={})
    step("write_record")
    return member


def unlock(entry: Entry) -> None:
    """Drops the lock; the entry stays open for life."""
    entry.unlock()
    step("unlock")


def _become_member(wanted: Wanted, backing: Backing, entry: Entry, place: Place, alive: Records) -> Member:
    fd = place.memory()
    mapping = map_memory(fd)
    try:
        forget_past_failure(entry)
        offset = free_offset(alive)
        entry.hold(offset)
        entry.write_record(offset, _own_record(wanted, fd))
        place.member = Member(wanted, backing, entry, offset, fd, mapping, not alive)
    except BaseException:
        if place.member is None:
            lib.arena_map_release(mapping)
        raise
    return place.member


def map_memory(fd: int) -> Any:
    """Maps all of a file, as data without a control part; owned by C, and not inherited by forked children."""
    nbytes = os.fstat(fd).st_size
    error = ffi.new("int *")
    mapping = lib.arena_map(fd, ffi.new("arena_geometry *", {"data_bytes": nbytes}), lib.ARENA_ACCESS_SHARED, error)
    if mapping == ffi.NULL:
        raise CapacityError(
            f"a region of {nbytes} bytes cannot be mapped: {os.strerror(error[0])} (errno {error[0]}); use fewer "
            "chunks, or raise the limit (ulimit -v)"
        )
    return mapping


def _own_record(wanted: Wanted, fd: int) -> Record:
    status = os.fstat(fd)
    return Record(
        pid=os.getpid(),
        start=process.own_start_time(),
        namespace=process.pid_namespace(),
        rank=NO_RANK if wanted.rank is None else wanted.rank,
        fd=fd,
        device=status.st_dev,
        inode=status.st_ino,
        size=wanted.nbytes,
        row_bytes=wanted.row_bytes,
        nonce=wanted.nonce,
        backing=wanted.backing,
    )


# ---- to leave


def leave(member: Member) -> None:
    """Gives the place up; the last one to leave removes the name.  The caller has let go of views and mapping.

    Idempotent: it goes on where a signal handler's exception has cut it short.
    """
    if member.pid != os.getpid():
        return  # a forked child has neither lock nor memory
    if not member.entry.is_open:  # all is done, but perhaps for this
        member.backing.close(member.memory_fd)
        return
    try:
        try:
            lock_to_leave(member)
            erase_record(member)
        finally:
            close_memory(member)
        if member.entry.is_at_path() and not survivors(member.entry) and not is_awaited(member.entry):
            unlink_entry(member)
    except (OSError, ArenaError) as error:
        log.warning("the entry %s stays until the next start takes it over: %s", member.entry.path, error)
    finally:
        close_entry(member.entry)


def lock_to_leave(member: Member) -> None:
    """Takes the lock once more."""
    member.entry.lock()
    step("lock_to_leave")


def erase_record(member: Member) -> None:
    """Takes this process out of the list."""
    member.entry.erase_record(member.offset)
    step("erase_record")


def close_memory(member: Member) -> None:
    """Closes the memory: before the unlink, or a successor could create a second one while this one is held."""
    member.backing.close(member.memory_fd)
    step("close_memory")


def unlink_entry(member: Member) -> None:
    """The last member removes the names, under the lock."""
    remove_memory(memory_path(member.wanted.path))
    member.entry.unlink()
    remove_directory(member.wanted.directory)
    step("unlink_entry")


def close_entry(entry: Entry) -> None:
    """Closes the entry, which unlocks it."""
    entry.close()
    step("close_entry")


def report_failure(wanted: Wanted, error: BaseException, place: Place) -> None:
    """Leaves the error of a process that did not become a member, so that all who meet at the barrier fail with it."""
    if place.has_told or _is_failure_known(wanted, place):
        return
    entry = lock_entry(wanted, place)
    try:
        place.has_told = write_failure(entry, wanted, error)
    finally:
        entry.unlock()


def _is_failure_known(wanted: Wanted, place: Place) -> bool:
    if place.entry is None or not place.entry.is_at_path():
        return False
    failure = failure_in(place.entry, wanted)
    return failure is not None and lives(place.entry, failure)
