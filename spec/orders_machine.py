"""What a C11 program can do: executions of small programs, and which memory orders forbid which of them.

Two steps, so that every assignment of orders to the accesses can be judged quickly.

1. *Candidates.*  Threads take turns, one instruction each.  A load may read any store to its location that its
   thread has not seen a newer one than; a store may go anywhere after the newest one that its thread has seen;
   nothing else is promised.  This is the view machine with every order at its weakest, and since a load reads only
   what has been executed, there are no values out of thin air and no load buffering.
2. *Axioms.*  An execution is possible under given orders if it satisfies RC11 (Lahav and others, PLDI 2017, with
   the release sequences of C++20): happens-before contradicts no reads-from and no modification order, and
   the partial order of seq_cst accesses and fences has no cycle.

A view machine alone would do for release and acquire.  It has no exact rule for a seq_cst access that meets a weaker
one, which is just what has to be judged here, hence the axioms.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = "relaxed", "acquire", "release", "acq_rel", "seq_cst"
ORDERS = (RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST)
PLAIN = "plain"  # not atomic: two of these that conflict and are not ordered are a race
ACQUIRING = frozenset({ACQUIRE, ACQ_REL, SEQ_CST})
RELEASING = frozenset({RELEASE, ACQ_REL, SEQ_CST})

Assignment = Mapping[str, str]
"""Site -> memory order."""


def at_most(weaker: str, stronger: str) -> bool:
    """`weaker` promises nothing that `stronger` does not."""
    return weaker in (RELAXED, stronger) or stronger == SEQ_CST or (stronger == ACQ_REL and weaker in (ACQUIRE, RELEASE))


# ---- instructions: what a thread of a program yields ---------------------------------------------


class Instruction(NamedTuple):
    """One access or fence.  `site` names the access in the header; `order` is set where it is not up for choice."""

    kind: str  # load, store, exchange, add, cas, fence
    location: str = ""
    value: int = 0
    site: str = ""
    order: str = ""
    expected: int | None = None  # of a cas, or of a load that waits
    wanted: Callable[[int], bool] | None = None


def load(location: str, site: str) -> Instruction:
    """An atomic load."""
    return Instruction("load", location, site=site)


def wait_for(location: str, wanted: Callable[[int], bool], site: str) -> Instruction:
    """An atomic load that is repeated until its value is wanted; only the last one counts."""
    return Instruction("load", location, site=site, wanted=wanted)


def store(location: str, value: int, site: str) -> Instruction:
    """An atomic store."""
    return Instruction("store", location, value, site)


def exchange(location: str, value: int, site: str) -> Instruction:
    """An atomic exchange; yields the old value."""
    return Instruction("exchange", location, value, site)


def cas(location: str, expected: int, value: int, site: str) -> Instruction:
    """A compare-and-swap; yields the old value.  Where it fails it is a relaxed load."""
    return Instruction("cas", location, value, site, expected=expected)


def add(location: str, value: int, site: str) -> Instruction:
    """An atomic addition; yields the old value."""
    return Instruction("add", location, value, site)


def fence(site: str) -> Instruction:
    """A fence."""
    return Instruction("fence", site=site)


def read(location: str) -> Instruction:
    """A read of plain memory."""
    return Instruction("load", location, order=PLAIN)


def write(location: str, value: int) -> Instruction:
    """A write of plain memory."""
    return Instruction("store", location, value, order=PLAIN)


def kernel_exchange(location: str, value: int) -> Instruction:
    """What a system call does under its lock: acquire and release, whatever the caller asks for."""
    return Instruction("exchange", location, value, order=ACQ_REL)


def kernel_wait(location: str, wanted: Callable[[int], bool]) -> Instruction:
    """Waiting in the kernel until a location has a wanted value."""
    return Instruction("load", location, order=ACQUIRE, wanted=wanted)


def kernel_load(location: str) -> Instruction:
    """A load that the kernel does for the caller."""
    return Instruction("load", location, order=RELAXED)


def equals(wanted: int) -> Callable[[int], bool]:
    """For `wait_for`: the value itself."""
    return lambda value: value == wanted


def reached(position: int) -> Callable[[int], bool]:
    """For `wait_for`: the value or a higher one."""
    return lambda value: value >= position


Body = Generator[Instruction, int, Any]
Thread = Callable[[], Body]


@dataclass(frozen=True)
class Program:
    """Threads over shared locations.  `bad` looks at what the threads returned and says what went wrong, or None.

    A thread that waits for what never comes returns nothing: its result is None.
    """

    name: str
    words: str
    labels: tuple[str, ...]
    threads: tuple[Thread, ...]
    bad: Callable[..., str | None] = lambda *_: None
    initial: tuple[tuple[str, int], ...] = ()
    given: tuple[tuple[str, str], ...] = ()  # sites whose order another program decides


# ---- candidates ----------------------------------------------------------------------------------


class Event(NamedTuple):
    """One executed instruction.  `source` is the event that it read from."""

    thread: int  # -1: the initial store of a location
    kind: str  # R, W, U (both) or F
    location: str
    site: str
    order: str
    source: int | None
    value: int


class Candidate:
    """One execution: events, reads-from and modification order, and what the threads returned."""

    def __init__(self, events: list[Event], order: Mapping[str, Sequence[int]], results: Sequence[Any]) -> None:
        self.events = events
        self.results = tuple(results)
        count = len(events)
        self._sb = [0] * count
        for a, first in enumerate(events):
            for b in range(a + 1, count):
                if first.thread in (-1, events[b].thread) and events[b].thread != -1:
                    self._sb[a] |= 1 << b
        self._mo = [0] * count
        for stores in order.values():
            for place, a in enumerate(stores):
                for b in stores[place + 1 :]:
                    self._mo[a] |= 1 << b
        self._fr = [0] * count
        rf = [0] * count
        for b, event in enumerate(events):
            if event.source is not None:
                rf[event.source] |= 1 << b
                self._fr[b] = self._mo[event.source] & ~(1 << b)
        self._judged: dict[tuple[Any, ...], str | None] = {}
        self._eco = _closure([r | m | f for r, m, f in zip(rf, self._mo, self._fr, strict=True)])

    @cached_property
    def _handshakes(self) -> list[tuple[list[int], list[int]]]:
        """Per read: what may release to it (stores of the release sequence, fences before them), and what may acquire."""
        fences = [number for number, event in enumerate(self.events) if event.kind == "F"]
        found = []
        for reader, event in enumerate(self.events):
            if event.source is None or event.order == PLAIN:
                continue
            heads: list[int] = []
            writer: int | None = event.source
            while writer is not None and self.events[writer].thread != -1 and self.events[writer].order != PLAIN:
                heads += [writer, *(fence for fence in fences if self._sb[fence] >> writer & 1)]
                writer = self.events[writer].source
            tails = [reader, *(fence for fence in fences if self._sb[reader] >> fence & 1)]
            if heads:
                found.append((heads, tails))
        return found

    @cached_property
    def _conflicts(self) -> list[tuple[int, int]]:
        """Pairs of accesses of different threads to plain memory, one of them a store."""
        found = []
        for b, second in enumerate(self.events):
            for a in range(b):
                first = self.events[a]
                if (
                    first.location == second.location
                    and PLAIN in (first.order, second.order)
                    and "W" in (first.kind, second.kind)
                    and -1 not in (first.thread, second.thread)
                    and first.thread != second.thread
                ):
                    found.append((a, b))
        return found

    # ---- the axioms ----

    def judge(self, orders: Assignment, bad: str | None) -> str | None:
        """What is wrong with this execution under these orders; None if all is well or it cannot happen.

        `bad` is what is wrong with its results, races apart.  Many assignments come to the same order of events, so
        each order is judged once.
        """
        order_of = [event.order or orders[event.site] for event in self.events]
        before = list(self._sb)
        for heads, tails in self._handshakes:
            acquiring = sum(1 << tail for tail in tails if order_of[tail] in ACQUIRING)
            for head in heads:
                if order_of[head] in RELEASING:
                    before[head] |= acquiring
        sequential = sum(1 << number for number, order in enumerate(order_of) if order == SEQ_CST)
        key = (bad, sequential, *before)
        if key not in self._judged:
            self._judged[key] = self._judge(_closure(before), sequential, bad)
        return self._judged[key]

    def _judge(self, hb: Sequence[int], sequential: int, bad: str | None) -> str | None:
        wrong = bad or self._race(hb)
        return wrong if wrong and self._coherent(hb) and self._sequential(hb, sequential) else None

    def _race(self, hb: Sequence[int]) -> str | None:
        for a, b in self._conflicts:
            if not (hb[a] >> b & 1 or hb[b] >> a & 1):
                return f"race on {self.events[a].location}: {self.describe(a)} and {self.describe(b)} are not ordered"
        return None

    def _coherent(self, hb: Sequence[int]) -> bool:
        for a, after in enumerate(hb):
            if after >> a & 1:
                return False
            for b in _bits(after):
                if self._eco[b] >> a & 1:
                    return False
        return True

    def _sequential(self, hb: Sequence[int], sequential: int) -> bool:
        """The seq_cst events have no cycle (psc of RC11)."""
        events = self.events
        if sequential.bit_count() < 2:
            return True
        fences = sequential & sum(1 << number for number, event in enumerate(events) if event.kind == "F")
        count = range(len(events))
        elsewhere = [sum(1 << b for b in _bits(self._sb[a]) if events[b].location != events[a].location) for a in count]
        same_place = [sum(1 << b for b in _bits(hb[a]) if events[b].location == events[a].location) for a in count]
        through = _compose(_compose(elsewhere, hb), elsewhere)
        scb = [self._sb[a] | through[a] | same_place[a] | self._mo[a] | self._fr[a] for a in count]
        # from a seq_cst access, or from what comes after a seq_cst fence; and the same at the other end
        starts = [1 << a & sequential | (hb[a] if fences >> a & 1 else 0) for a in count]
        ends = [1 << a & sequential | hb[a] & fences for a in count]
        base = _compose(_compose(starts, scb), ends)
        between = _compose(_compose(hb, self._eco), hb)
        psc = [base[a] | ((hb[a] | between[a]) & fences if fences >> a & 1 else 0) for a in count]
        closed = _closure(psc)
        return not any(closed[a] >> a & 1 for a in count)

    # ---- words ----

    def describe(self, number: int) -> str:
        """One event in words."""
        event = self.events[number]
        name = event.site or event.order
        if event.kind == "F":
            return f"thread {event.thread}: {name}"
        seen = "" if event.source is None else f" sees {self.events[event.source].value}"
        stored = "" if event.kind == "R" else f" <- {event.value}"
        return f"thread {event.thread}: {name} {event.location}{seen}{stored}"

    def lines(self) -> list[str]:
        """The execution as text, thread by thread."""
        threads = sorted({event.thread for event in self.events} - {-1})
        return [
            self.describe(number) for thread in threads for number, event in enumerate(self.events) if event.thread == thread
        ]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _closure(rows: Sequence[int]) -> list[int]:
    closed = list(rows)
    for middle in range(len(closed)):
        reach = closed[middle]
        for a, row in enumerate(closed):
            if row >> middle & 1:
                closed[a] = row | reach
    return closed


def _compose(first: Sequence[int], second: Sequence[int]) -> list[int]:
    composed = []
    for row in first:
        out = 0
        for middle in _bits(row):
            out |= second[middle]
        composed.append(out)
    return composed
