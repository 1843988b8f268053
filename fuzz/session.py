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
    """Something that must hold does not; the text says what was seen."""


@dataclass
class Session:
    """What a target is given.

    Attributes:
        seed: of everything random; the same seed and options give the same choices.
        seconds: when to stop; None for the target's own end.
        runs: how many cases at most; None for the target's own end.
        options: the target's own, by name.
        counts: what was done, for people.
        told: called after each case with the counts.
    """

    seed: int
    seconds: float | None = None
    runs: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    told: Callable[[Session], None] = lambda session: None
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rng(self, *of: object) -> random.Random:
        """A generator of its own for a case: what one case draws changes no other."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, of))}")

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def over(self) -> bool:
        return self.seconds is not None and self.elapsed_s() >= self.seconds

    def cases(self, default_runs: int) -> Iterator[int]:
        """The numbers of the cases, from ``options['first']`` on, until the time or the number of runs is over.

        Given seconds and no runs, the time alone decides.
        """
        first = int(self.options.get("first", 0))
        runs = self.runs if self.runs is not None else (None if self.seconds is not None else default_runs)
        case = first
        while (runs is None or case < first + runs) and not self.over():
            yield case
            self.count("cases")
            case += 1

    def count(self, what: str, n: int = 1) -> None:
        """Adds to a count and tells whoever looks on; from any thread."""
        with self._lock:
            self.counts[what] += n
        self.told(self)


def expect(condition: object, seen: str) -> None:
    """Raises Failure with what was seen, unless the condition holds."""
    if not condition:
        raise Failure(seen)
