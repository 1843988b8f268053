"""A queue's life in a process that runs out of something, or whose kernel lacks something.

``python limits_support.py CASE...`` runs it once per case, each in a forked child, and prints one JSON line for each: how
it ended, what became of each stage, and what was left.  A seccomp filter is the real thing: the kernel itself refuses.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import logging
import mmap
import os
import platform
import resource
import struct
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import zmq.utils.garbage  # what is imported when it is first used would need a descriptor then

from arena import ArenaConfig, MessageQueue, ObjectCache, SharedOffloadRegion
from arena.cache import CacheReader, Uncached
from arena.errors import ArenaError
from arena.shm.directory import remove_directory
from arena.shm.native import lib

LIMIT_S = 20.0
CHUNK_BYTES = 64 << 10

# ---- a kernel that refuses ------------------------------------------------------------------------------------------

_X86 = {
    "mmap": 9, "pwrite64": 18, "madvise": 28, "clone": 56, "fcntl": 72, "flock": 73, "ftruncate": 77, "fallocate": 285,
    "memfd_create": 319, "pidfd_open": 434, "clone3": 435, "mkdir": 83,
}  # fmt: skip
_ARM = {
    "mmap": 222, "pwrite64": 68, "madvise": 233, "clone": 220, "fcntl": 25, "flock": 32, "ftruncate": 46, "fallocate": 47,
    "memfd_create": 279, "pidfd_open": 434, "clone3": 435, "mkdir": 34,
}  # fmt: skip
SYSCALLS = _X86 if platform.machine() == "x86_64" else _ARM

MAP_SHARED, CLONE_THREAD = 0x01, 0x10000
F_ADD_SEALS = 1033
DONTFORK, WIPEONFORK, POPULATE_READ, POPULATE_WRITE = 10, 18, 22, 23
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LD_ABS, _JEQ, _AND, _RET = 0x20, 0x15, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class Rule(NamedTuple):
    """A system call that fails from now on, if an argument's masked bits are those."""

    name: str
    error: int
    argument: int = 0
    mask: int = 0
    value: int = 0


def refuse(*rules: Rule) -> None:
    """Has the kernel refuse these calls, in this process and its children, for good."""
    code = []
    for rule in rules:
        check = [(_LD_ABS, 0, 0, 16 + 8 * rule.argument), (_AND, 0, 0, rule.mask), (_JEQ, 0, 1, rule.value)]
        body = [*(check if rule.mask else []), (_RET, 0, 0, _ERRNO | rule.error)]
        code += [(_LD_ABS, 0, 0, 0), (_JEQ, 0, len(body), SYSCALLS[rule.name]), *body]
    code.append((_RET, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in code))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter here")


ALL = 0xFFFFFFFF
_SHARED = (3, MAP_SHARED, MAP_SHARED)
REFUSALS: dict[str, tuple[Rule, ...]] = {
    "no memfd": (Rule("memfd_create", errno.ENOSYS),),
    "memfd forbidden": (Rule("memfd_create", errno.EPERM),),
    "no pidfd": (Rule("pidfd_open", errno.ENOSYS),),
    "pidfd forbidden": (Rule("pidfd_open", errno.EPERM),),
    "no populate": tuple(Rule("madvise", errno.EINVAL, 2, ALL, advice) for advice in (POPULATE_READ, POPULATE_WRITE)),
    "populate out of memory": (Rule("madvise", errno.ENOMEM, 2, ALL, POPULATE_WRITE),),
    "populate a bad page": (Rule("madvise", errno.EFAULT, 2, ALL, POPULATE_WRITE),),
    "no dontfork": (Rule("madvise", errno.EINVAL, 2, ALL, DONTFORK),),
    "no wipeonfork": (Rule("madvise", errno.EINVAL, 2, ALL, WIPEONFORK),),
    "no seals": (Rule("fcntl", errno.EINVAL, 1, ALL, F_ADD_SEALS),),
    "size: no space": (Rule("ftruncate", errno.ENOSPC),),
    "size: no memory": (Rule("ftruncate", errno.ENOMEM),),
    "size: too large": (Rule("ftruncate", errno.EFBIG),),
    "allocate: no space": (Rule("fallocate", errno.ENOSPC),),
    "map: no memory": (Rule("mmap", errno.ENOMEM, *_SHARED),),
    "write: no space": (Rule("pwrite64", errno.ENOSPC),),
    "write: no memory": (Rule("pwrite64", errno.ENOMEM),),
    "directory: no space": (Rule("mkdir", errno.ENOSPC),),
    "no locks": (Rule("flock", errno.ENOLCK),),
    "locks unknown": (Rule("flock", errno.ENOSYS),),
    "no threads": (Rule("clone", errno.EAGAIN, 0, CLONE_THREAD, CLONE_THREAD), Rule("clone3", errno.EAGAIN)),
}  # fmt: skip

