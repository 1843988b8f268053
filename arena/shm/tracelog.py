"""Reads the logs that ``trace.py`` writes; needs no cooperation of the processes, which may be dead."""

from __future__ import annotations

import math
import struct
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from arena.shm.trace import ABOUT, ABOUT_OFFSET, ACTIONS, EVENT, HEADER_BYTES, MAGIC, SUFFIX, VERSION, WRITER


class Event(NamedTuple):
    """An action as it was logged; `after` is infinite for one that its process did not live to end."""

    before: float
    after: float
    action: str
    thread: int
    args: tuple[int, ...]

    def __str__(self) -> str:
        ended = "unfinished" if math.isinf(self.after) else f"{self.after:.0f}"
        return f"{self.action}{self.args} at {self.before:.0f}..{ended}"


@dataclass
class Log:
    """What one end of one segment did."""

    path: Path
    row: int
    pid: int
    start: int
    n_readers: int
    n_slots: int
    segment: str
    lost: int
    events: list[Event]

    @property
    def name(self) -> str:
        return f"writer {self.pid}" if self.row == WRITER else f"reader {self.row} (pid {self.pid})"


def read_log(path: Path) -> Log:
    """Decodes a log.

    Raises:
        ValueError: the file is not a log of this version.
    """
    data = path.read_bytes()
    if len(data) < HEADER_BYTES:
        raise ValueError(f"{path}: too short for a log")
    try:
        return _decode(path, data)
    except (IndexError, struct.error):
        raise ValueError(f"{path}: a damaged log: events that cannot be") from None


def _decode(path: Path, data: bytes) -> Log:
    capacity, count = (int.from_bytes(data[at : at + 8], sys.byteorder) for at in (0, 8))
    magic, version, row, pid, start, n_readers, n_slots, segment = ABOUT.unpack_from(data, ABOUT_OFFSET)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"{path}: not a log, or of another version")
    kept = min(count, capacity)
    events = []
    for before, after, code, thread, *args in EVENT.iter_unpack(data[HEADER_BYTES : HEADER_BYTES + kept * EVENT.size]):
        if before:
            events.append(Event(before, after or math.inf, ACTIONS[code], thread, tuple(args)))
    return Log(path, row, pid, start, n_readers, n_slots, segment.hex(), count - kept, events)


def read_runs(directory: Path) -> dict[str, list[Log]]:
    """The logs of a directory, by segment.

    Raises:
        ValueError: a file is named like a log, and is none of this version.
    """
    runs: dict[str, list[Log]] = defaultdict(list)
    for path in sorted(directory.glob(f"*{SUFFIX}"), key=_number):
        log = read_log(path)
        runs[log.segment].append(log)
    return dict(runs)


def _number(path: Path) -> int:
    """The place of a log among those of its process."""
    number = path.name.split(".")[2:3]
    if not (number and number[0].isdecimal()):
        raise ValueError(f"{path}: not the name of a log")
    return int(number[0])
