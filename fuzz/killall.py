"""SIGKILL of all processes of a queue at once, somewhere in its life: nothing may be left anywhere."""

from __future__ import annotations

import os
import signal
import time

from arena import ArenaConfig, Handle, MessageQueue, ObjectCache
from fuzz import belongings, messages
from fuzz.session import Session, expect
from fuzz.workers import Ended, Pool, Side, Worker

READERS = 2
LARGE = ArenaConfig(capacity_bytes=64 << 20, slots=16, divert_bytes=4096, prefault="eager")


def killall(session: Session) -> None:
    """SIGKILL of writer and readers at once: no file in /dev/shm or a temporary directory, no memory."""
    before = belongings.shared_memory_bytes()
    largest = 0
    with Pool() as pool:
        for case in session.cases(100):
            rng = session.rng(case)
            group = [pool.take() for _ in range(1 + READERS)]
            pids = [worker.pid for worker in group]
            handle = _started(group)
            largest = max(largest, belongings.shared_memory_bytes() - before)
            time.sleep(rng.random() * 0.02)
            for worker in rng.sample(group, len(group)):
                worker.signal(signal.SIGKILL)
            for worker in group:
                pool.end(worker)
            left = belongings.files_of(pids)
            expect(not left, f"files left: {left}")
            expect(not os.path.exists(handle.segment.path), f"{handle.segment.path} still leads somewhere")
            session.count("processes killed", len(group))
    grown = belongings.shared_memory_bytes() - before
    session.count("MiB of one group", largest >> 20)
    session.count("MiB of shared memory more than before", grown >> 20)
    expect(grown < LARGE.capacity_bytes * 2, f"{grown >> 20} MiB of shared memory more than before, of the whole machine")


def _started(group: list[Worker]) -> Handle:
    writer, *readers = group
    writer.start(_write_for_ever)
    _, handle = writer.next()
    for rank, reader in enumerate(readers):
        reader.start(_read_for_ever, handle, rank)
    for worker in group:
        kind, what = worker.next()
        if kind != "said":
            raise Ended(worker.pid, what)
    found: Handle = handle
    return found


def _write_for_ever(side: Side) -> None:
    with MessageQueue(READERS, READERS, None, messages.CHUNK_BYTES, messages.CHUNKS, arena=LARGE) as queue:
        side.say(queue.export_handle())
        queue.wait_until_ready()
        cache = ObjectCache(1 << 20, n_readers=0)
        side.say("ready")
        number = 0
        while True:
            queue.enqueue(messages.build(number, queue))
            cache.put(f"key {number % 10}", messages.large(number))
            number += 1


def _read_for_ever(side: Side, handle: Handle, rank: int) -> None:
    with MessageQueue.create_from_handle(handle, rank) as queue:
        queue.wait_until_ready()
        side.say("ready")
        while True:
            queue.dequeue()