# ---- limits ---------------------------------------------------------------------------------------------------------


def _descriptors(n: int) -> None:
    """That many in all, of which the first three are taken."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, 1024))


def _address_space(kib: int) -> None:
    """So much beyond what the process has mapped."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (kib << 10),) * 2)


LIMITS: dict[str, Callable[[int], None]] = {
    "descriptors": _descriptors,
    "address space": _address_space,
    "locked memory": lambda n: resource.setrlimit(resource.RLIMIT_MEMLOCK, (n, n)),
    "file size": lambda n: resource.setrlimit(resource.RLIMIT_FSIZE, (n, n)),
}

# ---- lives ----------------------------------------------------------------------------------------------------------


class Life:
    """What became of each stage; the first that fails is the last."""

    def __init__(self, before_reader: Callable[[], None]) -> None:
        self.seen: dict[str, str] = {}
        self.before_reader = before_reader

    def stage(self, name: str, act: Callable[[], str | None]) -> bool:
        try:
            self.seen[name] = act() or "ok"
        except (ArenaError, TimeoutError) as error:
            self.seen[name] = f"{type(error).__name__}: {error}"
            return False
        return True


def queue(life: Life, **options: Any) -> None:
    """Makes a queue, joins it, sends a loan, through the arena and out of band, and shuts down."""
    ends: list[MessageQueue] = []
    arena = ArenaConfig(**{"capacity_bytes": 2 << 20, "slots": 4, "divert_bytes": 4096, **options})

    def write() -> None:
        ends.append(MessageQueue(1, 1, None, CHUNK_BYTES, 4, arena=arena))

    def read() -> None:
        life.before_reader()
        ends.append(MessageQueue.create_from_handle(ends[0].export_handle(), 0))

    def send(message: Any) -> str:
        ends[0].enqueue(message, LIMIT_S)
        same = bool((ends[1].dequeue(LIMIT_S) == message).all())
        return f"{'ok' if same else 'wrong bytes'}, {dict(ends[0].statistics().fallback_total)}"

    def lend() -> str:
        loan = ends[0].loan((20_000,), torch.uint8)
        return send(loan.fill_(7))

    if (
        life.stage("writer", write)
        and life.stage("reader", read)
        and life.stage("ready", lambda: ends[0].wait_until_ready(LIMIT_S))
    ):
        life.stage("loan", lend)
        life.stage("arena", lambda: send(torch.arange(50_000)))
        life.stage("out of band", lambda: send(torch.arange(400_000)))  # larger than the arena
    for end in reversed(ends):
        end.shutdown()


