"""The search behind `spec.trace`: an order of logged events that their stamps allow and that a model's replay accepts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from arena.shm.tracelog import Event, Log
from spec.model import put

NODES_MAX = 300_000
"""The search gives up beyond this many points: neither accepted nor refused."""

Point = Any  # where a run has come to: hashable; every replay has its own


class Refused(Exception):
    """The model does not allow the event here."""


class Replay(ABC):
    """Turns events into steps of one model."""

    model: ClassVar[str]

    @abstractmethod
    def matters(self, event: Event) -> bool:
        """Whether the event says anything about this model's state."""

    @abstractmethod
    def start(self) -> Point:
        """Before the first event."""

    @abstractmethod
    def apply(self, point: Point, log: int, event: Event) -> Point:
        """The point after an event of one of the logs.

        Raises:
            Refused: the model has no such step here; the text says which step and why that matters.
        """

    @abstractmethod
    def allowed(self, point: Point) -> list[str]:
        """The steps that the model allows here."""


@dataclass(frozen=True)
class Found:
    """What a search found about one run."""

    events: int
    accepted: bool
    explained: int  # events that the longest run of the model explains
    why: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


def search(replay: Replay, logs: Sequence[Log]) -> Found:
    """Depth first over (how far each thread has come, point)."""
    owners, sequences = threads(replay, logs)
    count = sum(map(len, sequences))
    unfinished = sum(math.isinf(events[-1].after) for events in sequences)
    start = ((0,) * len(sequences), replay.start())
    stack, seen = [start], {start}
    furthest, why, stuck_at = -1, [], start
    while stack:
        done, point = stack.pop()
        explained = sum(done)
        if explained == count or only_unfinished(done, sequences, count - explained, unfinished):
            return Found(count, True, explained)
        following, refusals = [], []
        for thread in candidates(done, sequences):
            event = sequences[thread][done[thread]]
            try:
                after = (put(done, thread, done[thread] + 1), replay.apply(point, owners[thread], event))
            except Refused as refusal:
                refusals.append(f"{logs[owners[thread]].name}: {event}: {refusal}")
            else:
                following.append(after)
        if explained > furthest:
            furthest, why, stuck_at = explained, refusals, (done, point)
        for node in reversed(following):
            if node not in seen:
                seen.add(node)
                stack.append(node)
        if len(seen) > NODES_MAX:
            return Found(count, False, furthest, (f"undecided after {NODES_MAX} points", *why))
    return Found(count, False, furthest, tuple(why), tuple(replay.allowed(stuck_at[1])))


def threads(replay: Replay, logs: Sequence[Log]) -> tuple[list[int], list[list[Event]]]:
    """The events of each thread in order, and the log that each thread is of."""
    sequences: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for number, log in enumerate(logs):
        for event in sorted(log.events):
            if replay.matters(event):
                sequences[number, event.thread].append(event)
    return [number for number, _ in sequences], list(sequences.values())


def candidates(done: Sequence[int], sequences: Sequence[Sequence[Event]]) -> Iterator[int]:
    """The threads whose next event may come next: no other pending event ended before it began. The earliest first."""
    heads = [(events[at], thread) for thread, (at, events) in enumerate(zip(done, sequences)) if at < len(events)]
    limit = min(event.after for event, _ in heads)
    yield from (thread for event, thread in sorted(heads) if event.before <= limit)


def only_unfinished(done: Sequence[int], sequences: Sequence[Sequence[Event]], left: int, unfinished: int) -> bool:
    """Nothing is left but what killed processes were in the middle of: that may never have happened."""
    return left <= unfinished and all(
        at == len(events) or (at == len(events) - 1 and math.isinf(events[at].after)) for at, events in zip(done, sequences)
    )
