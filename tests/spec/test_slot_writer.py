"""What the writer's half of the slots owes its callers beyond the model: loans, cut-short messages, pages, quarantines.

One process and anonymous memory; a reader is two native calls.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import FrameType
from typing import Any

import pytest
from lockstep_slots import AnonymousSegment

from arena.errors import CorruptError
from arena.message.tensors import BYTE
from arena.protocol import slots
from arena.protocol.extents import Extents
from arena.protocol.slots import KIND_OBJECT, Refusal, SlotReader, SlotWriter, State
from arena.protocol.warmth import Part, Warmth
from arena.shm.layout import LINE, PAGE, Layout
from arena.shm.native import ffi, lib, to_tensor

BOTH = 0b11  # the members of a segment with two readers


class Fake:
    """The native calls, some of them replaced; ``calls`` are theirs."""

    def __init__(self, **replaced: Any) -> None:
        self._replaced = replaced
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in self._replaced:
            return getattr(lib, name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self._replaced[name]

        return call


@pytest.fixture
def segment() -> Iterator[AnonymousSegment]:
    with closing(AnonymousSegment(Layout(2, 4, PAGE, 8 * PAGE))) as made:
        yield made


@pytest.fixture
def writer(segment: Any) -> SlotWriter:
    return SlotWriter(segment)


def claimed(writer: SlotWriter, nbytes: int = PAGE) -> int:
    slot = writer.claim(nbytes)
    assert isinstance(slot, int)
    return slot


def sent(writer: SlotWriter, position: int = 0, members: int = BOTH) -> int:
    slot = claimed(writer)
    writer.publish([slot], members)
    writer.enqueue([slot], position)
    return slot


def release(writer: SlotWriter, row: int, slot: int) -> None:
    lib.arena_slot_release(writer._mapping, row, slot, writer.generations[slot])


def is_as_new(writer: SlotWriter) -> bool:
    """Every slot and every byte is free, and nobody owes anything."""
    fresh = Extents(writer.capacity_bytes)
    return (
        writer.usage() == (len(writer.states), 0)
        and sorted(writer._free) == list(range(len(writer.states)))
        and set(writer.states) == {State.FREE}
        and not any(writer.required)
        and not (writer._sent or writer._loans or writer._pending or writer._fences)
        and writer.extents.free_ranges() == fresh.free_ranges()
    )


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


# ---- readers that leave, die and are pinned ---------------------------------------------------------------------------


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


# ---- pages ------------------------------------------------------------------------------------------------------------


def test_a_shortage_of_pages_is_an_errno_and_marks_nothing_warm(writer: SlotWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = claimed(writer, 2 * PAGE)
    source = ffi.new("char[]", 2 * PAGE)
    writer._fd = 3  # as if there were a file: the native call is replaced
    monkeypatch.setattr(slots, "lib", Fake(arena_copy_cold=errno.ENOSPC, arena_populate=errno.ENOMEM))
    assert writer.copy(slot, source, 1) == errno.ENOSPC
    assert writer.populate(slot) == errno.ENOMEM
    assert [part.warm_bytes for part in writer._warmth.parts(0, 2 * PAGE)] == [0]


@pytest.mark.parametrize(("is_writable", "fd"), [(True, 0), (True, 3), (False, -1)])
def test_only_a_file_that_can_be_written_to_is(segment: Any, is_writable: bool, fd: int) -> None:
    """Where it cannot, new pages are filled through the mapping, and a shortage is a SIGBUS."""
    segment.fd, segment.writable_file = max(fd, 0), is_writable
    assert SlotWriter(segment)._fd == fd


@pytest.mark.parametrize("fd", [0, 3])
def test_new_pages_are_written_and_known_ones_copied_to(
    writer: SlotWriter, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer._fd = fd
    fake = Fake(arena_copy_cold=0, arena_copy=None)
    monkeypatch.setattr(slots, "lib", fake)
    source = ffi.new("char[]", 4 * PAGE)
    data, in_file = writer._mapping.data, writer._data_offset
    slot = claimed(writer, 2 * PAGE)
    assert writer.copy(slot, source, 1) == 0
    assert fake.calls == [("arena_copy_cold", fd, in_file, data, source, 2 * PAGE)]
    fake.calls.clear()
    assert writer.copy(slot, source, 1) == 0
    assert fake.calls == [("arena_copy", data, source, 2 * PAGE, 1)]
    writer.free(slot)
    fake.calls.clear()
    longer = claimed(writer, 3 * PAGE)
    assert writer.copy(longer, source, 1) == 0
    assert fake.calls == [
        ("arena_copy", data, source, 2 * PAGE, 1),
        ("arena_copy_cold", fd, in_file + 2 * PAGE, data + 2 * PAGE, source + 2 * PAGE, PAGE),
    ]


def test_a_copy_of_a_piece_goes_where_it_belongs(segment: Any) -> None:
    """Chunk by chunk, in a slot that does not begin the area."""
    writer = SlotWriter(segment, chunk_bytes=2 * PAGE)
    claimed(writer, PAGE)
    slot = claimed(writer, 3 * PAGE)
    offset = writer.offsets[slot]
    payload = bytes(range(256)) * (3 * PAGE // 256)
    assert writer.copy(slot, ffi.from_buffer(payload), 1, at=PAGE // 2, nbytes=2 * PAGE) == 0
    area = bytes(ffi.buffer(segment.mapping.data, 8 * PAGE))
    assert area[offset + PAGE // 2 : offset + PAGE // 2 + 2 * PAGE] == payload[: 2 * PAGE]
    assert not any(area[: offset + PAGE // 2])
    assert not any(area[offset + PAGE // 2 + 2 * PAGE :])


def test_only_new_pages_are_populated_and_whole(segment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SlotWriter(segment, chunk_bytes=4 * PAGE)
    fake = Fake(arena_populate=0)
    monkeypatch.setattr(slots, "lib", fake)
    data = writer._mapping.data
    claimed(writer, PAGE)
    slot = claimed(writer, 2 * PAGE)
    assert writer.populate(slot, 100, PAGE) == 0
    assert fake.calls == [("arena_populate", data + PAGE, PAGE + 100, 1)]
    fake.calls.clear()
    assert writer.populate(slot) == 0
    assert fake.calls == [("arena_populate", data + PAGE, 2 * PAGE, 1)]


def test_populated_pages_are_not_populated_again(segment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SlotWriter(segment)
    fake = Fake(arena_populate=0)
    monkeypatch.setattr(slots, "lib", fake)
    slot = claimed(writer, 2 * PAGE)
    assert writer.populate(slot) == 0
    assert writer.populate(slot) == 0
    assert len(fake.calls) == 1


def test_warmth_grows_from_the_start_of_a_chunk_only() -> None:
    warmth = Warmth(16 * LINE)
    warmth.mark(Part(4 * LINE, LINE, 0))  # beyond a gap: what lies between was never filled
    assert [part.warm_bytes for part in warmth.parts(0, 16 * LINE)] == [0]
    warmth.mark(Part(0, 3, 0))
    warmth.mark(Part(LINE, LINE, 0))  # less than a line of gap: two buffers of one object
    assert [part.warm_bytes for part in warmth.parts(0, 32 * LINE)] == [2 * LINE, 0]
    warmth.mark(Part(0, LINE, 0))
    assert [part.warm_bytes for part in warmth.parts(LINE, 15 * LINE)] == [LINE]
    warmth.mark(Part(16 * LINE, 16 * LINE, 0))
    assert [part.warm_bytes for part in warmth.parts(0, 48 * LINE)] == [2 * LINE, 16 * LINE, 0]
    assert [part.warm_bytes for part in warmth.parts(20 * LINE, 2 * LINE)] == [2 * LINE]


# ---- the reader's half ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [2, 1], ids=["stale", "current"])
def test_no_memory_for_a_grant_is_said(segment: Any, generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = SlotWriter(segment), SlotReader(segment, 0)
    slot = sent(writer)
    outcome = lib.ARENA_OK if generation == 1 else lib.ARENA_STALE
    monkeypatch.setattr(slots.capsules, "lease_of_message", lambda *a: a[4](outcome, *a[2:4]))
    with pytest.raises(MemoryError if generation == 1 else slots.StaleSlotError, match=r"grant|generation 2"):
        reader.lease(slots.Grant(slot, generation))


def test_a_lease_that_nobody_has_is_dropped(segment: Any) -> None:
    """As where a signal handler's exception comes between the native call and whoever wants its result."""
    writer, reader = SlotWriter(segment), SlotReader(segment, 0)
    slot = sent(writer, members=0b1)
    reader.lease(writer.grant(slot))
    assert lib.arena_grants_live() == 0
    assert writer.collect() == 1


