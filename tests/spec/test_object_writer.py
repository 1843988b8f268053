"""What the writer's and the reader's halves of the object slots owe the cache beyond the model: loans, quarantines, errors.

One process and anonymous memory.
"""

from __future__ import annotations

from typing import Any

import pytest
from lockstep_slots import AnonymousSegment
from slots_support import claimed, lent, release

from arena.errors import CorruptError, StaleSlotError
from arena.message.objects import ObjectDecoder
from arena.protocol import objects as code
from arena.protocol.objects import ObjectReader, ObjectWriter
from arena.protocol.slots import Grant, Refusal, SlotWriter, State
from arena.shm.layout import PAGE
from arena.shm.native import ffi, lib


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the objects see; its element may be changed."""
    now = [100.0]
    monkeypatch.setattr(code.time, "monotonic", lambda: now[0])
    return now


def put(objects: ObjectWriter, nbytes: int = PAGE) -> Grant:
    slot = objects.claim(nbytes)
    assert not isinstance(slot, Refusal)
    return objects.publish_object(slot)


def shared_generation(segment: AnonymousSegment, slot: int) -> int:
    at = segment.layout.slots_offset + 32 * slot
    return int.from_bytes(bytes(ffi.buffer(segment.mapping.control + at, 8)), "little")


def test_an_object_is_open_from_its_publication_to_its_eviction(
    segment: Any, slots: SlotWriter, objects: ObjectWriter
) -> None:
    slot = objects.claim(PAGE)
    assert isinstance(slot, int)
    assert shared_generation(segment, slot) % 2 == 1
    assert slots.states[slot] is State.OBJECT
    to_be = objects.grant_to_be(slot)
    assert objects.publish_object(slot) == to_be == Grant(slot, shared_generation(segment, slot))
    assert to_be.generation % 2 == 0
    assert slots.generations[slot] == to_be.generation
    assert objects.n_slots == 1
    assert objects.draining_bytes == 0
    objects.evict(slot)
    assert shared_generation(segment, slot) == slots.generations[slot] == to_be.generation + 1
    assert objects.n_slots == 1
    assert objects.draining_bytes == PAGE
    assert objects.scan() == 1
    assert objects.n_slots == 0
    assert slots.usage() == (4, 0)
    assert put(objects).generation > to_be.generation


def test_no_room_is_a_refusal(slots: SlotWriter, objects: ObjectWriter) -> None:
    assert objects.claim(8 * PAGE + 1) is Refusal.OVERSIZE
    assert slots.usage() == (4, 0)


def test_an_aborted_put_leaves_nothing(slots: SlotWriter, objects: ObjectWriter) -> None:
    slot = objects.claim(PAGE)
    assert isinstance(slot, int)
    objects.abort(slot)
    assert slots.usage() == (4, 0)
    assert objects.n_slots == 0


@pytest.mark.parametrize("row", [0, 1, 2], ids=["first reader", "last reader", "the writer's row"])
def test_what_any_row_holds_is_not_reused(segment: Any, slots: SlotWriter, objects: ObjectWriter, row: int) -> None:
    grant = put(objects)
    assert not objects.is_held(grant.slot)
    reader = ObjectReader(segment, row)
    lease = reader.lease(grant)
    assert objects.is_held(grant.slot)
    objects.evict(grant.slot)
    assert objects.scan() == 0
    assert slots.usage() == (3, PAGE)
    lease.drop()
    assert slots.collect() == 0  # an object's slot is none of the released ones
    assert slots.states[grant.slot] is State.FREE  # but whoever collects looks at it, too
    assert slots.usage() == (4, 0)
    ffi.release(reader._holds)


def test_what_is_counted_looks_at_what_drains(slots: SlotWriter, objects: ObjectWriter) -> None:
    objects.evict(put(objects).slot)
    assert slots.usage() == (4, 0)


@pytest.mark.parametrize("earlier", [0, 1], ids=["odd generation", "even generation"])
@pytest.mark.parametrize("order", [("evict", "drop"), ("drop", "evict")])
def test_a_loan_that_became_an_object_is_free_when_its_tensor_is_gone_too(
    slots: SlotWriter, objects: ObjectWriter, order: tuple[str, str], earlier: int
) -> None:
    for _ in range(earlier):
        slots.free(lent(slots))
    slot = claimed(slots)
    own = slots.own_lease(slot)
    slots.loan(slot)
    to_be = objects.grant_to_be(slot)
    assert to_be.generation % 2 == 0
    assert objects.adopt(slot)
    assert not objects.adopt(slot)
    assert slots.states[slot] is State.OBJECT
    assert slots.generations[slot] % 2 == 1
    assert objects.grant_to_be(slot) == to_be == objects.publish_object(slot)
    for step in order:
        assert objects.scan() == 0
        if step == "evict":
            objects.evict(slot)
        else:
            own.drop()
    assert objects.scan() == 1
    assert slots.usage() == (4, 0)
    other = lent(slots)  # another loan of the slot, which is no object
    release(slots, slots.loan_row, other)
    assert slots.collect() == 1
    again = put(objects)  # and then an object that was none
    assert slot == other == again.slot
    objects.evict(again.slot)
    assert objects.scan() == 1


def test_no_loan_no_object(slots: SlotWriter, objects: ObjectWriter) -> None:
    slot = claimed(slots)
    slots.publish([slot], 0b11)
    generation = slots.generations[slot]
    assert not objects.adopt(slot)
    assert slots.generations[slot] == generation
    slots.abort([slot])


# ---- quarantine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["death", "eviction"])
def test_what_a_pinned_dead_reader_held_is_kept_back(segment: Any, clock: list[float], first: str) -> None:
    slots = SlotWriter(segment)
    objects = ObjectWriter(segment, slots, quarantine_s=2.0)
    held, other = put(objects), put(objects)
    reader = ObjectReader(segment, 0)
    lease = reader.lease(held)
    lib.arena_member_pin(segment.mapping, 0)
    if first == "eviction":
        objects.evict(held.slot)
    slots.reclaim(0)
    if first == "death":
        assert objects.is_held(held.slot)
        assert not objects.is_held(other.slot)
        objects.evict(held.slot)
    objects.evict(other.slot)
    assert objects.scan() == 1
    clock[0] = 101.9
    assert objects.scan() == 0
    clock[0] = 102.0
    assert objects.scan() == 1
    assert slots.usage() == (4, 0)
    lease.drop()
    ffi.release(reader._holds)


def test_a_fence_is_of_one_generation(segment: Any, clock: list[float]) -> None:
    """Evicted while it was open and fenced, the slot's next object is as free as any."""
    slots = SlotWriter(segment)
    objects = ObjectWriter(segment, slots, quarantine_s=2.0)
    grant = put(objects)
    reader = ObjectReader(segment, 0)
    lease = reader.lease(grant)
    lib.arena_member_pin(segment.mapping, 0)
    slots.reclaim(0)
    assert objects.is_held(grant.slot)
    objects.evict(grant.slot)
    clock[0] = 103.0
    assert objects.scan() == 1
    again = put(objects)
    assert again.slot == grant.slot
    assert not objects.is_held(again.slot)
    objects.evict(again.slot)
    assert objects.scan() == 1
    lease.drop()
    ffi.release(reader._holds)


