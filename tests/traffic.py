"""Numbered messages that go by every way, and readers that check them: imported by the readers' processes too."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from support import WATCHDOG_S, Side


def mixed_message(i: int, rng: random.Random) -> list[Any]:
    """Number ``i``, and something that goes by one of the ways: inline, arena, overflow, loan-sized."""
    way = rng.randrange(5)
    if way == 0:
        return [i, None]
    if way == 1:
        return [i, torch.full((rng.randrange(1, 200),), i)]
    if way == 2:
        return [i, torch.full((rng.randrange(600, 3000),), i)]
    if way == 3:
        return [i, i.to_bytes(4, "little") * rng.randrange(1000, 4000)]
    return [i, np.full(rng.randrange(1, 3000), i)]


def check_message(i: int, message: Any) -> None:
    number, payload = message
    if number != i:
        raise ValueError(f"message {number} came where {i} was due")
    if isinstance(payload, bytes):
        payload = np.frombuffer(payload, dtype=np.uint32)
    if payload is not None and not bool((payload == i).all()):
        raise ValueError(f"message {i} has other bytes")


def read_all(side: Side, n_messages: int, seed: int, pause_s: float) -> str:
    """A slow reader: pauses now and then, holds some messages for a while, checks all."""
    rng = random.Random(seed)
    held: list[tuple[int, Any]] = []
    for i in range(n_messages):
        message = side.queue.dequeue(WATCHDOG_S)
        check_message(i, message)
        held.append((i, message))
        if len(held) > rng.randrange(12):
            check_message(*held.pop(rng.randrange(len(held))))
        if pause_s and rng.random() < 0.02:
            time.sleep(rng.random() * pause_s)
    for i, message in held:
        check_message(i, message)
    return "ok"


def read_numbers(side: Side, n_messages: int) -> int:
    return sum(side.queue.dequeue(WATCHDOG_S) is not None for _ in range(n_messages))


def read_from(side: Side, i: int) -> str:
    check_message(i, side.queue.dequeue(WATCHDOG_S))
    return "ok"
