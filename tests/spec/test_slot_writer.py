"""What the writer's half of the slots owes its callers beyond the model: loans, aborts and messages that are cut short.

One process and anonymous memory; a reader is two native calls.
"""

from __future__ import annotations

import pytest
from slots_support import BOTH, claimed, is_as_new, release, sent

from arena.protocol import slots
from arena.protocol.slots import KIND_OBJECT, Refusal, SlotWriter, State
from arena.shm.layout import PAGE
from arena.shm.native import lib

# ---- claims and loans -------------------------------------------------------------------------------------------------


def test_the_whole_capacity_is_one_extent_and_a_byte_more_is_none(writer: SlotWriter) -> None:
    assert writer.claim(8 * PAGE + 1) is Refusal.OVERSIZE
    slot = claimed(writer, 8 * PAGE)
    assert writer.claim(1) is Refusal.NO_EXTENT
    writer.abort([slot])
    assert is_as_new(writer)


def test_slots_run_out_before_bytes(writer: SlotWriter) -> None:
    taken = [claimed(writer, 1) for _ in range(4)]
    assert sorted(taken) == [0, 1, 2, 3]
    assert writer.claim(1) is Refusal.NO_SLOT
    writer.abort(taken)
    assert is_as_new(writer)


def test_the_lowest_slots_are_taken_first(writer: SlotWriter) -> None:
    """What the readers look through stays short and warm."""
    assert [claimed(writer) for _ in range(4)] == [0, 1, 2, 3]


def test_an_objects_generation_is_odd_until_it_is_published(writer: SlotWriter) -> None:
    for _ in range(2):
        before, taken = writer.generations[0], dict[int, None]()
        assert writer.claim(1, KIND_OBJECT, taken) == 0
        assert writer.generations[0] % 2 == 1
        assert writer.generations[0] > before
        assert taken == {0: None}
        assert not writer._pending  # it is no message's
        writer.free(0)


def test_bytes_lie_in_a_loan_from_its_first_to_its_last(writer: SlotWriter) -> None:
    claimed(writer)
    slot = claimed(writer, PAGE + 10)
    writer.loan(slot)
    first = writer._data_address + writer.offsets[slot]
    assert writer.loan_at(first, PAGE + 10) == (slot, 0)
    assert writer.loan_at(first + 7, PAGE + 3) == (slot, 7)
    assert writer.loan_at(first + PAGE + 9, 1) == (slot, PAGE + 9)
    assert writer.loan_at(first - 1, 1) is None
    assert writer.loan_at(first, PAGE + 11) is None
    assert writer.loan_at(first + PAGE + 9, 2) is None


def test_a_loan_is_free_when_the_writer_has_dropped_it(writer: SlotWriter) -> None:
    slot = claimed(writer)
    writer.loan(slot)
    assert writer.usage() == (3, PAGE)
    release(writer, writer.loan_row, slot)
    assert writer.usage() == (4, 0)  # before anybody collects
    assert writer.collect() == 1
    assert is_as_new(writer)


def test_a_published_loan_is_owed_by_the_writer_too(writer: SlotWriter) -> None:
    slot = claimed(writer)
    writer.loan(slot)
    writer.publish([slot], BOTH)
    writer.enqueue([slot], 0)
    assert writer.loan_at(writer._data_address + writer.offsets[slot], 1) is None
    for row in (0, 1):
        release(writer, row, slot)
    assert writer.collect() == 0
    release(writer, writer.loan_row, slot)
    assert writer.collect() == 1
    assert is_as_new(writer)


def test_a_member_that_is_none_owes_nothing(writer: SlotWriter) -> None:
    slot = sent(writer, members=0b10)
    release(writer, 1, slot)
    assert writer.collect() == 1
    sent(writer, members=0)
    assert writer.collect() == 1
    assert is_as_new(writer)


