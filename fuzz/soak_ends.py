"""What the writers and readers of a soak do, each in a process of its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from arena import ArenaConfig, Handle, MessageQueue
from arena.errors import AttachError, Cancelled, WriterDied
from fuzz import belongings, messages
from fuzz.session import expect
from fuzz.workers import LIMIT_S, Side

ARENA = ArenaConfig(capacity_bytes=4 << 20, slots=64, divert_bytes=4096)
CHUNKS = 64
PULSE_S = 0.5
HELD_MAX = 8
LAST = -1
"""The number of the message that ends a reader."""


@dataclass(frozen=True)
class Pulse:
    """A writer, now.

    Attributes:
        sent: messages so far.
        at_s: its clock.
        cpu_s: processor time so far, of all of its threads.
        arena_bytes: in use.
        slots_busy: not free.
        descriptors: open ones.
        deaths: of readers that it saw.
        left: what it still had after its end.
    """

    sent: int = 0
    at_s: float = 0.0
    cpu_s: float = 0.0
    arena_bytes: int = 0
    slots_busy: int = 0
    descriptors: int = 0
    deaths: int = 0
    left: dict[str, int] = field(default_factory=dict)


@dataclass
class Reading:
    """What a reader saw.

    Attributes:
        ended: why it stopped: ``end``, ``left`` or the name of an error.
        last: the number of the last message; -1 if there was none.
        left: what it still had after its end.
    """

    ended: str = ""
    last: int = -1
    left: dict[str, int] = field(default_factory=dict)


def write(side: Side, n_readers: int) -> Pulse:
    """Writes until it is told ``shutdown``, or ``end``: then only when all is read and every slot is free again."""
    before = belongings.own()
    with MessageQueue(n_readers, n_readers, None, messages.CHUNK_BYTES, CHUNKS, arena=ARENA) as queue:
        side.say(queue.export_handle())
        sent, due = 0, time.monotonic() + PULSE_S
        while not side.heard():
            queue.enqueue(messages.build(sent, queue), LIMIT_S)
            sent += 1
            if time.monotonic() >= due:
                side.say(_pulse(queue, sent))
                due += PULSE_S
        if side.hear() == "end":
            queue.wait_until_ready(LIMIT_S)
            queue.enqueue({"number": LAST}, LIMIT_S)
            _drain(queue)
        deaths = queue.statistics().deaths_total
    del queue
    return Pulse(sent=sent, deaths=deaths, left=belongings.more_than(before))


def _pulse(queue: MessageQueue, sent: int) -> Pulse:
    now = queue.statistics()
    busy, descriptors = now.slots_total - now.slots_free, len(os.listdir("/proc/self/fd"))
    return Pulse(sent, time.monotonic(), time.process_time(), now.bytes_in_use, busy, descriptors)


def _drain(queue: MessageQueue) -> None:
    deadline = time.monotonic() + LIMIT_S / 2
    while (now := queue.statistics()).slots_free < now.slots_total or now.bytes_in_use:
        expect(time.monotonic() < deadline, f"not drained: {now}")
        queue.reap()
        time.sleep(0.01)


def read(side: Side, handle: Handle, rank: int, seed: int) -> Reading:
    """Reads, holds some, checks all; leaves when told, or when the writer ends, however it does."""
    before = belongings.own()
    reading = Reading()
    held: list[Any] = []
    try:
        with MessageQueue.create_from_handle(handle, rank) as queue:
            _read(side, queue, Random(seed), reading, held)
    except (AttachError, Cancelled, WriterDied) as error:
        reading.ended = type(error).__name__
    while held:  # whatever has become of the writer
        _check(held.pop())
    reading.left = belongings.more_than(before)
    return reading


def _read(side: Side, queue: MessageQueue, rng: Random, reading: Reading, held: list[Any]) -> None:
    while not reading.ended:
        if side.heard():
            side.hear()
            reading.ended = "left"
            return
        try:
            message: Any = queue.dequeue(0.5)
        except TimeoutError:
            continue
        number = message["number"]
        if number == LAST:
            reading.ended = "end"
            return
        expect(reading.last < 0 or number == reading.last + 1, f"message {number} came after {reading.last}")
        _check(message)
        reading.last = number
        held.append(message)
        del message
        while len(held) > rng.randrange(HELD_MAX):
            _check(held.pop(rng.randrange(len(held))))


def _check(message: Any) -> None:
    found = messages.wrong(message)
    expect(not found, found)