@pytest.mark.parametrize("whose", ["a reader's", "the writer's own"])
def test_no_exception_keeps_a_lease(segment: Any, whose: str) -> None:
    """Not even where its traceback is kept: a late drop would store an old generation over a newer one."""
    writer, reader = SlotWriter(segment), SlotReader(segment, 0)
    slot = sent(writer, members=0b1)
    grant = writer.grant(slot)
    call = partial(reader.lease, grant) if whose == "a reader's" else partial(writer.own_lease, slot)
    kept: list[BaseException] = []
    while raised := raised_at(len(kept), call):
        kept.append(raised)
        assert lib.arena_grants_live() == 0, len(kept)
    assert len(kept) > 5


class Raised(BaseException):
    """What a signal handler raises."""


def raised_at(place: int, call: Callable[[], object]) -> BaseException | None:
    """The exception that comes before the ``place``-th instruction of a function of slots.py, if there are so many."""
    left = place

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != slots.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left == -1:
                raise Raised
        return trace

    sys.settrace(trace)
    try:
        call()
    except Raised as raised:
        return raised
    finally:
        sys.settrace(None)
    return None


def test_a_lease_is_dropped_once(segment: Any) -> None:
    """Not again by a second call, nor when the object goes: a tensor over it has a hold of its own."""
    writer, reader = SlotWriter(segment), SlotReader(segment, 0)
    slot = sent(writer, members=0b1)
    lease = reader.lease(writer.grant(slot))
    tensor = to_tensor(partial(slots.capsules.of_lease, lease, 0, 8), BYTE, (8,), None)
    lease.drop()
    lease.drop()
    assert lease.grant == 0
    with pytest.raises(TypeError, match="not a lease that holds its slot"):
        slots.capsules.of_lease(lease, 0, 8, BYTE, (8,), None)
    del lease
    assert writer.collect() == 0
    del tensor
    assert writer.collect() == 1


