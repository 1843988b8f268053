"""Messages that say what they must look like: made from their number, and checked against it."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from arena import ArenaConfig, MessageQueue
from arena.errors import CapacityError

ARENA = ArenaConfig(capacity_bytes=1 << 20, slots=16, divert_bytes=4096)
CHUNK_BYTES = 4096
CHUNKS = 4

ROWS = 24
COLUMNS = 64
KINDS = ("tensor", "mixed", "plain", "gathered", "loan", "out of band")


def large(number: int) -> torch.Tensor:
    """12 KiB that no other number has."""
    return torch.arange(ROWS * COLUMNS, dtype=torch.int64).view(ROWS, COLUMNS) * 7 + number * 1_000_003


def build(number: int, queue: MessageQueue | None) -> dict[str, Any]:
    """Message ``number``; its kind follows from it.  Without a queue nothing is a loan."""
    kind = KINDS[number % len(KINDS)]
    message: dict[str, Any] = {"number": number, "kind": kind}
    if kind == "mixed":
        message.update(array=large(number).numpy() + 1, small=torch.full((5,), number), tensor=large(number))
    elif kind == "gathered":
        message["tensor"] = large(number).t()
    elif kind == "loan" and queue is not None:
        message["tensor"] = _lent(number, queue)
    elif kind == "out of band":
        message.update(tensor=large(number), text=f"{number};" * 2000)
    elif kind != "plain":
        message["tensor"] = large(number)
    return message


def _lent(number: int, queue: MessageQueue) -> torch.Tensor:
    """The tensor in a loan, or in memory of its own when the arena is full."""
    try:
        loan = queue.loan((ROWS, COLUMNS), torch.int64)
    except CapacityError:
        return large(number)
    return loan.copy_(large(number))


def wrong(message: Any) -> str:
    """What differs from what its number says; empty if nothing does."""
    number, kind = message["number"], message["kind"]
    if kind != KINDS[number % len(KINDS)]:
        return f"message {number} is of kind {kind}"
    expected = large(number).t() if kind == "gathered" else large(number)
    if "tensor" in message and not torch.equal(message["tensor"], expected):
        return f"message {number} ({kind}) has other bytes: {message['tensor'].flatten()[:4].tolist()}"
    if kind == "mixed":
        if not numpy.array_equal(message["array"], large(number).numpy() + 1):
            return f"message {number} has another array"
        if message["small"].tolist() != [number] * 5:
            return f"message {number} has another small tensor: {message['small'].tolist()}"
    if kind == "out of band" and message["text"] != f"{number};" * 2000:
        return f"message {number} has another text"
    return ""