@pytest.mark.parametrize(("quarantine_s", "is_pinned"), [(0.0, True), (2.0, False)])
def test_without_a_device_or_a_time_nothing_is_kept_back(
    segment: Any, clock: list[float], quarantine_s: float, is_pinned: bool
) -> None:
    slots = SlotWriter(segment)
    objects = ObjectWriter(segment, slots, quarantine_s=quarantine_s)
    grant = put(objects)
    reader = ObjectReader(segment, 0)
    lease = reader.lease(grant)
    if is_pinned:
        lib.arena_member_pin(segment.mapping, 0)
    slots.reclaim(0)
    assert not objects.is_held(grant.slot)
    objects.evict(grant.slot)
    assert objects.scan() == 1
    lease.drop()
    ffi.release(reader._holds)


def test_a_hold_that_is_no_objects_is_fenced_nowhere(segment: Any, clock: list[float]) -> None:
    """A reader that died between announce and recheck of an older generation held nothing."""
    slots = SlotWriter(segment)
    objects = ObjectWriter(segment, slots, quarantine_s=2.0)
    older, draining = put(objects), put(objects)
    objects.evict(draining.slot)
    reader = ObjectReader(segment, 0)
    for slot in (older.slot, draining.slot):
        assert reader.announce(Grant(slot, 100)) == lib.ARENA_EMPTY
    lib.arena_member_pin(segment.mapping, 0)
    slots.reclaim(0)
    assert not objects.is_held(older.slot)
    assert objects.scan() == 1
    ffi.release(reader._holds)


