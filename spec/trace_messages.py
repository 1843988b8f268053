"""The logs of message slots as steps of their model; a writer's loans are rows of it, a cache's objects are not.

A slot that a cached object takes is *foreign* here: free when it was taken, and the messages' again with their next claim.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from arena.shm.trace import WRITER
from arena.shm.tracelog import Event, Log
from spec.model import Action, put
from spec.models import message_slots, message_slots_loans
from spec.models import message_slots_actions as actions
from spec.models.message_slots_state import (
    COPY,
    EMPTY,
    FREE,
    IDLE,
    IN_VIEW,
    LENDER,
    LOANED,
    NO_SLOT,
    PUBLISH,
    UNUSED,
    Config,
    Slot,
    State,
    initial,
)
from spec.trace_search import Refused, Replay

KIND_MESSAGE = 1
ACTIONS = frozenset(
    {
        "claim", "copy", "populate", "loan", "adopt", "publish", "send", "abort", "admit", "reclaim", "drop_reader",
        "read", "lease", "release", "leave",
    }
)  # fmt: skip
RESULT_IS_SUCCESS = ("claim", "send", "read")


def is_cut_short(event: Event) -> bool:
    """A send that its process did not live to end."""
    return event.action == "send" and math.isinf(event.after)


class Point(NamedTuple):
    """Where a run has come to."""

    state: State
    generations: tuple[int, ...]
    logs: tuple[int | None, ...]  # the log of each row's present reader
    received: tuple[int, ...]  # the ring position of each row's last message
    foreign: frozenset[int]  # slots that objects use now
    published: int = 0  # how many slots of the message under way the code has published


class MessageReplay(Replay):
    """One method for each logged action: the model's steps that it stands for."""

    model = "message slots"

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs = logs
        self.n_readers, self.n_slots = logs[0].n_readers, logs[0].n_slots
        self.config = Config(
            slots=self.n_slots, readers=self.n_readers, tensors=self.n_slots, queue=sys.maxsize, leave=True, loans=True
        )
        self.with_slots = positions_with_slots(logs)

    def matters(self, event: Event) -> bool:
        """A refused claim, a send without room and a look at an empty ring change nothing; nor does moving the cursor.

        Whether the send that a killed writer was in the middle of had room, the readers know.
        """
        if event.action not in ACTIONS:
            return False
        return event.action not in RESULT_IS_SUCCESS or bool(event.args[3]) or is_cut_short(event)

    def start(self) -> Point:
        none = self.n_readers
        nobody = initial(self.config)._replace(alive=(False,) * none + (True,), members=(EMPTY,) * none + (LENDER,))
        return Point(nobody, (0,) * self.n_slots, (None,) * self.n_readers, (-1,) * self.n_readers, frozenset())

    def apply(self, point: Point, log: int, event: Event) -> Point:
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
        nobody = (False,) * self.config.rows
        lent = put(state.refs[self.n_readers], slot, UNUSED)
        state = state._replace(
            slots=put(state.slots, slot, Slot(FREE, False, nobody, nobody)), refs=put(state.refs, self.n_readers, lent)
        )
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
        """A claimed slot becomes a loan; or it was one, of a message that is given up."""
        slot = event.args[0]
        if point.state.slots[slot].owner == LOANED:
            return point
        if point.state.current != slot:
            raise Refused(f"slot {slot} was not claimed for a loan")
        return self.take(point, message_slots_loans.loan)

    def adopt(self, point: Point, log: int, event: Event) -> Point:
        """A loan becomes an object's slot, which a slot that was claimed for an object is already."""
        slot, is_adopted = event.args[0], event.args[3]
        if slot in point.foreign or not is_adopted:
            return point
        if point.state.slots[slot].owner != LOANED:
            raise Refused(f"slot {slot} is no loan")
        return self.without(point, slot)._replace(foreign=point.foreign | {slot})

    def publish(self, point: Point, log: int, event: Event) -> Point:
        slot, members = event.args[0], event.args[3]
        point = self.finished(point)
        if point.state.slots[slot].owner == LOANED:
            point = self.take(point, message_slots_loans.publish_loan, slot)
        if slot not in point.state.pending:
            raise Refused(f"slot {slot} is not of the message under way")
        rows = point.state.slots[slot].required[: self.n_readers]
        required = sum(1 << row for row, is_required in enumerate(rows) if is_required)
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
        return self.take(point, message_slots_loans.abort_with_loans) if state.pending or state.current != NO_SLOT else point

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
        self.check_generation(point, slot, generation)
        return self.take(point, actions.lease if leased else actions.discard, row, slot)

    def release(self, point: Point, log: int, event: Event) -> Point:
        row, slot, generation = event.args[:3]
        if row == self.n_readers:
            if slot in point.foreign:  # the writer's own tensor over a loan that has become an object's
                return point
            self.check_generation(point, slot, generation)
            return self.take(point, message_slots_loans.release_loan, slot)
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
        instance = message_slots.model(self.config)
        return [str(step) for step, _ in instance.successors(point.state) if not step.action.environment]


def positions_with_slots(logs: Sequence[Log]) -> set[int]:
    """The ring positions of the messages that carry slots."""
    found, message = set(), set()
    for event in (event for log in logs if log.row == WRITER for event in log.events):
        subject = event.args[0]  # a slot, or the position of a send
        if event.action == "publish":
            message.add(subject)
        elif event.action == "abort":
            message.clear()
        elif event.action == "send" and (event.args[3] or is_cut_short(event)):
            if message:
                found.add(subject)
            message.clear()
    return found
