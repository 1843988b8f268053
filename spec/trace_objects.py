"""The logs of object slots as steps of their model.

A get is announce and recheck in one event. That is no coarser than the model: a hit counts from its recheck on, and a miss
changes nothing that a later step depends on, but for a word that is there for a moment and can only delay a scan. For the
same reason a scan is one event, when the slot is freed: a row that was seen clear of the evicted generation stays clear.

The writer gets objects, too, as one more row, the last one. A reader works from the claim of its entry on: its first get
stands for that, and has to come after the reclaim of the process before it. A slot that a message or a loan takes is
*foreign* here, as good as claimed until its next claim.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from arena.shm.trace import WRITER
from arena.shm.tracelog import Event, Log
from spec.model import Action, put
from spec.models import object_slots
from spec.models import object_slots_actions as actions
from spec.models.object_slots_state import (
    CURRENT,
    DRAINING,
    EMPTY,
    EVICTED,
    FILLING,
    FREE,
    LIVE,
    OLDER,
    Config,
    State,
    initial,
)
from spec.trace_search import Refused, Replay

KIND_OBJECT = 2
ACTIONS = frozenset(
    {
        "claim", "copy", "populate", "adopt", "publish_object", "abort_object", "evict", "scan", "reclaim", "get",
        "release_hold", "release",
    }
)  # fmt: skip


def has_objects(logs: Sequence[Log]) -> bool:
    """Whether a cache was there."""
    return any(event.action == "publish_object" for log in logs for event in log.events)


class Point(NamedTuple):
    """Where a run has come to."""

    state: State
    claimed: tuple[int, ...]  # the generation that each slot was last claimed with
    opened: tuple[int, ...]  # the generation of each slot's last object
    logs: tuple[int | None, ...]  # the log of each row's present reader
    gone: frozenset[int]  # the logs of readers that were reclaimed
    foreign: frozenset[int]  # slots that messages and loans use now
    lent: frozenset[tuple[int, int]]  # loans that became objects' slots, and that the writer's own tensors still hold


class ObjectReplay(Replay):
    """One method for each logged action: the model's steps that it stands for."""

    model = "object slots"

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs = logs
        self.own_row, self.n_slots = logs[0].n_readers, logs[0].n_slots
        self.config = Config(slots=self.n_slots, readers=self.own_row + 1, leases=sys.maxsize)

    def matters(self, event: Event) -> bool:
        """Of messages only the claims, which take slots, and the writer's release of what it lent."""
        if event.action in ("claim", "adopt"):
            return bool(event.args[3])
        return event.action in ACTIONS and (event.action != "release" or event.args[0] == self.own_row)

    def start(self) -> Point:
        readers = initial(self.config).readers
        nobody = tuple(reader._replace(alive=False, member=EMPTY) for reader in readers[:-1])
        state = initial(self.config)._replace(readers=(*nobody, readers[-1]))
        zeros = (0,) * self.n_slots
        return Point(state, zeros, zeros, (None,) * self.own_row, frozenset(), frozenset(), frozenset())

    def apply(self, point: Point, log: int, event: Event) -> Point:
        step = getattr(self, event.action)
        after: Point = step(point, log, event)
        return after

    def take(self, point: Point, action: Action, *args: object) -> Point:
        after = action(self.config, point.state, *args)
        if after is None:
            raise Refused(f"{action.name}{args} is not possible")
        return point._replace(state=after)

    # ---- the writer

    def claim(self, point: Point, log: int, event: Event) -> Point:
        kind, slot, generation = event.args[0], event.args[3] - 1, event.args[4]
        if slot in point.foreign:  # the model of the messages knows whether they are done with it
            point = self.take(point, actions.abort, slot)
        point = self.take(point, actions.claim, slot)
        foreign = point.foreign - {slot} if kind == KIND_OBJECT else point.foreign | {slot}
        return point._replace(claimed=put(point.claimed, slot, generation), foreign=foreign)

    def adopt(self, point: Point, log: int, event: Event) -> Point:
        """A loan becomes an object's slot, filled; one that was claimed for an object is its own already."""
        slot = event.args[0]
        if slot not in point.foreign:
            self.check_filling(point, slot)
            return point
        point = self.take(point, actions.copy, slot)
        return point._replace(foreign=point.foreign - {slot}, lent=point.lent | {(slot, point.claimed[slot])})

    def copy(self, point: Point, log: int, event: Event) -> Point:
        """An object comes in several pieces; the model's is the first of them."""
        slot, error = event.args[0], event.args[3]
        if slot in point.foreign or error:
            return point
        self.check_filling(point, slot)
        return point if point.state.slots[slot].complete else self.take(point, actions.copy, slot)

    populate = copy  # and then it is filled in place

    def publish_object(self, point: Point, log: int, event: Event) -> Point:
        slot, generation = event.args[:2]
        if slot in point.foreign:
            raise Refused(f"slot {slot} is a message's")
        if generation <= max(point.opened[slot], point.claimed[slot]):
            raise Refused(f"generation {generation} of slot {slot} is not new")
        return self.take(point, actions.publish_object, slot)._replace(opened=put(point.opened, slot, generation))

    def abort_object(self, point: Point, log: int, event: Event) -> Point:
        return self.take(point, actions.abort, event.args[0])

    def evict(self, point: Point, log: int, event: Event) -> Point:
        self.check_generation(point, *event.args[:2])
        return self.take(point, actions.evict, event.args[0])

    def scan(self, point: Point, log: int, event: Event) -> Point:
        """The slot is free: every row has been seen without the evicted generation, or nobody was ever given one."""
        slot, generation = event.args[:2]
        if any(lent == slot for lent, _ in point.lent):
            raise Refused(f"the writer's own tensor still holds slot {slot}")
        if point.state.slots[slot].owner == FILLING:  # a loan, of a put that was given up
            return self.take(point, actions.abort, slot)
        self.check_generation(point, slot, generation)
        for row in range(self.own_row + 1):
            point = self.take(point, actions.scan, row, slot)
        return point

    def reclaim(self, point: Point, log: int, event: Event) -> Point:
        """Of a dead reader, or of one that has left and holds nothing."""
        row = event.args[0]
        reader = point.state.readers[row]
        if reader.member == EMPTY:
            return point
        if reader.alive:
            point = self.take(point, actions.reader_death, row)
        gone = {number for number in (point.logs[row],) if number is not None}
        return self.take(point, actions.reclaim, row)._replace(gone=point.gone | gone)

    # ---- the readers

    def get(self, point: Point, log: int, event: Event) -> Point:
        row, slot, generation, is_hit = event.args[:4]
        if math.isinf(event.after):  # its process was killed in it: at most a word is left, for reclaim to clear
            return point
        point = self.with_reader(point, log, row)
        label = self.label(point, slot, generation)
        hold = point.state.readers[row].holds[slot]
        if hold.counted and (hold.word == label) == bool(is_hit):
            if not is_hit and label == CURRENT:
                raise Refused("the get of a live handle has missed")
            return self.take(point, actions.share, row, slot, label) if is_hit else point
        if hold.counted or (label == CURRENT) != bool(is_hit):
            raise Refused(f"a get of the {label} generation {generation} is a {'hit' if is_hit else 'miss'}")
        point = self.take(point, actions.announce, row, slot, label)
        return self.flushed(self.take(point, actions.recheck, row, slot, label), row, slot)

    def with_reader(self, point: Point, log: int, row: int) -> Point:
        """The process of a log works on its row; it comes with its first get."""
        if log in point.gone:
            raise Refused(f"reader {row} has been reclaimed")
        if self.logs[log].row == WRITER or point.logs[row] == log:
            return point
        return self.take(point, actions.admit, row)._replace(logs=put(point.logs, row, log))

    def release_hold(self, point: Point, log: int, event: Event) -> Point:
        row, slot, generation = event.args[:3]
        point = self.with_reader(point, log, row)
        label = self.label(point, slot, generation)
        point = self.take(point, actions.drop, row, slot, label, False)
        return self.flushed(self.take(point, actions.release_hold, row, slot, label), row, slot)

    def flushed(self, point: Point, row: int, slot: int) -> Point:
        """The event's stamp comes after its store, so whoever sees the stamp sees the word."""
        hold = point.state.readers[row].holds[slot]
        return point if hold.visible == hold.word else self.take(point, actions.flush_hold, row, slot)

    def release(self, point: Point, log: int, event: Event) -> Point:
        """The writer's own tensor over a loan is gone."""
        return point._replace(lent=point.lent - {(event.args[1], event.args[2])})

    # ---- generations

    def label(self, point: Point, slot: int, generation: int) -> str:
        """What the model calls a generation of which there is a handle."""
        record = point.state.slots[slot]
        if generation > point.opened[slot]:
            raise Refused(f"generation {generation} of slot {slot} has never been published")
        if generation < point.opened[slot]:
            return OLDER
        if record.owner == LIVE:
            return CURRENT
        return EVICTED if record.owner == DRAINING or (record.owner == FREE and record.complete) else OLDER

    def check_generation(self, point: Point, slot: int, generation: int) -> None:
        if generation != point.opened[slot]:
            raise Refused(f"the object in slot {slot} has generation {point.opened[slot]}, not {generation}")

    def check_filling(self, point: Point, slot: int) -> None:
        if point.state.slots[slot].owner != FILLING:
            raise Refused(f"slot {slot} is not being filled")

    def allowed(self, point: Point) -> list[str]:
        instance = object_slots.model(self.config)
        return [str(step) for step, _ in instance.successors(point.state) if not step.action.environment]
