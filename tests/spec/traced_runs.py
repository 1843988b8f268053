"""Runs queues with real reader processes, at random, for the trace tests: `python traced_runs.py SEED RUNS STEPS EVENTS`.

Messages with and without tensors, aborted ones, full slots and a full ring, loans; a cache in the same slots, with objects
that replace others, are evicted, or take a loan over; readers that keep, drop, are killed, leave, and come anew. Every
process logs what it does to ARENA_TRACE; a run takes STEPS steps, and as many again until its logs have EVENTS events.
"""

from __future__ import annotations

import math
import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from support import Reader, Side, Unpicklable

from arena import ArenaConfig, CacheHandle, MessageQueue
from arena.errors import CacheMiss, CapacityError
from arena.shm.trace import SUFFIX, VARIABLE
from arena.shm.tracelog import read_log

N_READERS = 3
ARENA = ArenaConfig(capacity_bytes=1 << 20, slots=9, divert_bytes=4096)
FOR_MESSAGES = 5  # of the slots
KEYS = ("a", "b", "c", "d", "e", "f")


def take(side: Side, keep: bool) -> bool:
    """Takes a message if there is one, and keeps it or lets it go."""
    try:
        message = side.queue.dequeue(timeout=0.05)
    except TimeoutError:
        return False
    if keep:
        side.kept[str(len(side.kept))] = message
    return True


def fetch(side: Side, handles: list[CacheHandle], keep: bool) -> int:
    """Gets objects, of which some may be gone, and keeps them or lets them go."""
    if not hasattr(side, "cache"):
        side.cache = side.queue.cache_reader()  # type: ignore[attr-defined]
    found = 0
    for handle in handles:
        with suppress(CacheMiss):
            value = side.cache.get(handle)  # type: ignore[attr-defined]
            found += 1
            if keep:
                side.kept[str(len(side.kept))] = value
    return found


def let_go(side: Side) -> None:
    """Lets half of what is kept go."""
    for name in list(side.kept)[::2]:
        del side.kept[name]


def leave(side: Side) -> None:
    side.queue.shutdown()


def tensors() -> list[Any]:
    return [torch.rand(random.choice((100, 1500, 5000, 9000))) for _ in range(random.randrange(4))]


class Run:
    """One queue and its readers."""

    def __init__(self, writer: MessageQueue) -> None:
        self.writer = writer
        self.readers = [Reader(writer.export_handle(), rank) for rank in range(N_READERS)]
        writer.wait_until_ready(60)
        self.loans: list[torch.Tensor] = []
        self.cache = writer.object_cache(reserve_slots=FOR_MESSAGES)
        self.handles: list[CacheHandle] = []  # the last ones, of which some are stale
        self.mine: list[object] = []  # objects that the writer has got

    def enqueue(self) -> None:
        message = tensors()
        if random.random() < 0.15:
            message.append(Unpicklable())
        if self.loans and random.random() < 0.5:
            message.append(self.loans.pop())
        with suppress(TimeoutError, ValueError):
            self.writer.enqueue(message, timeout=0.02)

    def loan(self) -> None:
        if len(self.loans) < 2:
            with suppress(CapacityError):
                self.loans.append(self.writer.loan((1200,), torch.float32))

    def put(self) -> None:
        value: list[Any] = [torch.rand(random.choice((100, 1500, 5000)))]
        if self.loans and random.random() < 0.3:
            value.append(self.loans.pop())
        stored = self.cache.put(random.choice(KEYS), value)
        if isinstance(stored, CacheHandle):
            self.handles = [*self.handles[-7:], stored]

    def remove(self) -> None:
        self.cache.remove(random.choice(KEYS))

    def fetch(self) -> None:
        for reader in self.readers:
            if self.handles and random.random() < 0.6:
                chosen = random.sample(self.handles, min(2, len(self.handles)))
                reader.run(fetch, chosen, random.random() < 0.4)
        if self.handles and random.random() < 0.3:
            with suppress(CacheMiss):
                self.mine = [*self.mine[-1:], self.cache.get(random.choice(self.handles))]

    def dequeue(self) -> None:
        busy = [reader for reader in self.readers if random.random() < 0.8]
        for reader in busy:
            reader.start(take, random.random() < 0.5)
        for reader in busy:
            reader.result()

    def let_go(self) -> None:
        random.choice(self.readers).run(let_go)

    def kill(self) -> None:
        """In the middle of taking a message, often."""
        number = random.randrange(N_READERS)
        if random.random() < 0.5:
            self.readers[number].start(take, True)
        elif self.handles:
            self.readers[number].start(fetch, self.handles, True)
        self.replace(number)

    def leave(self) -> None:
        number = random.randrange(N_READERS)
        self.readers[number].run(leave)
        self.replace(number)

    def replace(self, number: int) -> None:
        """A new process takes the rank, once the writer has looked: nobody looks while this process waits for an answer."""
        self.readers[number].end()
        self.writer.reap()
        self.readers[number] = Reader(self.writer.export_handle(), number)

    def end(self) -> None:
        for reader in self.readers:
            reader.end()


def explained(writer: MessageQueue) -> int:
    """Events of a run so far that a model has a step for: where nobody lets go for long, many are refusals."""
    from spec.trace_messages import MessageReplay  # not above: each reader's process imports this module
    from spec.trace_objects import ObjectReplay

    segment = writer._end.segment.handle.segment_id.hex()
    logs = [read_log(path) for path in Path(os.environ[VARIABLE]).glob(f"{segment}.*{SUFFIX}")]
    replays = (MessageReplay(logs), ObjectReplay(logs))
    finished = (event for log in logs for event in log.events if math.isfinite(event.after))
    return sum(any(replay.matters(event) for replay in replays) for event in finished)


def run(steps: int, events: int) -> None:
    with MessageQueue(N_READERS, N_READERS, max_chunk_bytes=16 << 10, max_chunks=2, arena=ARENA) as writer:
        started = Run(writer)
        often = ["enqueue"] * 10 + ["dequeue"] * 8 + ["put"] * 5 + ["fetch"] * 4
        names = [*often, *["let_go"] * 4, "loan", "loan", "remove", "kill"]
        while explained(writer) < events:
            for _ in range(steps):
                getattr(started, random.choice(names))()
        started.leave()
        for _ in range(6):
            started.enqueue()
            started.dequeue()
            started.put()
            started.fetch()
        started.loans.clear()
        started.mine.clear()
        started.end()


if __name__ == "__main__":
    seed, runs, steps, events = map(int, sys.argv[1:])
    random.seed(seed)
    torch.manual_seed(seed)
    for _ in range(runs):
        run(steps, events)
