"""One run of a target: its seed, its end, what it has counted, and how it says that it failed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


class Failure(Exception):
    """Something that must hold does not; the text says what was seen.

    Attributes:
        replay: the options that lead there again with the same seed; None for the run's own, at the case under way.
    """

    def __init__(self, seen: str, replay: str | None = None) -> None:
        super().__init__(seen)
        self.replay = replay


@dataclass
class Session:
    """What a target is given.

    Attributes:
        seed: of everything random; the same seed and options give the same choices.
        seconds: when to stop; None for the target's own end.
        runs: how many cases at most; None for the target's own end.
        options: the target's own, by name.
        counts: what was done, for people.
        case: the number of the case under way, of a target that takes its cases from ``cases``.
        told: called after each case with the counts.
    """

    seed: int
    seconds: float | None = None
    runs: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    case: int | None = None
    told: Callable[[Session], None] = lambda session: None
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rng(self, *of: object) -> random.Random:
        """A generator of its own for a case: what one case draws changes no other."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, of))}")

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def over(self) -> bool:
        """Whether the time or the number of runs is over."""
        return self.left(1) == 0

    def left(self, at_most: int) -> int:
        """How many cases may be played next: none when the time is over."""
        if self.seconds is not None and self.elapsed_s() >= self.seconds:
            return 0
        return at_most if self.runs is None else max(0, min(at_most, self.runs - self.counts["cases"]))

    def cases(self, default_runs: int) -> Iterator[int]:
        """The numbers of the cases, from ``options['first']`` on, until the time or the number of runs is over.

        Given seconds and no runs, the time alone decides.
        """
        first = self.case = int(self.options.get("first") or 0)
        end = first + default_runs if self.runs is None and self.seconds is None else None
        while self.case != end and not self.over():
            yield self.case
            self.count("cases")
            self.case += 1

    def count(self, what: str, n: int = 1) -> None:
        """Adds to a count and tells whoever looks on; from any thread."""
        with self._lock:
            self.counts[what] += n
        self.told(self)


def expect(condition: object, seen: str) -> None:
    """Raises Failure with what was seen, unless the condition holds."""
    if not condition:
        raise Failure(seen)