# ---- the reader's half ------------------------------------------------------------------------------------------------


def test_what_cannot_be_leased_says_why_and_holds_nothing(segment: Any, slots: SlotWriter, objects: ObjectWriter) -> None:
    grant, reader = put(objects), ObjectReader(segment, 0)
    with pytest.raises(StaleSlotError, match=f"generation {grant.generation + 2}"):
        reader.lease(Grant(grant.slot, grant.generation + 2))
    for impossible in (Grant(4, 2), Grant(grant.slot, 1), Grant(grant.slot, 0)):
        with pytest.raises(CorruptError, match="cannot be an object's"):
            reader.lease(impossible)
    at = segment.layout.slots_offset + 32 * grant.slot + 8
    segment.mapping.control[at] = b"\x01"  # its offset
    with pytest.raises(CorruptError, match="its extent inside"):
        reader.lease(grant)
    assert slots.held_by(0) == []
    ffi.release(reader._holds)


def test_no_memory_is_said(segment: Any, objects: ObjectWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        arena_holds_open = staticmethod(lambda *arguments: ffi.NULL)

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

    grant, reader = put(objects), ObjectReader(segment, 0)
    monkeypatch.setattr(code, "lib", Short())
    with pytest.raises(MemoryError, match="holds"):
        ObjectReader(segment, 1)
    monkeypatch.setattr(code.capsules, "lease_of_object", lambda *a: a[3](lib.ARENA_OK, *a[1:3]))
    with pytest.raises(MemoryError, match="grant"):
        reader.lease(grant)
    ffi.release(reader._holds)


def test_a_lease_shows_the_bytes_and_counts(segment: Any, slots: SlotWriter, objects: ObjectWriter) -> None:
    put(objects)
    slot = objects.claim(8)
    assert isinstance(slot, int)
    slots.copy(slot, ffi.from_buffer(b"12345678"), 1)
    grant, reader = objects.publish_object(slot), ObjectReader(segment, 0)
    leases = [reader.lease(grant) for _ in range(2)]
    assert [bytes(ffi.buffer(ffi.cast("char *", lease.data), lease.nbytes)) for lease in leases] == [b"12345678"] * 2
    leases[0].drop()
    assert slots.held_by(0) == [grant]
    leases[1].drop()
    assert slots.held_by(0) == []
    ffi.release(reader._holds)


def test_a_lease_that_nobody_has_holds_nothing(segment: Any, slots: SlotWriter, objects: ObjectWriter) -> None:
    """As where a signal handler's exception comes between the native call and whoever wants its result."""
    grant, reader = put(objects), ObjectReader(segment, 0)
    reader.lease(grant)
    assert slots.held_by(0) == []
    ffi.release(reader._holds)


def test_an_extent_too_short_for_an_object_is_not_read(segment: Any, objects: ObjectWriter) -> None:
    """Sealed as the writer seals it, at the very end of the memory."""
    grant = put(objects)
    lib.arena_slot_claim(segment.mapping, grant.slot, grant.generation, segment.layout.data_bytes, 0, 0)
    reader = ObjectReader(segment, 0)
    with pytest.raises(CorruptError, match="an extent of 0 bytes holds no object"):
        ObjectDecoder(reader, readonly=False).get(grant)
    assert lib.arena_grants_live() == 0
    ffi.release(reader._holds)
