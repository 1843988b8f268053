"""Is a run that really happened a behaviour of the model? `python -m spec trace DIRECTORY` reads its logs and says so.

With `ARENA_TRACE=DIRECTORY` each end of a queue logs its actions (`arena/shm/trace.py`), each stamped before and after from
one shared counter. Two events whose stamps overlap may have happened in either order; all others are ordered. The run is
*accepted* if some order that the stamps allow is a run of the message-slot model, from "no reader has joined" on. The
search goes depth first, remembers where it has been, and if it gets stuck tells the furthest point: which events could
come next, why the model refuses each, and what it would have allowed.

What the logs do not say, the search supplies: a death (it is seen when the writer reclaims), the last view's end (a
release says it), and the one event that a killed process was in the middle of, which may have happened or not. Loans and
cached objects use slots of the same table; these are followed only as "not the messages' now".
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from arena.shm.trace import SUFFIX, WRITER
from arena.shm.tracelog import Event, Log, read_runs
from spec.model import Action, put
from spec.models import message_slots
from spec.models import message_slots_actions as actions
from spec.models.message_slots_state import (
    COPY,
    EMPTY,
    FREE,
    IDLE,
    IN_VIEW,
    NO_SLOT,
    PUBLISH,
    Config,
    Slot,
    State,
    initial,
)

KIND_MESSAGE = 1
NODES_MAX = 300_000
"""The search gives up beyond this many points: neither accepted nor refused."""

# ---- events as steps of the model -----------------------------------------------------------------------------------


class Refused(Exception):
    """The model does not allow the event here."""


class Point(NamedTuple):
    """Where a run has come to."""

    state: State
    generations: tuple[int, ...]
    logs: tuple[int | None, ...]  # the log of each row's present reader
    received: tuple[int, ...]  # the ring position of each row's last message
    foreign: frozenset[int]  # slots that loans and objects use now
    published: int = 0  # how many slots of the message under way the code has published


class Replay:
    """Applies events to points. One method for each logged action: the model's steps that it stands for."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs = logs
        self.n_readers, self.n_slots = logs[0].n_readers, logs[0].n_slots
        self.config = Config(
            slots=self.n_slots, readers=self.n_readers, tensors=self.n_slots, queue=sys.maxsize, leave=True
        )
        self.with_slots = positions_with_slots(logs)

    def start(self) -> Point:
        nobody = initial(self.config)._replace(alive=(False,) * self.n_readers, members=(EMPTY,) * self.n_readers)
        return Point(nobody, (0,) * self.n_slots, (None,) * self.n_readers, (-1,) * self.n_readers, frozenset())

    def apply(self, point: Point, log: int, event: Event) -> Point:
        """The point after the event.

        Raises:
            Refused: the model has no such step here; the text says which step and why that matters.
        """
        if self.logs[log].row != WRITER and event.action != "release" and point.logs[self.logs[log].row] != log:
            return self.before_admission(point, event)
        step: Callable[[Point, int, Event], Point] = getattr(self, event.action)
        return step(point, log, event)

    def before_admission(self, point: Point, event: Event) -> Point:
        if event.action == "leave":  # it was never admitted, or has been reclaimed as one that owes nothing
            return point
        raise Refused(f"reader {event.args[0]} is not a member (any more)")

    def take(self, point: Point, action: Action, *args: int) -> Point:
        after = action(self.config, point.state, *args)
        if after is None:
            raise Refused(f"{action.name}{args} is not possible")
        return point._replace(state=after)

    def without(self, point: Point, slot: int) -> Point:
        """The slot is not the messages' any more."""
        state = point.state
        nobody = (False,) * self.n_readers
        state = state._replace(slots=put(state.slots, slot, Slot(FREE, False, nobody, nobody)))
        if state.current == slot:
            state = state._replace(current=NO_SLOT, writer=IDLE)
        return point._replace(state=state)

    def finished(self, point: Point) -> Point:
        """The code publishes all slots of a message at once, the model each as it is filled; no member changes between."""
        if point.state.writer == COPY:
            raise Refused(f"slot {point.state.current} was claimed and never filled")
        return self.take(point, actions.publish) if point.state.writer == PUBLISH else point

    # ---- the writer

    def claim(self, point: Point, log: int, event: Event) -> Point:
        kind, slot, generation = event.args[0], event.args[3] - 1, event.args[4]
        if kind != KIND_MESSAGE:
            if not self.config.is_free(self.config, point.state, slot):
                raise Refused(f"slot {slot} is not free")
            return self.without(point, slot)._replace(foreign=point.foreign | {slot})
        point = self.take(self.finished(point), actions.claim, slot)
        if generation <= point.generations[slot]:
            raise Refused(f"generation {generation} of slot {slot} is not new")
        generations = put(point.generations, slot, generation)
        return point._replace(generations=generations, foreign=point.foreign - {slot})

    def copy(self, point: Point, log: int, event: Event) -> Point:
        slot, error = event.args[0], event.args[3]
        if slot in point.foreign or error or (point.state.writer == PUBLISH and point.state.current == slot):
            return point
        if point.state.current != slot:
            raise Refused(f"slot {slot} is not being filled")
        return self.take(point, actions.copy)

    populate = copy  # and then it is filled in place

    def loan(self, point: Point, log: int, event: Event) -> Point:
        slot = event.args[0]
        return self.without(point, slot)._replace(foreign=point.foreign | {slot})

    adopt = loan

    def publish(self, point: Point, log: int, event: Event) -> Point:
        slot, members = event.args[0], event.args[3]
        if slot in point.foreign:
            return point
        point = self.finished(point)
        if slot not in point.state.pending:
            raise Refused(f"slot {slot} is not of the message under way")
        required = sum(1 << row for row, is_required in enumerate(point.state.slots[slot].required) if is_required)
        if required != members:
            raise Refused(f"slot {slot} requires the readers {required:b}, the code says {members:b}")
        return point._replace(published=point.published + 1)

    def send(self, point: Point, log: int, event: Event) -> Point:
        point = self.finished(point)
        if point.published != len(point.state.pending):
            raise Refused(f"only {point.published} of the slots {point.state.pending} have been published")
        return self.take(point, actions.enqueue)._replace(published=0) if point.published else point

    def abort(self, point: Point, log: int, event: Event) -> Point:
        slot, how_many = event.args[:2]
        state = point.state
        if how_many == 1 and state.current == slot and state.pending:  # no memory for this one: it travels otherwise
            return self.without(point, slot)
        point = point._replace(published=0)
        return self.take(point, actions.abort) if state.pending or state.current != NO_SLOT else point

    def admit(self, point: Point, log: int, event: Event) -> Point:
        row, pid, start = event.args[:3]
        ends = [number for number, each in enumerate(self.logs) if (each.row, each.pid, each.start) == (row, pid, start)]
        last = point.logs[row]
        if last in ends:  # the same process has joined again
            ends = ends[ends.index(last) + 1 :]
        if not ends:
            raise Refused(f"there is no log of process {pid} as reader {row}")
        point = self.take(point, actions.admit, row)
        return point._replace(logs=put(point.logs, row, ends[0]), received=put(point.received, row, -1))

    def reclaim(self, point: Point, log: int, event: Event) -> Point:
        row = event.args[0]
        if point.state.members[row] == EMPTY:
            return point
        if point.state.alive[row]:
            point = self.take(point, actions.reader_death, row)
        return self.take(point, actions.reclaim, row)

    def drop_reader(self, point: Point, log: int, event: Event) -> Point:
        """Between two messages, or while one waits for room: then its slots are unread, too."""
        row = event.args[0]
        if point.state.members[row] not in IN_VIEW:
            return point
        point = self.finished(point)
        pending = point.state.pending
        state = self.take(point._replace(state=point.state._replace(pending=())), actions.drop_reader, row).state
        excused = tuple(
            slot._replace(required=put(slot.required, row, False)) if number in pending else slot
            for number, slot in enumerate(state.slots)
        )
        return point._replace(state=state._replace(pending=pending, slots=excused))

    # ---- the readers

    def read(self, point: Point, log: int, event: Event) -> Point:
        row, position = event.args[:2]
        if position not in self.with_slots or point.received[row] == position:
            return point
        return self.take(point, actions.receive, row)._replace(received=put(point.received, row, position))

    def lease(self, point: Point, log: int, event: Event) -> Point:
        row, slot, generation, leased = event.args[:4]
        if slot in point.foreign:
            return point
        self.check_generation(point, slot, generation)
        return self.take(point, actions.lease if leased else actions.discard, row, slot)

    def release(self, point: Point, log: int, event: Event) -> Point:
        row, slot, generation = event.args[:3]
        if row == self.n_readers or slot in point.foreign:
            return point
        if point.logs[row] != log:
            raise Refused(f"reader {row} is not a member (any more)")
        self.check_generation(point, slot, generation)
        return self.take(self.take(point, actions.drop, row, slot, False), actions.release, row, slot)

    def leave(self, point: Point, log: int, event: Event) -> Point:
        return self.take(point, actions.leave, event.args[0])

    def check_generation(self, point: Point, slot: int, generation: int) -> None:
        if generation != point.generations[slot]:
            raise Refused(f"slot {slot} has generation {point.generations[slot]}, not {generation}")

    def allowed(self, point: Point) -> list[str]:
        """The steps that the model allows here."""
        instance = message_slots.model(self.config)
        return [str(step) for step, _ in instance.successors(point.state) if not step.action.environment]


