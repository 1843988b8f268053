"""Faults that the canary plants: one of each class that the harness must see, in a reader or under an oracle's eyes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

FAULTS = {
    "hang": "hangs",
    "left descriptor": "still has",
    "held slot": "do not come back",
    "wrong byte": "has other bytes",
    "left file": "files left",
    "crash": "SIGSEGV",
    "lost message": "missed messages",
}
"""Each fault, and what the failure that it causes says."""


class UnderAnOracle(NamedTuple):
    """A fault in this process, which a target has to notice by comparing with what is right."""

    target: str  # "" for a match whose log is held to the model
    where: str  # what is replaced
    faulty: Callable[[Any], Any]  # by what, given what was there
    says: str


def _without_publications(read_runs: Any) -> Any:
    def read(path: Path) -> Any:
        return {
            segment: [replace(log, events=[each for each in log.events if each.action != "publish"]) for log in logs]
            for segment, logs in read_runs(path).items()
        }

    return read


def _over_another(take: Any) -> Any:
    return lambda self, nbytes: take(self, nbytes) and 0


class Changed(NamedTuple):
    """What nobody sent: a list might have been."""

    value: Any


def _changed(dequeue: Any) -> Any:
    return lambda self, timeout: Changed(dequeue(self, timeout))


def _of_another_version(get: Any) -> Any:
    def older(self: Any, handle: Any) -> Any:
        value = get(self, handle)
        return {**value, "version": value["version"] - 1}

    return older


ORACLES = {
    "overlapping extent": UnderAnOracle(
        "extents", "arena.protocol.extents.Extents.take", _over_another, "gave 0, not page"
    ),
    "changed object": UnderAnOracle(
        "pickle", "arena.queue.MessageQueue.dequeue", _changed, "at the top: <class 'fuzz.planted.Changed'>, not"
    ),
    "older object": UnderAnOracle("cache", "arena.cache.ObjectCache.get", _of_another_version, "not what was just put"),
    "impossible run": UnderAnOracle("", "fuzz.traces.read_runs", _without_publications, "the model refuses the trace"),
}
"""Each fault that no process's end, file or byte gives away."""

SEEN_BY = {**FAULTS, **{name: each.says for name, each in ORACLES.items()}}
"""All faults, and what the failure that each causes says."""

_leaked: list[Any] = []


def plant(fault: str, message: Any) -> None:
    """Does what a faulty reader would do when it gets a message."""
    if fault == "hang":
        time.sleep(3600)
    elif fault == "left descriptor":
        _leaked.append(os.open("/dev/null", os.O_RDONLY))
    elif fault == "held slot":
        _leaked.append(message)
    elif fault == "wrong byte" and message["kind"] == "tensor":
        message["tensor"][-1, -1] += 1
    elif fault == "left file":
        (Path(tempfile.gettempdir()) / f"arena-{os.getpid()}-planted").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)


def is_lost(fault: str, number: int) -> bool:
    """Whether a faulty reader passes over this message."""
    return fault == "lost message" and number == 1
