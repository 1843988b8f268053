"""The same search by several processes: every state belongs to the process that its hash names.

All expand one level at a time. A successor that belongs to someone else is sent there at the end of the level, by way
of the parent process, which also decides when to stop. A state goes by a global number: its number at its owner times
the number of processes, plus the owner's. The counts are those of `spec.checker.check`, which see; only which of
several equally short counterexamples is told may differ.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from spec.checker import Graph, Progress, Result, Violation, replay
from spec.drain import undrainable
from spec.model import Model, State

Alarm = tuple[int, str, str]  # global number of the state, property, complaint


class Parcel(NamedTuple):
    """What one process tells another at the end of a level.

    `states` are met for the first time, `parents` their parents; `edges` are the progress steps into states of the
    receiver, as pairs of a global number and of the how-manieth state sent this way, one after the other.
    """

    states: list[State]
    parents: array[int]
    edges: array[int]


class Report(NamedTuple):
    """What a process tells the parent at the end of a level."""

    states: int
    waiting: int
    transitions: int
    fired: Counter[str]
    unseen: set[str]
    alarm: Alarm | None


class Worker:
    """One process of the search: its share of the states, and how it expands them."""

    def __init__(self, model: Model, symmetry: bool, drain: bool, index: int, processes: int) -> None:
        self.model, self.index, self.processes = model, index, processes
        self.canonical = model.canonical if symmetry else None
        self.drain = model.drain if drain else None
        self.steps = [(each.action.effect, each.args, each.action.name, each.action.progress) for each in model.steps()]
        self.graph = Graph()  # the parents in it are global numbers
        self.expanded = 0
        self.transitions = 0
        self.fired: Counter[str] = Counter()
        self.unseen = list(model.sometimes)
        self.alarm: Alarm | None = None
        self.sent: list[dict[State, int]] = [{} for _ in range(processes)]
        self.received: list[array[int]] = [array("q") for _ in range(processes)]
        self.sources, self.targets = array("q"), array("q")  # progress steps into own states, by global number
        self.outbox = self._empty_outbox()

    def _empty_outbox(self) -> list[Parcel]:
        return [Parcel([], array("q"), array("q")) for _ in range(self.processes)]

    def name(self, number: int) -> int:
        """The global number of an own state."""
        return number * self.processes + self.index

    def start(self) -> None:
        """Take the initial states that are one's own."""
        for state in self.model.initial:
            state = state if self.canonical is None else self.canonical(state)
            if hash(state) % self.processes == self.index and state not in self.graph.numbers:
                self.discover(state, -1)

    def discover(self, state: State, parent: int) -> int:
        """Number a new state of one's own and look at it."""
        number = self.graph.add(state, parent)
        found = self.model.complaint(state)
        if found is not None and self.alarm is None:
            self.alarm = (self.name(number), *found)
        if self.unseen:
            self.unseen = [each for each in self.unseen if not each.holds(self.model.config, state)]
        return number

    def level(self) -> list[Parcel]:
        """Expand every state that waits; what belongs to others is returned."""
        self.outbox = self._empty_outbox()
        for number in range(self.expanded, len(self.graph.states)):
            self.expand(number)
            self.expanded += 1
        return self.outbox

    def expand(self, number: int) -> None:
        """Take every possible step from one state."""
        config, canonical, source, can_progress = self.model.config, self.canonical, self.name(number), False
        state, known, sent = self.graph.states[number], self.graph.numbers, self.sent
        mine, processes = self.index, self.processes
        for effect, args, name, is_progress in self.steps:
            after = effect(config, state, *args)
            if after is None:
                continue
            self.transitions += 1
            self.fired[name] += 1
            can_progress = can_progress or is_progress
            owner = hash(after) % processes
            if canonical is not None and after not in (known if owner == mine else sent[owner]):
                after = canonical(after)
                owner = hash(after) % processes
            if owner != mine:
                self.post(owner, after, source, is_progress)
                continue
            target = known.get(after)
            if target is None:
                target = self.discover(after, source)
            if is_progress and self.drain is not None:
                self.sources.append(source)
                self.targets.append(self.name(target))
        if not can_progress and self.alarm is None:
            found = ((each.name, each.complaint(config, state)) for each in self.model.deadlocks)
            self.alarm = next(((source, each, complaint) for each, complaint in found if complaint is not None), None)

    def post(self, owner: int, state: State, source: int, is_progress: bool) -> None:
        """Put a step into another process's state into the outbox."""
        sent, parcel = self.sent[owner], self.outbox[owner]
        place = sent.get(state)
        if place is None:
            place = sent[state] = len(sent)
            parcel.states.append(state)
            parcel.parents.append(source)
        if is_progress and self.drain is not None:
            parcel.edges.extend((source, place))

    def unpack(self, sender: int, parcel: Parcel) -> None:
        """Take in what another process has found."""
        received, known = self.received[sender], self.graph.numbers
        for state, parent in zip(parcel.states, parcel.parents, strict=True):
            number = known.get(state)
            received.append(self.discover(state, parent) if number is None else number)
        edges = iter(parcel.edges)
        for source, place in zip(edges, edges, strict=True):
            self.sources.append(source)
            self.targets.append(self.name(received[place]))

    def report(self) -> Report:
        """How far this process has come."""
        states, unseen = len(self.graph.states), {each.name for each in self.unseen}
        return Report(states, states - self.expanded, self.transitions, self.fired, unseen, self.alarm)

    def look_up(self, name: int) -> tuple[State, int]:
        """An own state and the global number of its parent."""
        number = name // self.processes
        return self.graph.states[number], self.graph.parents[number]

    def share_of_drain(self) -> tuple[array[int], array[int], bytearray, bytearray]:
        """The progress steps into own states; which own states are good, and which must drain."""
        config, states, drain = self.model.config, self.graph.states, self.drain
        if drain is None:
            raise ValueError("the model has no drain property")
        good = bytearray(drain.good(config, state) for state in states)
        return self.sources, self.targets, good, bytearray(drain.demanded(config, state) for state in states)

    def serve(self, parent: Connection) -> None:
        """Do what the parent asks, until it asks for nothing more."""
        while (asked := parent.recv()) is not None:
            method, *args = asked
            if method == "level":
                for parcel in self.level():
                    parent.send_bytes(pickle.dumps(parcel, pickle.HIGHEST_PROTOCOL))
                for sender in range(self.processes):
                    self.unpack(sender, pickle.loads(parent.recv_bytes()))
                parent.send(self.report())
            else:
                parent.send(getattr(self, method)(*args))