def positions_with_slots(logs: Sequence[Log]) -> set[int]:
    """The ring positions of the messages that carry slots, loans apart."""
    found, loaned, message = set(), set(), set()
    for event in (event for log in logs if log.row == WRITER for event in log.events):
        subject = event.args[0]  # a slot, or the position of a send
        if event.action == "loan":
            loaned.add(subject)
        elif event.action == "claim" and event.args[3]:
            loaned.discard(event.args[3] - 1)
        elif event.action == "publish" and subject not in loaned:
            message.add(subject)
        elif event.action == "abort":
            message.clear()
        elif event.action == "send" and event.args[3]:
            if message:
                found.add(subject)
            message.clear()
    return found


RESULT_IS_SUCCESS = ("claim", "send", "read")


def matters(event: Event) -> bool:
    """A refused claim, a send without room and a look at an empty ring change nothing; nor does moving the cursor."""
    if event.action == "advance":
        return False
    return event.action not in RESULT_IS_SUCCESS or bool(event.args[3])


# ---- the search -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What the search found about one segment's run."""

    segment: str
    processes: int
    events: int
    accepted: bool
    explained: int  # events that the longest run of the model explains
    why: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


def validate(logs: Sequence[Log]) -> Verdict:
    """Whether the merged logs of one segment are a behaviour of the model."""
    sequences: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for number, log in enumerate(logs):
        for event in sorted(log.events):
            if matters(event):
                sequences[number, event.thread].append(event)
    count = sum(map(len, sequences.values()))
    verdict = partial(Verdict, logs[0].segment, len(logs), count)
    lost = [f"{log.name} lost {log.lost} events: its log was full" for log in logs if log.lost]
    if lost:
        return verdict(False, 0, tuple(lost))
    return search(Replay(logs), list(sequences), list(sequences.values()), verdict)


