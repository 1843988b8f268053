"""What readers that leave, die or are pinned owe a slot's writer, and when it is excused.

One process and anonymous memory; a reader is two native calls.
"""

from __future__ import annotations

from typing import Any

import pytest
from slots_support import BOTH, is_as_new, release, sent

from arena.protocol import slots
from arena.protocol.slots import SlotWriter, State
from arena.shm.layout import PAGE
from arena.shm.native import ffi, lib


def test_a_reader_that_left_owes_what_it_read_and_no_more(writer: SlotWriter) -> None:
    read, unread = sent(writer, 0), sent(writer, 64)
    writer.excuse_unread(0, 64)
    assert [writer.required[slot] for slot in (read, unread)] == [BOTH, 0b10]
    assert writer.owes(0)
    assert writer.owes(1)
    for row, slot in ((0, read), (1, read), (1, unread)):
        release(writer, row, slot)
    writer.collect()
    assert not writer.owes(0)
    assert not writer.owes(1)
    assert is_as_new(writer)


def test_who_is_not_required_owes_nothing(writer: SlotWriter) -> None:
    sent(writer, members=0b10)
    assert not writer.owes(0)
    assert writer.owes(1)


def test_a_hold_is_owed_until_it_is_gone(writer: SlotWriter) -> None:
    holds = ffi.gc(lib.arena_holds_open(writer._mapping, 1, False), lib.arena_holds_release)
    assert lib.arena_object_announce(holds, 2, 6) == lib.ARENA_EMPTY
    assert lib.arena_object_announce(holds, 3, 4) == lib.ARENA_EMPTY
    assert writer.held_by(1) == [(2, 6), (3, 4)]
    assert writer.held_by(0) == []
    assert writer.owes(1)
    assert not writer.owes(0)
    for slot in (2, 3):
        lib.arena_object_release_hold(holds, slot)
    assert not writer.owes(1)
    holds = None


def test_the_dead_owe_nothing_and_leave_nothing_to_their_successor(writer: SlotWriter) -> None:
    """Its words are zeroed, and that it was pinned is forgotten."""
    told: list[int] = []
    writer.on_reclaim.append(told.append)
    first, second = sent(writer), sent(writer)
    release(writer, 0, first)
    holds = ffi.gc(lib.arena_holds_open(writer._mapping, 0, False), lib.arena_holds_release)
    lib.arena_object_announce(holds, 3, 2)
    lib.arena_member_pin(writer._mapping, 0)
    lib.arena_member_pin(writer._mapping, 1)
    writer.reclaim(0)
    assert told == [0]
    assert [writer.required[slot] for slot in (first, second)] == [0b10, 0b10]
    assert not lib.arena_member_is_pinned(writer._mapping, 0)
    assert lib.arena_member_is_pinned(writer._mapping, 1)
    assert writer.held_by(0) == []
    done = ffi.new("uint64_t[]", [1] * 4)
    is_free, impossible = ffi.new("uint8_t[4]"), ffi.new("uint64_t *")
    assert lib.arena_slots_free(writer._mapping, [0, 1, 2, 3], 4, [0] * 4, done, is_free, impossible) == 4
    assert impossible[0] == 0
    holds = None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the slots see; its element may be changed."""
    now = [100.0]
    monkeypatch.setattr(slots.time, "monotonic", lambda: now[0])
    return now


def test_what_a_pinned_dead_reader_owed_is_kept_back_until_the_quarantine_ends(segment: Any, clock: list[float]) -> None:
    writer = SlotWriter(segment, quarantine_s=2.0)
    owed, given_back, other = sent(writer), sent(writer), sent(writer, members=0b10)
    release(writer, 0, given_back)
    for slot in (owed, given_back, other):
        release(writer, 1, slot)
    lib.arena_member_pin(segment.mapping, 0)
    writer.reclaim(0)
    assert writer.quarantined == 1
    assert writer.usage() == (3, PAGE)
    assert writer.collect() == 2
    clock[0] += 1.9
    assert writer.collect() == 0
    assert writer.quarantined == 1
    clock[0] = 102.0
    assert writer.quarantined == 0
    assert writer.collect() == 1
    assert is_as_new(writer)


def test_a_quarantine_ends_though_nobody_asks_for_it(segment: Any, clock: list[float]) -> None:
    writer = SlotWriter(segment, quarantine_s=2.0)
    slot = sent(writer, members=0b1)
    lib.arena_member_pin(segment.mapping, 0)
    writer.reclaim(0)
    assert writer.collect() == 0
    clock[0] += 2.0
    assert writer.collect() == 1
    assert writer.states[slot] is State.FREE
    assert is_as_new(writer)


@pytest.mark.parametrize(("quarantine_s", "is_pinned"), [(0.0, True), (2.0, False)])
def test_without_a_device_or_a_time_there_is_no_quarantine(segment: Any, quarantine_s: float, is_pinned: bool) -> None:
    writer = SlotWriter(segment, quarantine_s=quarantine_s)
    sent(writer, members=0b1)
    if is_pinned:
        lib.arena_member_pin(segment.mapping, 0)
    writer.reclaim(0)
    assert writer.quarantined == 0
    assert writer.collect() == 1


def test_impossible_words_are_told_and_free_nothing(writer: SlotWriter) -> None:
    assert writer.collect() == 0
    assert writer.impossible_rows == 0
    slot = sent(writer)
    lib.arena_slot_release(writer._mapping, 1, slot, writer.generations[slot] + 5)
    release(writer, 0, slot)
    assert writer.collect() == 0
    assert writer.impossible_rows == 0b10
    lib.arena_slot_release(writer._mapping, 0, slot, writer.generations[slot] + 1)
    assert writer.collect() == 0
    assert writer.impossible_rows == 0b11
