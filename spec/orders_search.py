"""All candidate executions of a program: every interleaving, every choice of what to read and where to store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from spec.orders_machine import PLAIN, RELAXED, Candidate, Event, Instruction, Program

EventId = tuple[int, Any]
"""(thread, number within the thread), or (-1, location) for the initial store of a location."""


class Read(NamedTuple):
    """What an event read: from which store, and the value."""

    source: EventId
    value: int


class Finished(NamedTuple):
    """A thread that has come to its end."""

    result: Any


class _State(NamedTuple):
    """A candidate in the making: what each event of each thread read, and the stores of each location in order."""

    reads: tuple[tuple[Read | None, ...], ...]
    stores: tuple[tuple[str, tuple[EventId, ...]], ...]


def candidates(program: Program) -> list[Candidate]:
    """Every execution of the program in which no thread can go on, each once."""
    return list(_Search(program).run())


class _Search:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.threads = range(len(program.threads))
        self.initial = dict(program.initial)
        self.replayed: dict[tuple[int, tuple[int, ...]], tuple[list[Instruction], Instruction | Finished]] = {}

    def run(self) -> Iterator[Candidate]:
        """Depth first over distinct candidates."""
        start = _State(((),) * len(self.threads), ())
        seen = {start}
        todo = [start]
        while todo:
            state = todo.pop()
            following = [after for thread in self.threads for after in self._steps(state, thread)]
            if not following:
                yield self._candidate(state)
            fresh = [after for after in following if after not in seen]
            seen.update(fresh)
            todo += fresh

    # ---- one thread ----

    def _replay(self, thread: int, reads: tuple[Read | None, ...]) -> tuple[list[Instruction], Instruction | Finished]:
        """The instructions that a thread has executed, and its next one, given what it has read."""
        values = tuple(0 if read is None else read.value for read in reads)
        key = (thread, values)
        if key not in self.replayed:
            self.replayed[key] = _replayed(self.program, thread, values)
        return self.replayed[key]

    def _steps(self, state: _State, thread: int) -> Iterator[_State]:
        """The candidates that have one event more, of this thread."""
        done, instruction = self._replay(thread, state.reads[thread])
        if isinstance(instruction, Finished):
            return
        if instruction.kind == "fence":
            yield _with_event(state, thread, None)
            return
        order = dict(state.stores).get(instruction.location, ((-1, instruction.location),))
        newest = self._newest_seen(state, thread, done, instruction.location, order)
        new = (thread, len(done))
        if instruction.kind == "store":
            for place in range(newest + 1, len(order) + 1):
                if place == len(order) or not _is_rmw(state, order[place]):
                    yield _with_event(state, thread, None, instruction.location, _insert(order, place, new))
            return
        for place in range(newest, len(order)):
            read = Read(order[place], self._value(state, order[place]))
            if instruction.wanted is not None and not instruction.wanted(read.value):
                continue
            if instruction.kind == "load" or instruction.expected not in (None, read.value):
                yield _with_event(state, thread, read)
            elif place + 1 == len(order) or not _is_rmw(state, order[place + 1]):
                yield _with_event(state, thread, read, instruction.location, _insert(order, place + 1, new))

    def _newest_seen(
        self, state: _State, thread: int, done: list[Instruction], location: str, order: tuple[EventId, ...]
    ) -> int:
        """The place of the newest store of the location that the thread has made or read."""
        newest = 0
        for number, (instruction, read) in enumerate(zip(done, state.reads[thread], strict=True)):
            if instruction.location == location:
                own = (thread, number)
                newest = max(newest, order.index(own) if own in order else order.index(read.source if read else own))
        return newest

    def _value(self, state: _State, event: EventId) -> int:
        """The value that an event stored."""
        thread, number = event
        if thread == -1:
            return self.initial.get(number, 0)
        instruction, read = self._replay(thread, state.reads[thread])[0][number], state.reads[thread][number]
        return instruction.value + (read.value if read and instruction.kind == "add" else 0)

    # ---- a complete candidate ----

    def _candidate(self, state: _State) -> Candidate:
        stores = dict(state.stores)
        done = [self._replay(thread, state.reads[thread]) for thread in self.threads]
        locations = {each.location for instructions, _ in done for each in instructions if each.location}
        order = {location: stores.get(location, ((-1, location),)) for location in sorted(locations)}
        ids: list[EventId] = [(-1, location) for location in order]
        ids += [(thread, number) for thread in self.threads for number in range(len(done[thread][0]))]
        number_of = {event: number for number, event in enumerate(ids)}
        stored = {event for events in order.values() for event in events}
        events = []
        for thread, number in ids:
            if thread == -1:
                events.append(Event(-1, "W", number, "", PLAIN, None, self._value(state, (thread, number))))
                continue
            instruction, read = done[thread][0][number], state.reads[thread][number]
            source = None if read is None else number_of[read.source]
            kind = _kind(read is not None, (thread, number) in stored)
            failed = instruction.kind == "cas" and kind == "R"
            events.append(
                Event(
                    thread,
                    kind,
                    instruction.location,
                    instruction.site,
                    RELAXED if failed else instruction.order,
                    source,
                    self._value(state, (thread, number)),
                )
            )
        results = [last.result if isinstance(last, Finished) else None for _, last in done]
        return Candidate(
            events, {location: [number_of[event] for event in each] for location, each in order.items()}, results
        )


def _replayed(program: Program, thread: int, values: tuple[int, ...]) -> tuple[list[Instruction], Instruction | Finished]:
    generator = program.threads[thread]()
    done: list[Instruction] = []
    try:
        instruction = next(generator)
        for value in values:
            done.append(instruction)
            instruction = generator.send(value)
    except StopIteration as end:
        return done, Finished(end.value)
    return done, instruction


def _with_event(
    state: _State,
    thread: int,
    read: Read | None,
    location: str = "",
    order: tuple[EventId, ...] = (),
) -> _State:
    reads = (*state.reads[:thread], (*state.reads[thread], read), *state.reads[thread + 1 :])
    stores = state.stores
    if location:
        stores = tuple(sorted({**dict(stores), location: order}.items()))
    return _State(reads, stores)


def _is_rmw(state: _State, event: EventId) -> bool:
    """The store is the second half of an exchange or compare-and-swap: nothing may come before it."""
    thread, number = event
    return thread != -1 and state.reads[thread][number] is not None


def _insert(order: tuple[EventId, ...], place: int, event: EventId) -> tuple[EventId, ...]:
    return (*order[:place], event, *order[place:])


def _kind(reads: bool, stores: bool) -> str:
    return {(True, True): "U", (True, False): "R", (False, True): "W", (False, False): "F"}[reads, stores]
