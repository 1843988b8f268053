"""Faults that the canary plants in a reader: one of each class that the harness must see."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

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
