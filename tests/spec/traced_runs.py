"""Runs queues with real reader processes, at random, for the trace tests: `python traced_runs.py SEED RUNS STEPS`.

Messages with and without tensors, aborted ones, full slots and a full ring, loans; readers that keep, drop, are killed,
leave, and come anew. With ARENA_TRACE set every process logs what it does.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from support import Reader, Side

from arena import ArenaConfig, MessageQueue
from arena.errors import CapacityError

N_READERS = 3
ARENA = ArenaConfig(capacity_bytes=1 << 20, slots=5, divert_bytes=4096)


class Unpicklable:
    """Fails when everything before it in the message has been placed."""

    def __reduce__(self) -> Any:
        raise ValueError("not this one")


def take(side: Side, keep: bool) -> bool:
    """Takes a message if there is one, and keeps it or lets it go."""
    try:
        message = side.queue.dequeue(timeout=0.05)
    except TimeoutError:
        return False
    if keep:
        side.kept[str(len(side.kept))] = message
    return True


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
        if random.random() < 0.7:
            self.readers[number].start(take, True)
        self.readers[number].end()
        self.readers[number] = Reader(self.writer.export_handle(), number)

    def leave(self) -> None:
        number = random.randrange(N_READERS)
        self.readers[number].run(leave)
        self.readers[number].end()
        self.readers[number] = Reader(self.writer.export_handle(), number)

    def end(self) -> None:
        for reader in self.readers:
            reader.end()


def run(steps: int) -> None:
    with MessageQueue(N_READERS, N_READERS, max_chunk_bytes=16 << 10, max_chunks=2, arena=ARENA) as writer:
        started = Run(writer)
        names = ["enqueue"] * 12 + ["dequeue"] * 10 + ["let_go"] * 4 + ["loan", "kill"]
        for _ in range(steps):
            getattr(started, random.choice(names))()
        started.leave()
        for _ in range(6):
            started.enqueue()
            started.dequeue()
        started.loans.clear()
        started.end()


if __name__ == "__main__":
    seed, runs, steps = map(int, sys.argv[1:])
    random.seed(seed)
    torch.manual_seed(seed)
    for _ in range(runs):
        run(steps)