@contextmanager
def crew(model: Model, symmetry: bool, drain: bool, processes: int) -> Iterator[list[Connection]]:
    """Start the processes; they are gone when the block ends."""
    # forked, so that the model, whose actions are plain functions, need not be pickled, and all hash alike
    context = multiprocessing.get_context("fork")
    ends, started = [], []
    for index in range(processes):
        here, there = context.Pipe()
        worker = Worker(model, symmetry, drain, index, processes)
        process = context.Process(target=worker.serve, args=(there,), daemon=True)
        process.start()
        there.close()
        ends.append(here)
        started.append(process)
    try:
        yield ends
        for end in ends:
            end.send(None)
    except BaseException:
        for process in started:
            process.terminate()
        raise
    finally:
        for process in started:
            process.join()


def ask(ends: list[Connection], method: str) -> list[Any]:
    """Ask every process the same; the answers in their order."""
    for end in ends:
        end.send((method,))
    return [end.recv() for end in ends]


def next_level(ends: list[Connection]) -> list[Report]:
    """Have every process expand a level and exchange what it found."""
    for end in ends:
        end.send(("level",))
    parcels = [[end.recv_bytes() for _ in ends] for end in ends]
    for receiver, end in enumerate(ends):
        for sent in parcels:
            end.send_bytes(sent[receiver])
    return [end.recv() for end in ends]


def check(
    model: Model,
    *,
    processes: int,
    symmetry: bool = False,
    drain: bool = True,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """`spec.checker.check` by several processes; a limit is looked at after each level."""
    if symmetry and model.canonical is None:
        raise ValueError(f"the model {model.name} declares no symmetry")
    began = time.perf_counter()
    result = Result(model)
    with crew(model, symmetry, drain, processes) as ends:
        ask(ends, "start")
        reports: list[Report] = ask(ends, "report")
        while any(each.waiting for each in reports) and not any(each.alarm for each in reports):
            states, waiting = sum(each.states for each in reports), sum(each.waiting for each in reports)
            if limit is not None and states > limit:
                break
            if progress is not None:
                progress(states, waiting)
            reports = next_level(ends)
            result.depth += any(each.waiting for each in reports)
        alarm = summarise(result, reports)
        if result.complete and drain and model.drain is not None:
            alarm = drain_alarm(result, model.drain.name, ends)
        if alarm is not None:
            run = replay(model, path_to(alarm[0], ends), model.canonical if symmetry else None)
            result.violation = Violation(alarm[1], alarm[2], run)
    result.seconds = time.perf_counter() - began
    return result


def summarise(result: Result, reports: list[Report]) -> Alarm | None:
    """Add up what the processes report; one of their alarms, if any, always the same."""
    alarm = min((each.alarm for each in reports if each.alarm is not None), default=None)
    result.states = sum(each.states for each in reports)
    result.transitions = sum(each.transitions for each in reports)
    result.fired = sum((each.fired for each in reports), Counter())
    result.complete = alarm is None and not any(each.waiting for each in reports)
    if result.complete:
        unseen = set.intersection(*(each.unseen for each in reports))
        result.never_seen = tuple(each.name for each in result.model.sometimes if each.name in unseen)
    return alarm


def drain_alarm(result: Result, name: str, ends: list[Connection]) -> Alarm | None:
    """Count the states that cannot drain; an alarm for one with the shortest way to it."""
    shares = ask(ends, "share_of_drain")
    most, processes = max(len(good) for _, _, good, _ in shares), len(ends)
    sources, targets = array("q"), array("q")
    all_good, all_demanded = bytearray(most * processes), bytearray(most * processes)
    for index, (source, target, good, demanded) in enumerate(shares):
        sources.extend(source)
        targets.extend(target)
        all_good[index : len(good) * processes : processes] = good
        all_demanded[index : len(demanded) * processes : processes] = demanded
    stuck = undrainable(sources, targets, all_good, all_demanded)
    result.undrainable = len(stuck)
    if not stuck:
        return None
    # each process numbers its states level by level, so the nearest is the first of one of them
    firsts = {number % processes: number for number in reversed(stuck)}.values()
    nearest = min(firsts, key=lambda number: (len(path_to(number, ends)), number))
    return nearest, name, f"{len(stuck)} states, this one among them, cannot drain"


def path_to(name: int, ends: list[Connection]) -> list[State]:
    """The states from an initial one to the one with this global number."""
    path = []
    while name >= 0:
        end = ends[name % len(ends)]
        end.send(("look_up", name))
        state, name = end.recv()
        path.append(state)
    return path[::-1]
