"""A lease of a slot: nothing keeps it that should not, and no tensor reaches out of it.

One process and anonymous memory; a reader is two native calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from cut_support import step_by_step
from slots_support import sent

from arena.errors import CorruptError
from arena.message.tensors import BYTE
from arena.protocol import slots
from arena.protocol.slots import SlotReader, SlotWriter
from arena.shm.layout import PAGE
from arena.shm.native import lib, to_tensor


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
    assert len(kept) > 5, "an instruction for each argument of the native call, and more"


class Raised(BaseException):
    """What a signal handler raises."""


def raised_at(place: int, call: Callable[[], object]) -> BaseException | None:
    """The exception that comes before the ``place``-th instruction of a function of slots.py, if there are so many."""
    left = place

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != slots.__file__:
            return None
        step_by_step(frame, trace)
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
