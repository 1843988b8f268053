"""Everything runs out, in every combination, in use: the writer never waits for the arena, nothing is lost."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch

from arena import ArenaConfig, Handle, MessageQueue, ObjectCache
from arena.cache import CacheHandle
from arena.config import Backing
from arena.errors import ArenaError, CacheMiss
from arena.shm.capacity import SHM_DIRECTORY, file_system_free_bytes
from fuzz import belongings, messages, namespaces
from fuzz.session import Failure, Session, expect
from fuzz.workers import LIMIT_S, Pool, Side

MESSAGES = 40
FIRST = messages.KINDS.index("out of band")
SLOTS = {"slots": 2, "": 64}
EXTENTS = {"extents": 16 << 10, "": 2 << 20}
RINGS = {"ring": 1, "": 40}  # chunks; the budget of out-of-band bytes is the ring's size
LIMITS = ("", "descriptors", "memory")
HOLDS = {"held": 30, "": 2}  # messages that a reader keeps, with the objects that they name
CACHES = ("cache", "")  # objects in the same slots and extents
FILES = ("/dev/shm", "")  # a small one, which something else fills and empties meanwhile
COMBINATIONS = [*product(SLOTS, EXTENTS, RINGS, LIMITS, HOLDS, CACHES, FILES)]
DEV_SHM_BYTES = 4 << 20
UNCACHED = {"no_slot", "no_extent", "no_memory", "oversize"}
KEYS = 5


def exhaustion(session: Session) -> None:
    """Slots, extents, ring, out-of-band budget, /dev/shm, descriptors, memory run out under load, beside a cache too."""
    with Pool() as pool:
        why_not = _why_no_small_dev_shm(pool)
        if why_not:
            session.count(f"not tried, a small /dev/shm: {why_not}")
        for case in session.cases(len(COMBINATIONS)):
            combination = COMBINATIONS[case % len(COMBINATIONS)]
            if why_not and "/dev/shm" in combination:
                continue
            name = " + ".join(filter(None, combination)) or "nothing"
            try:
                for reason, n in _one(pool, session.rng(case), combination).items():
                    session.count(reason, n)
            except Failure as failure:
                raise Failure(f"out of {name}: {failure}") from None
        _refused(session, pool, ("descriptors", "memory") if why_not else ("descriptors", "memory", "/dev/shm"))


def _why_no_small_dev_shm(pool: Pool) -> str:
    worker = pool.take()
    try:
        return str(worker.run(_try_small_dev_shm))
    finally:
        pool.end(worker)


def _try_small_dev_shm(side: Side) -> str:
    try:
        namespaces.make_small_dev_shm(DEV_SHM_BYTES)
        namespaces.enter_mounts_of(os.getpid())
    except OSError as error:
        return str(error)
    return ""


def _one(pool: Pool, rng: Random, combination: tuple[str, ...]) -> dict[str, int]:
    slots, extents, ring, limit, held, cached, files = combination
    backing: Backing = "shm" if files else "memfd"
    arena = ArenaConfig(capacity_bytes=EXTENTS[extents], slots=SLOTS[slots], divert_bytes=4096, backing=backing)
    writer, reader = pool.take(), pool.take()
    leave = pool.end if files else pool.give_back  # their mounts are their own
    try:
        writer.start(_write, arena, RINGS[ring], limit, bool(cached), rng.randrange(2**32))
        _, handle = writer.next()
        reader.start(_read, handle, HOLDS[held], bool(cached))
        sent, reasons = writer.result()
        seen = reader.result()
        expect(seen == sent, f"sent {sent}, seen {seen}")
    except BaseException:
        pool.end(writer)
        pool.end(reader)
        raise
    leave(writer)
    leave(reader)
    found: dict[str, int] = reasons
    return found


def _write(
    side: Side, arena: ArenaConfig, chunks: int, limit: str, cached: bool, seed: int
) -> tuple[list[int], dict[str, int]]:
    """Sends; what may fail for want of memory in this process alone raises here, and is not sent by half."""
    rng, refused = Random(seed), 0
    puts: Counter[str] = Counter()
    sent: list[int] = []
    others = Others() if arena.backing == "shm" else None
    with MessageQueue(1, 1, None, messages.CHUNK_BYTES, chunks, arena=arena) as queue:
        side.say(queue.export_handle())
        queue.wait_until_ready(LIMIT_S)
        cache = queue.object_cache(reserve_bytes=0, reserve_slots=0) if cached else None
        sent.append(FIRST)
        queue.enqueue(messages.build(FIRST, queue), LIMIT_S)  # connects: libzmq aborts in an accept without one
        for number in range(MESSAGES):
            message = messages.build(number, queue)
            is_tight = limit and rng.random() < 0.5
            if others is not None:
                others.take_all() if rng.random() < 0.5 else others.give_back()
            try:
                with limited(limit if is_tight else ""):
                    if cache is not None:
                        message["object"] = _put(cache, number, puts)
                    queue.enqueue(message, LIMIT_S)
                sent.append(number)
            except (MemoryError, ArenaError):
                refused += 1
            except RuntimeError as error:  # torch's allocator
                if "alloc" not in str(error):
                    raise
                refused += 1
            del message
        if cache is not None:
            cache.clear()
        queue.enqueue({"number": -1}, LIMIT_S)
        now = queue.statistics()
        for _ in range(2000):
            if now.slots_free == now.slots_total:
                break
            side.heard(0.005)
            now = queue.statistics()
        expect(now.slots_free == now.slots_total and not now.bytes_in_use, f"not drained: {now}")
        total = {"sent": len(sent), "out of band": now.out_of_band_total, "refused": refused}
        if others is not None:
            expect(not os.listdir(SHM_DIRECTORY), f"names are left: {os.listdir(SHM_DIRECTORY)}")
        return sent, {**now.fallback_total, **total, **puts}


class Others:
    """Whoever else uses a small /dev/shm: takes what is free there, and gives it back."""

    def __init__(self) -> None:
        namespaces.make_small_dev_shm(DEV_SHM_BYTES)
        self._fd = os.open(SHM_DIRECTORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def take_all(self) -> None:
        free = file_system_free_bytes()
        if free:
            os.posix_fallocate(self._fd, os.fstat(self._fd).st_size, free)

    def give_back(self) -> None:
        os.ftruncate(self._fd, 0)


def _put(cache: ObjectCache, number: int, puts: Counter[str]) -> CacheHandle | None:
    """The handle of an object; where it finds no room it says why, and nobody waits."""
    found = cache.put(f"key {number % KEYS}", messages.large(number))
    if isinstance(found, CacheHandle):
        puts["objects"] += 1
        return found
    expect(found.reason in UNCACHED, f"an object was not cached for the reason {found.reason!r}")
    puts[f"uncached: {found.reason}"] += 1
    return None


def _read(side: Side, handle: Handle, n_held: int, cached: bool) -> list[int]:
    seen: list[int] = []
    held: list[Any] = []
    if handle.segment.backing == "shm":
        namespaces.enter_mounts_of(handle.segment.creator_pid)
    with MessageQueue.create_from_handle(handle, 0) as queue:
        queue.wait_until_ready(LIMIT_S)
        cache = queue.cache_reader() if cached else None
        while True:
            message: Any = queue.dequeue(LIMIT_S)
            if message["number"] < 0:
                return seen
            if cache is not None and message.get("object") is not None:
                try:
                    message["object"] = cache.get(message["object"])
                except CacheMiss:  # it has been evicted meanwhile
                    message["object"] = None
            held.append(message)
            for each in held:
                expect(not messages.wrong(each), messages.wrong(each))
                if each.get("object") is not None:
                    expect(torch.equal(each["object"], messages.large(each["number"])), f"object {each['number']} is wrong")
            seen.append(message["number"])
            del held[:-n_held], message


@contextmanager
def limited(what: str) -> Iterator[None]:
    """No descriptor, or hardly any address space, beyond what the process has."""
    if not what:
        yield
        return
    kind = resource.RLIMIT_NOFILE if what == "descriptors" else resource.RLIMIT_AS
    before = resource.getrlimit(kind)
    if what == "descriptors":
        most = os.dup(0)  # the lowest free one
        os.close(most)
    else:
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def _refused(session: Session, pool: Pool, what_there_is_not: tuple[str, ...]) -> None:
    """A queue that cannot be made says so by an error that can be caught, and leaves nothing."""
    for what in what_there_is_not:
        worker = pool.take()
        session.count(f"no {what}: {worker.run(_create, what)}")
        pool.end(worker)


def _create(side: Side, what: str) -> str:
    backing: Backing = "shm" if what == "/dev/shm" else "memfd"
    if backing == "shm":
        namespaces.make_small_dev_shm(DEV_SHM_BYTES)
    before = belongings.own()
    try:
        with limited(what if backing == "memfd" else ""):
            MessageQueue(1, 1, arena=ArenaConfig(backing=backing))
    except (ArenaError, OSError, MemoryError) as error:
        name = type(error).__name__
    else:
        raise Failure(f"a queue was made without {what}")
    left = belongings.more_than(before)
    expect(not left, f"a queue that was refused for want of {what} left {left}")
    expect(backing == "memfd" or not os.listdir(SHM_DIRECTORY), f"names are left: {os.listdir(SHM_DIRECTORY)}")
    return name
