"""How long a reader's death holds the writer up."""

from __future__ import annotations

import os
import select
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from arena import Handle, MessageQueue
from fuzz import messages
from fuzz.session import Session, expect
from fuzz.workers import LIMIT_S, Pool, Side, Worker, wait_until

FILLER = bytes(3 * messages.CHUNK_BYTES // 4)


def recovery(session: Session) -> None:
    """The time from a reader's death to the writer's next unstalled enqueue: median and maximum, in milliseconds."""
    blocked_s: list[float] = []
    free_s: list[float] = []
    with Pool() as pool, MessageQueue(2, 2, None, messages.CHUNK_BYTES, messages.CHUNKS, arena=messages.ARENA) as writer:
        alive = pool.take()
        alive.start(_follow, writer.export_handle(), 0)
        for case in session.cases(100):
            victim = pool.take()
            victim.start(_follow, writer.export_handle(), 1)
            writer.wait_until_ready(LIMIT_S)
            writer.enqueue(("go", case), LIMIT_S)
            victim.next()
            pool.fork_ahead()
            if case % 2:
                blocked_s.append(_while_full(writer, victim))
            else:
                free_s.append(_while_free(writer, victim))
            pool.end(victim)
            session.count("deaths")
        for what, times in ("blocked by the dead", blocked_s), ("not blocked", free_s):
            if times:
                session.count(f"{what}: median us", round(1e6 * statistics.median(times)))
                session.count(f"{what}: maximum us", round(1e6 * max(times)))
        writer.enqueue(("end", 0), LIMIT_S)
        alive.result()
        expect(writer.statistics().deaths_total == len(blocked_s) + len(free_s), "not every death was seen")


def _while_full(writer: MessageQueue, victim: Worker) -> float:
    """The reader is stopped with the ring full, and dies: from its death to the end of the enqueue that had no room.

    A death is when the pidfd says so: the kernel takes a while from the SIGKILL to there, to tear a large process down.
    """
    victim.signal(signal.SIGSTOP)
    wait_until(victim.is_stopped, "a SIGSTOP")
    try:
        while True:
            writer.enqueue(("filler", FILLER), 0.05)
    except TimeoutError:
        pass
    with ThreadPoolExecutor(1) as threads:
        died = threads.submit(_death_of, os.pidfd_open(victim.pid))
        victim.signal(signal.SIGKILL)
        writer.enqueue(("filler", FILLER), LIMIT_S)
        return time.perf_counter() - died.result()


def _death_of(pidfd: int) -> float:
    """When it was."""
    try:
        select.select([pidfd], [], [])
        return time.perf_counter()
    finally:
        os.close(pidfd)


def _while_free(writer: MessageQueue, victim: Worker) -> float:
    before = writer.statistics().deaths_total
    victim.signal(signal.SIGKILL)
    started = time.perf_counter()
    writer.enqueue(("small", 0), LIMIT_S)
    elapsed = time.perf_counter() - started
    wait_until(lambda: writer.reap() + writer.statistics().deaths_total > before, "a death to be seen")
    return elapsed


def _follow(side: Side, handle: Handle, rank: int) -> None:
    with MessageQueue.create_from_handle(handle, rank) as queue:
        queue.wait_until_ready(LIMIT_S)
        while True:
            message: Any = queue.dequeue(LIMIT_S)
            word = message[0]
            if word == "go" and rank:
                side.say("went")
            if word == "end":
                return
