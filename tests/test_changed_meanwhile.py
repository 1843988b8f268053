"""What changes while a message is made of it: memory that another owner lets go of stays until it is copied."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from support import WATCHDOG_S, in_thread, queue_of, wait_until

from arena import ObjectCache


class Meanwhile:
    """Its reduction runs something, once."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action

    def __reduce__(self) -> Any:
        self._action()
        return int, (1,)


class Freed:
    """A tensor of sevens whose storage can be given up; where it was, all bytes are ones from then on."""

    def __init__(self, n: int, step: int = 1) -> None:
        memory = bytearray(4 * n * step)
        owner = np.frombuffer(memory, np.int32)
        self.tensor = torch.from_numpy(owner)[::step].data  # a view would own its base too
        self.tensor.fill_(7)
        weakref.finalize(owner, memory.__setitem__, slice(None), b"\1" * len(memory))

    def give_up(self) -> None:
        self.tensor.data = torch.zeros(3, dtype=torch.int32)


def is_sevens(t: torch.Tensor) -> bool:
    return bool(t.eq(7).all())


@pytest.mark.parametrize("options", [{}, {"arena": None, "max_chunk_bytes": 1024}], ids=["in the ring", "out of band"])
def test_a_storage_that_a_later_reduction_gives_up(options: dict[str, Any]) -> None:
    freed = Freed(500)
    with queue_of(1, **options) as (writer, [reader]):
        writer.enqueue([freed.tensor, Meanwhile(freed.give_up)])
        assert is_sevens(reader.dequeue(WATCHDOG_S)[0])


@pytest.mark.parametrize("step", [1, 2], ids=["as it lies", "with gaps"])
def test_a_storage_that_is_given_up_before_an_object_is_written(step: int) -> None:
    freed = Freed(500, step)
    with ObjectCache(1 << 20, n_readers=0) as cache:
        handle = cache.put("key", [freed.tensor, Meanwhile(freed.give_up)])
        assert is_sevens(cache.get(handle)[0])


def test_a_loan_that_a_later_reduction_gives_up_is_not_overwritten() -> None:
    """By the next buffer of the same message, whose slot it would be."""
    with queue_of(1) as (writer, [reader]):
        loan = writer.loan((10_000,), torch.int32)
        loan.fill_(7)
        other = torch.zeros(10_000, dtype=torch.int32)

        def give_up() -> None:
            loan.data = torch.zeros(3, dtype=torch.int32)

        writer.enqueue([loan, Meanwhile(give_up), other])
        got = reader.dequeue(WATCHDOG_S)
        assert is_sevens(got[0])
        assert torch.equal(got[2], other)


@pytest.mark.parametrize("n", [100_000, 1_000_000], ids=["for the ring", "out of band"])
def test_a_storage_that_another_thread_gives_up_while_there_is_no_room(n: int) -> None:
    freed = Freed(n)
    with queue_of(1, arena=None, max_chunk_bytes=1 << 20, max_chunks=1) as (writer, [reader]):
        writer.enqueue(bytes(4 * n))  # the reader is connected
        with suppress(TimeoutError):
            while True:
                writer.enqueue(bytes(4 * n), timeout=0)
        writer._end._wait = None
        wait = in_thread(lambda: writer.enqueue([freed.tensor]))
        wait_until(lambda: writer._end._wait is not None, "the wait for room")
        freed.give_up()
        got: Any = b""
        while not isinstance(got, list):
            got = reader.dequeue(WATCHDOG_S)
        wait()
        assert is_sevens(got[0])


@pytest.mark.parametrize("change", [lambda b: b.__setitem__(0, 1), lambda b: b.__delitem__(slice(9, None))])
def test_a_bytearray_that_a_later_reduction_changes(change: Callable[[bytearray], None]) -> None:
    """The pickler hands one of this size over as it is."""
    before = bytes(200_000)
    with queue_of(1) as (writer, [reader]):
        value = bytearray(before)
        writer.enqueue([value, Meanwhile(lambda: change(value))])
        assert reader.dequeue(WATCHDOG_S)[0] == before
    with ObjectCache(1 << 20, n_readers=0) as cache:
        value = bytearray(before)
        assert cache.get(cache.put("key", [value, Meanwhile(lambda: change(value))]))[0] == before