@pytest.mark.parametrize(("at", "nbytes"), [(0, PAGE + 1), (PAGE, 1), (1 << 63, 1), (8, (1 << 63) - 1)])
def test_no_tensor_reaches_out_of_its_extent(segment: Any, at: int, nbytes: int) -> None:
    writer, reader = SlotWriter(segment), SlotReader(segment, 0)
    lease = reader.lease(writer.grant(sent(writer, members=0b1)))
    assert lease.nbytes <= PAGE
    with pytest.raises(CorruptError, match="outside the extent"):
        to_tensor(partial(slots.capsules.of_lease, lease, at, nbytes), BYTE, (nbytes,), None)
    for arguments in ((), (lease,), (None, 0, 8), (0, 0, 8)):
        with pytest.raises(TypeError, match=r"arguments, not 6|not a lease"):
            slots.capsules.of_lease(*arguments, *([BYTE, (8,), None] if len(arguments) == 3 else []))
    lease.drop()
    assert writer.collect() == 1


@pytest.mark.parametrize("how", ["by the reader", "once its gate is open"])
def test_a_release_frees_the_slot(segment: Any, how: str) -> None:
    writer, reader = SlotWriter(segment), SlotReader(segment, 0)
    slot = sent(writer, members=0b1)
    if how == "by the reader":
        reader.release(writer.grant(slot))
    else:
        grant = writer.grant(slot)
        slots.release(lib.arena_grant_open(segment.mapping, reader.row, *grant))
    assert writer.collect() == 1
