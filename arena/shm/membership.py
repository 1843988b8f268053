"""Who takes part in a rendezvous: what a process comes with, what place it gets, and the steps between the two."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arena.shm.backing import Backing, MemfdBacking, ShmBacking, memory_path
from arena.shm.descriptors import Owned
from arena.shm.directory import directory, entry_name
from arena.shm.entry import Entry

STEPS = (
    "open_entry", "lock", "path_is_this_file", "path_is_another_file", "find_live_member", "find_other_instance",
    "find_failed_creator", "find_nobody", "create_memory", "memory_check_fails", "truncate_entry", "write_record",
    "attach_memory", "member_died_meanwhile", "append_record", "unlock", "populate", "population_fails", "pass_barrier",
    "find_populated", "find_unpopulated", "cleanup", "lock_to_leave", "erase_record", "close_memory", "unlink_entry",
    "close_entry",
)  # fmt: skip

NO_NONCE = bytes(16)

# Called after each step, with its name: a test can stop or kill the process there.
step_hook: Callable[[str], None] | None = None


def step(name: str) -> None:
    """Tells the hook that a step is done."""
    if step_hook is not None:
        step_hook(name)


@dataclass(frozen=True)
class Wanted:
    """What a process comes to the rendezvous with.

    Attributes:
        engine_id: the name of the region.
        nonce: 16 bytes that all processes of one instance share and no other instance has; zeros if nobody gave one.
        rank: the worker's rank, or None for a process that is not a worker.
        nbytes: size of the memory.
        row_bytes: size of a row of it.
        backing: ``"memfd"`` or ``"shm"``.
        huge_pages: ask for huge pages.
        meets: it is to meet the others at a barrier.
        check: called by the creator alone, before it makes the memory; raises if it is not there.
    """

    engine_id: str
    nonce: bytes
    rank: int | None
    nbytes: int
    row_bytes: int
    backing: str = "memfd"
    huge_pages: bool = False
    meets: bool = False
    check: Callable[[int], None] | None = None
    directory: Path = field(default_factory=directory)

    @property
    def path(self) -> Path:
        return self.directory / entry_name(self.engine_id)

    @property
    def leaves_failure(self) -> bool:
        """Whether there are others who wait for the outcome, and are told of a failure through the entry."""
        return self.meets or self.nonce != NO_NONCE

    def make_backing(self) -> Backing:
        if self.backing == "shm":
            return ShmBacking(memory_path(self.path))
        return MemfdBacking("arena-" + entry_name(self.engine_id))


@dataclass
class Member:
    """A process's place in a region; it lasts until `leave`."""

    wanted: Wanted
    backing: Backing
    entry: Entry
    offset: int
    memory_fd: Owned
    mapping: Any
    is_creator: bool
    pid: int = field(default_factory=os.getpid)


@dataclass
class Place:
    """What a process has in a rendezvous, from the moment on that it has it.

    Attributes:
        member: once it has come in.
        memory_fd: the memory, until there is a member to close it.
        entry: the entry, from coming to leaving: it holds what this process is to be known by.
        has_told: a failure of this process stands in the entry.
    """

    member: Member | None = None
    memory_fd: Owned | None = None
    entry: Entry | None = None
    has_told: bool = False

    def memory(self) -> Owned:
        """The memory's descriptor, once it has been made or opened."""
        if self.memory_fd is None:
            raise RuntimeError("a place in a region was taken before its memory was there: report this")
        return self.memory_fd


def nonce_bytes(nonce: str | bytes | None) -> bytes:
    """Sixteen bytes for any nonce; zeros for none."""
    if nonce is None:
        return NO_NONCE
    return hashlib.blake2b(nonce.encode() if isinstance(nonce, str) else nonce, digest_size=16).digest()
