"""An exception, as of a signal handler, at one named place of the writer's bookkeeping: nothing is freed twice or too early.

One process and anonymous memory; the place is made to raise, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slots_support import claimed, lent

from arena.protocol.objects import ObjectReader, ObjectWriter
from arena.protocol.ring import RingWriter
from arena.protocol.slots import Grant, SlotWriter, State
from arena.shm.layout import PAGE
from arena.shm.native import ffi, lib


class Cut(dict[int, Any]):
    """A dictionary that nothing can be taken out of."""

    def pop(self, *key: object) -> Any:
        raise KeyboardInterrupt


def send(writer: SlotWriter, slot: int) -> None:
    writer.publish([slot], 0)  # nobody is required: it is free at the next look
    writer.enqueue([slot], 0)


def lend_and_drop(writer: SlotWriter, slot: int) -> None:
    writer.loan(slot)
    writer.required[slot] = 0


@pytest.mark.parametrize(("where", "busy"), [("_sent", send), ("_loans", lend_and_drop)])
def test_a_slot_that_was_half_freed_is_free_once(
    writer: SlotWriter, where: str, busy: Callable[[SlotWriter, int], None]
) -> None:
    slot, other = claimed(writer), claimed(writer)
    busy(writer, slot)
    setattr(writer, where, Cut(getattr(writer, where)))
    with pytest.raises(KeyboardInterrupt):
        writer.free(slot)
    assert writer.usage() == (3, PAGE)
    assert writer.collect() == 0
    assert writer.usage() == (3, PAGE)
    assert sorted([other, *(claimed(writer) for _ in range(3))]) == [0, 1, 2, 3]


def test_no_process_is_watched_while_the_list_of_them_changes(segment: Any) -> None:
    """C looks at the list from other calls, and it is Python that keeps its memory."""
    writer, steps = RingWriter(segment), []

    class Recorder:
        def __setattr__(self, name: str, value: Any) -> None:
            steps.append((name, value))

    before = writer._ring
    writer._ring = Recorder()  # type: ignore[assignment]
    writer.watch([5, 6])
    assert [name for name, _ in steps] == ["n_pidfds", "pidfds", "n_pidfds"]
    assert (steps[0][1], list(steps[1][1]), steps[2][1]) == (0, [5, 6], 2)
    assert writer._pidfds is steps[1][1]
    writer._ring = before


# ---- objects ----------------------------------------------------------------------------------------------------------


def taken(objects: ObjectWriter) -> int:
    slot = objects.claim(PAGE)
    assert isinstance(slot, int)
    return slot


def dropped(slots: SlotWriter, slot: int, generation: int) -> None:
    """The writer's own tensor over a loan is gone."""
    lib.arena_slot_release(slots._mapping, slots.loan_row, slot, generation)


def test_a_claimed_slot_is_given_up_at_once(slots: SlotWriter, objects: ObjectWriter) -> None:
    objects.give_up(taken(objects))
    assert slots.states[0] is State.FREE
    slot = claimed(slots)
    objects.give_up(slot)  # cut short before it became an object's
    assert (slots.states[0], objects.n_slots) == (State.FREE, 0)


def test_what_is_open_is_evicted_when_it_is_given_up(segment: Any, slots: SlotWriter, objects: ObjectWriter) -> None:
    grant = objects.publish_object(taken(objects))
    reader = ObjectReader(segment, 1)
    assert reader.row == 1
    lease = reader.lease(grant)
    assert objects.is_open(grant.slot)
    objects.give_up(grant.slot)
    assert not objects.is_open(grant.slot)
    objects.give_up(grant.slot)  # again, as an undoing that was cut short
    assert (objects.scan(), slots.states[grant.slot]) == (0, State.OBJECT)
    lease.drop()
    assert (objects.scan(), slots.states[grant.slot]) == (1, State.FREE)
    ffi.release(reader._holds)


def test_a_loan_that_was_taken_over_is_given_up_when_its_tensor_is_gone(slots: SlotWriter, objects: ObjectWriter) -> None:
    slot = lent(slots)
    generation = slots.generations[slot]
    assert objects.adopt(slot)
    objects.give_up(slot)
    assert objects._draining[slot].generation + 1 == slots.generations[slot]
    assert (objects.scan(), slots.states[slot]) == (0, State.OBJECT)
    dropped(slots, slot, generation)
    assert (objects.scan(), slots.states[slot]) == (1, State.FREE)


def test_a_slot_that_was_not_taken_is_not_given_up(slots: SlotWriter, objects: ObjectWriter) -> None:
    slot = lent(slots)
    objects.give_up(slot)
    assert slots.states[slot] is State.LOANED
    objects.give_up(1)
    assert slots.usage() == (3, PAGE)


def test_a_slot_whose_draining_was_cut_short_and_that_is_another_objects_is_given_up(
    slots: SlotWriter, objects: ObjectWriter
) -> None:
    grant = objects.publish_object(taken(objects))
    objects.evict(grant.slot)
    slots.free(grant.slot)  # a scan that was cut short behind that
    assert taken(objects) == grant.slot
    objects.give_up(grant.slot)
    assert slots.states[grant.slot] is State.FREE


@pytest.mark.parametrize("is_taken", [False, True], ids=["free", "another object's"])
def test_a_scan_that_was_cut_short_frees_nothing_twice(slots: SlotWriter, objects: ObjectWriter, is_taken: bool) -> None:
    grant = objects.publish_object(taken(objects))
    objects.evict(grant.slot)
    slots.free(grant.slot)
    if is_taken:
        assert taken(objects) == grant.slot
    before = slots.states[grant.slot]
    objects.scan()
    assert slots.states[grant.slot] is before
    assert slots.usage() == ((3, PAGE) if is_taken else (4, 0))
    assert len(set(slots._free)) == len(slots._free)


def test_a_loan_that_was_nearly_taken_over_leaves_its_slot_nothing_to_wait_for(
    slots: SlotWriter, objects: ObjectWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(slot: int) -> bool:
        raise KeyboardInterrupt

    slot = lent(slots)
    with monkeypatch.context() as patch:
        patch.setattr(slots, "adopt", cut)
        with pytest.raises(KeyboardInterrupt):
            objects.adopt(slot)
    dropped(slots, slot, slots.generations[slot])
    assert slots.collect() == 1
    assert lent(slots) == slot
    dropped(slots, slot, slots.generations[slot])
    assert slots.collect() == 1
    grant = objects.publish_object(taken(objects))
    assert grant.slot == slot
    objects.evict(slot)
    assert objects.scan() == 1


def test_a_loan_is_known_by_its_generation(slots: SlotWriter, objects: ObjectWriter) -> None:
    slot = lent(slots)
    lent_as = slots.grant(slot)
    assert objects.is_loan(lent_as)
    assert not objects.is_loan(Grant(slot, lent_as.generation - 1))
    slots.publish([slot], 0)
    assert slots.grant(slot) == lent_as
    assert not objects.is_loan(lent_as)
    slots.abort([slot])


def test_an_evicted_objects_fences_are_kept_once(segment: Any, slots: SlotWriter) -> None:
    objects = ObjectWriter(segment, slots, quarantine_s=1e9)
    grant = objects.publish_object(taken(objects))
    reader = ObjectReader(segment, 0)
    lease = reader.lease(grant)
    lib.arena_member_pin(segment.mapping, 0)
    slots.reclaim(0)
    objects.evict(grant.slot)
    assert objects._fences == {}
    assert len(objects._draining[grant.slot].fences) == 1
    lease.drop()
    ffi.release(reader._holds)