def test_an_abort_frees_what_is_its_messages_and_leaves_loans_loans(writer: SlotWriter) -> None:
    loan, published, half = claimed(writer), claimed(writer), claimed(writer)
    writer.loan(loan)
    writer.publish([loan, published], BOTH)
    writer.abort([loan, published, half])
    assert writer.states[loan] is State.LOANED
    assert writer.usage() == (3, PAGE)
    assert not writer._pending
    assert writer.loan_at(writer._data_address + writer.offsets[loan], PAGE) == (loan, 0)
    writer.free(loan)
    assert is_as_new(writer)


def test_only_an_unpublished_loan_or_a_claimed_slot_becomes_an_objects(writer: SlotWriter) -> None:
    loan, fresh, out = claimed(writer), claimed(writer), sent(writer)
    writer.loan(loan)
    assert writer.adopt(loan)
    assert writer.adopt(fresh)
    assert not writer.adopt(out)
    assert not writer.adopt(loan)  # it is one
    assert [writer.states[slot] for slot in (loan, fresh, out)] == [State.OBJECT, State.OBJECT, State.SENT]
    assert writer.collect() == 0  # an object's slot is not the messages' to free
    release(writer, writer.loan_row, loan)
    assert writer.collect() == 0
    assert not writer._loans


def test_a_loan_that_became_an_objects_is_no_messages_any_more(writer: SlotWriter) -> None:
    """Another thread put it into a cache between the message's encoding and its publication, or its abort."""
    loan, own = claimed(writer), claimed(writer)
    writer.loan(loan)
    assert writer.adopt(loan)
    with pytest.raises(ValueError, match="put into a cache"):
        writer.publish([own, loan], BOTH)
    assert [writer.states[slot] for slot in (own, loan)] == [State.CLAIMED, State.OBJECT]
    writer.abort([own, loan])
    assert [writer.states[slot] for slot in (own, loan)] == [State.FREE, State.OBJECT]
    assert not writer.required[loan]


def test_a_grant_that_cannot_be_had_is_an_error(writer: SlotWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = claimed(writer)
    monkeypatch.setattr(slots.capsules, "lease_of_message", lambda *a: a[4](lib.ARENA_OK, *a[2:4]))
    with pytest.raises(MemoryError, match="grant"):
        writer.own_lease(slot)


# ---- a message that a signal handler's exception cut short ------------------------------------------------------------


@pytest.mark.parametrize("is_out", [False, True])
def test_a_message_that_was_cut_short_goes_the_way_of_its_record(writer: SlotWriter, is_out: bool) -> None:
    loan, published, half, other = claimed(writer), claimed(writer), claimed(writer), sent(writer, position=8)
    writer.loan(loan)
    writer.publish([loan, published], BOTH)
    writer.recover(position=64, now=128 if is_out else 64)
    assert writer.states[half] is State.FREE
    assert writer.states[loan] is (State.SENT if is_out else State.LOANED)
    assert writer.states[published] is (State.SENT if is_out else State.FREE)
    assert writer._sent == ({loan: 64, published: 64, other: 8} if is_out else {other: 8})
    assert not writer._pending
    assert sorted(writer._free) == [slot for slot, state in enumerate(writer.states) if state is State.FREE]
    for slot in writer._sent:
        for row in (0, 1):
            release(writer, row, slot)
    release(writer, writer.loan_row, loan)
    writer.collect()
    assert is_as_new(writer)


def test_what_was_taken_and_given_to_nobody_is_free_again(writer: SlotWriter) -> None:
    """Cut short between any two changes of a claim or a free."""
    writer.extents.take(3 * PAGE)
    writer._pending[writer._free.pop()] = None
    writer.recover(0, 0)
    assert is_as_new(writer)
    assert [claimed(writer) for _ in range(4)] == [0, 1, 2, 3]


def test_a_slot_that_was_freed_twice_is_free_once(writer: SlotWriter) -> None:
    slot = claimed(writer)
    writer.free(slot)
    writer._free.append(slot)
    writer.recover(0, 0)
    assert is_as_new(writer)


def test_a_loan_is_no_part_of_a_message_that_was_cut_short(writer: SlotWriter) -> None:
    slot = claimed(writer)
    writer.loan(slot)
    writer.recover(0, 8)
    assert writer.states[slot] is State.LOANED
    assert writer.usage() == (3, PAGE)
