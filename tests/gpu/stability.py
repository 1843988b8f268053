"""Does memory change after the death of the process whose GPU was writing to it?

One reader queues copies of changing values from its GPU into a leased tensor, for far longer than it will live.
Another reader holds the same tensor and looks on: that it changes while the first lives, and whether it does
afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

import torch
from gpu_support import GPU, MIB, WAIT_S, answer, hold_up, readers, wait_for_death

from arena import ArenaConfig, MessageQueue

SIZE = 64 * MIB
COPIES = 20_000
LOOK_S = 2.0
SAMPLE_STEP = 4096
"""One byte per page is looked at."""


def change_after_death() -> dict[str, float]:
    """Kill the first reader in the middle of its copies; what the second one sees from then on."""
    with readers([overwrite_for_ever, watch], ArenaConfig(capacity_bytes=4 * SIZE)) as (queue, children):
        (victim, victim_pipe), (_, watch_pipe) = children
        queue.enqueue(torch.zeros(SIZE, dtype=torch.uint8), WAIT_S)
        watch_pipe.send(victim.pid)
        if answer(victim_pipe) != "queued" or answer(watch_pipe) != "changing":
            raise RuntimeError("the memory did not change while the reader was alive: nothing can be concluded")
        os.kill(victim.pid, signal.SIGKILL)
        seen: dict[str, float] = answer(watch_pipe)
        return seen


def overwrite_for_ever(queue: MessageQueue, pipe: Connection) -> None:
    """The reader that will be killed."""
    target = queue.dequeue(WAIT_S)
    if not target.is_pinned():
        raise RuntimeError("the tensor is not pinned, so nothing would be written late")
    sources = [torch.full_like(target, value, device=GPU) for value in range(1, 9)]
    torch.cuda.synchronize()
    hold_up(torch.cuda.current_stream(), seconds=1)
    for number in range(COPIES):
        target.copy_(sources[number % len(sources)], non_blocking=True)
        if number == 200:
            pipe.send("queued")
    time.sleep(WAIT_S)


def watch(queue: MessageQueue, pipe: Connection) -> None:
    """The reader that looks on; sends what it has seen."""
    memory = queue.dequeue(WAIT_S)[::SAMPLE_STEP]
    pid_fd = os.pidfd_open(pipe.recv())
    before = memory.clone()
    while torch.equal(memory, before):
        time.sleep(0.001)
    pipe.send("changing")
    wait_for_death(pid_fd)
    death = time.monotonic()
    changes, last_change_s = 0, 0.0
    before = memory.clone()
    while (now := time.monotonic()) < death + LOOK_S:
        if not torch.equal(memory, before):
            changes, last_change_s, before = changes + 1, now - death, memory.clone()
    pipe.send({"changes": changes, "last_change_s": last_change_s, "looked_s": LOOK_S})