def search(
    replay: Replay, owners: Sequence[tuple[int, int]], sequences: Sequence[Sequence[Event]], verdict: Callable[..., Verdict]
) -> Verdict:
    """Depth first over (how far each thread has come, point)."""
    unfinished = sum(math.isinf(events[-1].after) for events in sequences)
    count = sum(map(len, sequences))
    start = ((0,) * len(sequences), replay.start())
    stack, seen = [start], {start}
    furthest, why, stuck_at = -1, [], start
    while stack:
        done, point = stack.pop()
        explained = sum(done)
        if explained == count or only_unfinished(done, sequences, count - explained, unfinished):
            return verdict(True, explained)
        following, refusals = [], []
        for thread in candidates(done, sequences):
            event = sequences[thread][done[thread]]
            try:
                after = (put(done, thread, done[thread] + 1), replay.apply(point, owners[thread][0], event))
            except Refused as refusal:
                refusals.append(f"{replay.logs[owners[thread][0]].name}: {event}: {refusal}")
            else:
                following.append(after)
        if explained > furthest:
            furthest, why, stuck_at = explained, refusals, (done, point)
        for node in reversed(following):
            if node not in seen:
                seen.add(node)
                stack.append(node)
        if len(seen) > NODES_MAX:
            return verdict(False, furthest, (f"undecided after {NODES_MAX} points", *why))
    return verdict(False, furthest, tuple(why), tuple(replay.allowed(stuck_at[1])))


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


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(directory: Path, as_json: bool) -> None:
    """Hold the logs of a real run (ARENA_TRACE=DIRECTORY) to the message-slot model."""
    verdicts = [validate(logs) for logs in read_runs(directory).values()]
    if as_json:
        click.echo(json.dumps([verdict.__dict__ for verdict in verdicts], indent=2))
    else:
        for verdict in verdicts:
            tell(verdict)
        if not verdicts:
            click.echo(f"no logs (*{SUFFIX}) in {directory}")
    if not verdicts or not all(verdict.accepted for verdict in verdicts):
        sys.exit(1)


def tell(verdict: Verdict) -> None:
    """One segment's verdict, for people."""
    about = f"segment {verdict.segment[:8]}: {verdict.events} events of {verdict.processes} ends"
    if verdict.accepted:
        click.echo(f"{about}: a behaviour of the model")
        return
    click.echo(f"{about}: NOT a behaviour of the model; {verdict.explained} events are explained, then")
    for reason in verdict.why:
        click.echo(f"  {reason}")
    if verdict.allowed:
        click.echo(f"  the model would have allowed: {', '.join(verdict.allowed)}")