def cache(life: Life) -> None:
    """Makes a cache, attaches, puts, gets, and shuts down."""
    made: list[ObjectCache] = []
    readers: list[CacheReader] = []

    def write() -> None:
        made.append(ObjectCache(2 << 20, 1, max_objects=4))

    def read() -> None:
        life.before_reader()
        readers.append(ObjectCache.attach(made[0].export_handle(), 0, LIMIT_S))

    def put() -> str:
        value = torch.arange(50_000)
        handle = made[0].put("key", value)
        if isinstance(handle, Uncached):
            return f"uncached: {handle.reason}"
        got: Any = readers[0].get(handle)
        return "ok" if bool((got == value).all()) else "wrong bytes"

    if life.stage("writer", write) and life.stage("reader", read):
        life.stage("object", put)
    for end in [*readers, *made]:
        end.shutdown()


def region(life: Life, **options: Any) -> None:
    """Makes an offload region, joins it as another rank, and cleans up."""
    made: list[SharedOffloadRegion] = []
    engine_id = f"limits-{os.getpid()}"
    row_bytes = 4 * mmap.PAGESIZE

    def create() -> None:
        made.append(SharedOffloadRegion(engine_id, 8, 0, row_bytes, row_bytes // 2, **options))

    def join() -> None:
        life.before_reader()
        made.append(SharedOffloadRegion(engine_id, 8, 1, row_bytes, row_bytes // 2, **options))

    def use() -> str:
        made[0].create_next_worker_view(100)[3] = 7
        return "ok" if int(made[1].base_tensor[3 * row_bytes]) == 7 else "wrong bytes"

    if life.stage("writer", create) and life.stage("reader", join):
        life.stage("bytes", use)
    for each in reversed(made):
        each.cleanup()


LIVES: dict[str, Callable[[Life], None]] = {
    "memfd": queue,
    "shm": partial(queue, backing="shm"),
    "eager": partial(queue, prefault="eager"),
    "background": partial(queue, prefault="background"),
    "cache": cache,
    "region": region,
    "region shm": partial(region, backing="shm"),
}


def _case(what: str, amount: int, kind: str) -> dict[str, Any]:
    name = what.removeprefix("reader: ")
    impose = partial(refuse, *REFUSALS[name]) if name in REFUSALS else partial(LIMITS[name], amount)
    before = len(os.listdir("/proc/self/fd"))
    life = Life(impose if name != what else lambda: None)
    if name == what:
        impose()
    LIVES[kind](life)
    gc.collect()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    descriptors = len(os.listdir("/proc/self/fd")) - before
    if zmq.utils.garbage.gc.is_alive():
        descriptors -= 7  # pyzmq's own servant, which stays
    return {
        "stages": life.seen,
        "kept": {"descriptors": descriptors, "mappings": lib.arena_maps_live(), "grants": lib.arena_grants_live()},
    }


def _names(pid: int) -> list[str]:
    """What a process has left."""
    places = Path(tempfile.gettempdir()), Path("/dev/shm")
    patterns = f"arena-{pid}-*", f"arena-{os.geteuid()}/*-limits-{pid}"
    return sorted(str(path) for place in places for pattern in patterns for path in place.glob(pattern))


def run(what: str, amount: int, backing: str) -> dict[str, Any]:
    """One case in a child: its answer, how it ended, and which files it left."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(theirs, 0)  # where standard input was: within every limit
        os.closerange(3, 256)
        try:
            seen = _case(what, amount, backing)
        except BaseException as error:
            seen = {"raised": repr(error)}
        os.write(0, json.dumps(seen).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = _names(pid)
    for path in (Path(each) for each in left if f"arena-{os.geteuid()}/" in each):  # not to stay in the machine's /dev/shm
        path.unlink()
        remove_directory(path.parent)
    return {
        "case": [what, amount, backing],
        "exit": status,
        "left": left,
        **(json.loads(answer) if answer else {}),
    }


def main(cases: list[tuple[str, int, str]]) -> None:
    """Each case, one JSON line."""
    torch.set_num_threads(1)  # OpenMP ends a process that has no more threads
    logging.getLogger("arena").setLevel(logging.CRITICAL)
    for case in cases:
        print(json.dumps(run(*case)), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
