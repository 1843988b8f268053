"""Every property of every model can fail: a deliberate fault of the model breaks it, or one that is made here.

A property that nothing breaks may say nothing. The faults here are blunt; those that teach something are the variants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spec import models
from spec.checker import check
from spec.model import Action, Model, State, action
from spec.models import membership, message_slots, object_slots, rendezvous
from spec.models import membership_actions as entries
from spec.models import membership_state as ranks
from spec.models import object_slots_actions as objects
from spec.models import object_slots_state as table
from spec.models import rendezvous_meeting as meeting
from spec.models import rendezvous_steps as steps
from spec.models.rendezvous_state import Record, Step, content_of, move

PROTOCOLS = ("message_slots", "object_slots", "ring", "membership", "rendezvous", "rendezvous_meeting")


@action("writer", over=("slot",), name="publish_object")
def publish_unfilled(config: Any, state: State, slot: int) -> State | None:
    """The generation opens as soon as the slot is claimed."""
    record = state.slots[slot]
    return table.with_slot(state, slot, record._replace(owner=table.LIVE)) if record.owner == table.FILLING else None


@action("reader {rank}", over=("rank",), name="recheck_admission")
def work_at_once(config: Any, state: State, rank: int) -> State | None:
    """Whoever has joined works, whatever its entry says."""
    if state.ranks[rank].step != ranks.ReaderStep.RECHECK:
        return None
    return ranks.with_rank(state, rank, step=ranks.ReaderStep.RUNNING, parked=False)


@action("process {process}", over=("process",), name="find_live_member")
def find_anybody(config: Any, state: State, process: int) -> State | None:
    """Attach through a live member of whatever instance."""
    content = content_of(state, process)
    alive = config.signs_of_life(state, content)
    if state.processes[process].step != Step.READ or not alive or not isinstance(content, Record):
        return None
    return move(state, process, Step.ATTACH, memo=alive[0])


@action("process {process}", over=("process",), name="unlink_entry")
def keep_entry(config: Any, state: State, process: int) -> State | None:
    """The last member leaves the name."""
    return move(state, process, Step.FINISH) if state.processes[process].step == Step.UNLINK else None


@action("process {process}", over=("process",), name="attach_memory")
def read_again(config: Any, state: State, process: int) -> State | None:
    """The live member's descriptor never opens, and the records are read once more."""
    return move(state, process, Step.READ, memo=None) if state.processes[process].step == Step.ATTACH else None


def of_rendezvous(instances: str, right: Any, wrong: Any) -> Model:
    return rendezvous.model(rendezvous.Config(instances, changed=((right, wrong),)))


def of_meeting(without: Action) -> Model:
    right = meeting.model(meeting.Config("AAA"))
    return replace(right, actions=tuple(each for each in right.actions if each is not without))


BROKEN = {
    ("message_slots", "D"): message_slots.model(message_slots.Config(1, 1, 1, without=("release",))),
    ("object_slots", "S2"): object_slots.model(object_slots.Config(changed=((objects.publish_object, publish_unfilled),))),
    ("object_slots", "D"): object_slots.model(object_slots.Config(changed=((objects.scan, None),))),
    ("membership", "A"): membership.model(membership.Config(changed=((entries.recheck_admission, work_at_once),))),
    ("rendezvous", "SH"): of_rendezvous("AB", steps.find_live_member, find_anybody),
    ("rendezvous", "LF"): of_rendezvous("AA", steps.unlink_entry, keep_entry),
    ("rendezvous", "D"): of_rendezvous("AA", steps.attach_memory, read_again),
    ("rendezvous_meeting", "D"): of_meeting(without=meeting.pass_barrier),
}


def properties(model: Model) -> set[str]:
    """The names of all that must hold of a model."""
    drain = {model.drain.name} if model.drain else set()
    return {each.name for each in (*model.invariants, *model.deadlocks)} | drain


@pytest.mark.parametrize(("name", "broken"), BROKEN)
def test_a_blunt_fault_breaks_it(name: str, broken: str) -> None:
    violation = check(BROKEN[name, broken]).violation
    assert violation is not None
    assert violation.name == broken


@pytest.mark.parametrize("name", models.available())
def test_each_property_is_broken_by_a_fault(name: str) -> None:
    module = models.load(name)
    by_variants = {variant.breaks for variant in module.VARIANTS.values()} - {None}
    by_faults = {broken for model, broken in BROKEN if model == name}
    assert by_variants | by_faults == properties(module.model(module.Config()))
    assert not by_variants & by_faults


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_says_what_must_come_to_rest_and_what_must_occur(name: str) -> None:
    module = models.load(name)
    model = module.model(module.Config())
    assert model.invariants
    assert model.drain is not None
    assert model.sometimes
    assert not check(replace(model, invariants=(), deadlocks=(), drain=None), limit=50_000).never_seen
