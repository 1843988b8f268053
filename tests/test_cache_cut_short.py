"""Puts that are cut short, by an exception anywhere or by another thread, lose nothing; and no lock waits for another."""

from __future__ import annotations

import dis
import errno
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from cache_support import PAGE, cache_of, is_there, pages, put
from cut_support import Cut, back_edges, interrupted_at, step_by_step, watched
from support import WATCHDOG_S, in_thread, queue_of

import arena
from arena import ArenaConfig, CacheHandle, MessageQueue, ObjectCache
from arena.errors import ArenaError, Cancelled
from arena.message.objects import PackedObject

SLOTS = 8
ROOM = ArenaConfig(capacity_bytes=16 * PAGE, slots=SLOTS, divert_bytes=PAGE)
WHERE = {"cache.py", "cache_store.py", "objects.py", "slots.py", "extents.py"}


@contextmanager
def room() -> Iterator[tuple[MessageQueue, MessageQueue, ObjectCache]]:
    """A queue with a cache in it that may take all."""
    with queue_of(arena=ROOM) as (writer, [reader]):
        yield writer, reader, writer.object_cache(reserve_bytes=0, reserve_slots=0)


def lent(writer: MessageQueue, value: int) -> torch.Tensor:
    loan = writer.loan((PAGE,), torch.uint8)
    return loan.fill_(value)


# ---- loans ----------------------------------------------------------------------------------------------------------


def enqueue_during_the_copy(patch: pytest.MonkeyPatch, writer: MessageQueue, loan: torch.Tensor) -> None:
    """As another thread does it, behind the encoding and before the publication."""
    write = PackedObject.write

    def enqueue_and_write(self: PackedObject, *arguments: Any) -> int:
        patch.undo()
        writer.enqueue(loan, timeout=WATCHDOG_S)
        return write(self, *arguments)

    patch.setattr(PackedObject, "write", enqueue_and_write)


def test_a_put_whose_loan_is_enqueued_meanwhile_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with room() as (writer, reader, store):
        first, second = lent(writer, 1), lent(writer, 2)
        enqueue_during_the_copy(monkeypatch, writer, second)
        with pytest.raises(ValueError, match="a loan was enqueued or put by another thread"):
            store.put("key", {"first": first, "second": second, "beside": pages(2, 3)})
        assert "key" not in store
        got: Any = reader.dequeue(WATCHDOG_S)
        assert (got == 2).all()
        before = writer.statistics().loaned_total
        writer.enqueue(first)  # it is still a loan: nothing is copied
        assert writer.statistics().loaned_total == before + 1
        other: Any = reader.dequeue(WATCHDOG_S)
        assert (other == 1).all()
        del first, second, got, other
        assert writer.statistics().slots_free == SLOTS


def test_a_put_whose_loan_has_gone_and_come_again_meanwhile_takes_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot is lent again, under another generation, when the put comes to it."""
    with room() as (writer, reader, store):
        value = [lent(writer, 1)]
        again: list[torch.Tensor] = []
        write = PackedObject.write

        def lend_again(self: PackedObject, *arguments: Any) -> int:
            writer.enqueue(value.pop())
            reader.dequeue(WATCHDOG_S)
            again.append(lent(writer, 2))
            return write(self, *arguments)

        monkeypatch.setattr(PackedObject, "write", lend_again)
        with pytest.raises(ValueError, match="a loan was enqueued"):
            store.put("key", value)
        writer.enqueue(again.pop())
        got: Any = reader.dequeue(WATCHDOG_S)
        assert (got == 2).all()
        del got
        assert writer.statistics().slots_free == SLOTS


def test_one_loan_that_two_threads_put_is_one_object() -> None:
    with room() as (writer, reader, store):
        readers = reader.cache_reader()
        for _ in range(50):
            loan = lent(writer, 7)
            found: list[Any] = []

            def put_it(key: str, value: object, found: list[Any]) -> None:
                with suppress(ValueError):  # the other one was faster
                    found.append(store.put(key, value))

            together([partial(put_it, key, [loan, pages(1, 8)], found) for key in ("one", "other")])
            handles = [each for each in found if isinstance(each, CacheHandle)]
            assert handles
            for handle in handles:
                got: Any = readers.get(handle)
                assert (got[0] == 7).all()
                assert (got[1] == 8).all()
                del got
            store.clear()
            del loan
        assert writer.statistics().slots_free == SLOTS


# ---- exceptions -----------------------------------------------------------------------------------------------------


@cache
def places(code: CodeType) -> frozenset[int]:
    """Where the interpreter runs signal handlers: behind calls, at the start of a function, and where a loop goes back."""
    path = Path(code.co_filename)
    if path.name not in WHERE or not path.is_relative_to(Path(arena.__file__).parent):
        return frozenset()
    steps = pairwise(dis.get_instructions(code))
    behind = {after.offset for before, after in steps if before.opname.startswith(("CALL", "RESUME"))}
    return back_edges(code) | behind


def cut_at(place: int, call: Callable[[], object]) -> bool:
    """Calls a function and raises in it, at the n-th place where a signal handler can; whether it came so far.

    There is a place behind each C function that returns to our code, and where each of our functions starts, since Python
    3.11. The profiler sees these without the tracer's help: where it sees more, the tracer has missed some.
    """
    left, profiled = place, 0
    sure = ("c_return", "call") if "RESUME" in dis.opmap else ("c_return",)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        here = places(frame.f_code)
        if not here:
            return None
        step_by_step(frame, trace)
        if event == "opcode" and frame.f_lasti in here:
            left -= 1
            if left == -1:
                raise Cut
        return trace

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal profiled
        profiled += event in sure and bool(places(frame.f_code))

    watched(call, trace, profile)
    assert left < 0 or place - left >= profiled > 0
    return left < 0


@pytest.mark.parametrize(("cut", "ends"), [(cut_at, int("RESUME" in dis.opmap)), (interrupted_at, 2)])
def test_every_place_is_found(cut: Callable[[int, Callable[[], object]], bool], ends: int) -> None:
    """At once, too, in code that was never traced before: three calls, three ways back, the start, and the end of some."""
    ours: dict[str, Any] = {}
    source = "def lengths(items):\n    for each in items:\n        len(each)"
    exec(compile(source, str(arena.cache.__file__), "exec"), ours)
    place = 0
    while cut(place, partial(ours["lengths"], ["a", "b", "c"])):
        place += 1
    assert place == 3 + 3 + ends


def test_an_exception_anywhere_in_a_put_that_evicts_and_takes_a_loan_over_loses_nothing() -> None:
    with room() as (writer, reader, store):
        readers = reader.cache_reader()
        place = 0
        while True:
            old = put(store, "old", pages(8, 1))
            put(store, "key", pages(4, 2))
            held: Any = readers.get(old) if place % 3 == 0 else None
            loan = lent(writer, 3)

            was_reached = cut_at(place, partial(store.put, "key", {"loan": loan, "beside": pages(9, 4)}))
            now = store.statistics()
            assert now.bytes_in_use + now.bytes_draining <= 16 * PAGE, place
            handle = store.get_handle("key")
            if handle is not None:
                got: Any = readers.get(handle)
                assert isinstance(got, torch.Tensor) or (got["beside"] == 4).all()
                del got
            assert held is None or (held == 1).all(), place
            del held, loan
            store.clear()
            assert writer.statistics().slots_free == SLOTS, place
            assert writer.statistics().bytes_in_use == 0, place
            assert store.statistics().bytes_in_use == store.statistics().bytes_draining == 0, place
            assert store.put("all", pages(16, 5)), place
            store.clear()
            assert not is_there(readers, old), place
            place += 1
            if not was_reached:
                break


@pytest.mark.parametrize("name", ["remove", "clear", "statistics", "transaction"])
def test_an_exception_anywhere_in_another_call_loses_nothing(name: str) -> None:
    with cache_of(pages=8, max_objects=SLOTS) as (store, [reader]):

        def transaction() -> None:
            with suppress(ZeroDivisionError), store.transaction():
                put(store, "c", pages(1, 3))
                raise ZeroDivisionError

        call = {"remove": lambda: store.remove("a"), "transaction": transaction}.get(name) or getattr(store, name)
        was_reached, place = True, 0
        while was_reached:
            handle = put(store, "a", pages(2, 1))
            put(store, "b", pages(2, 2))
            held: list[Any] = [reader.get(handle)]
            store.remove("b") if name == "statistics" else None
            was_reached = cut_at(place, call)
            for number in range(SLOTS):
                store.put(f"other{number}", pages(1, 9))
            assert (held[0] == 1).all(), place
            held.clear()
            store.clear()
            now = store.statistics()
            assert (now.bytes_in_use, now.bytes_draining, now.slots_draining, now.objects) == (0, 0, 0, 0), place
            assert store.put("all", pages(8)), place
            store.clear()
            place += 1


def test_an_eviction_that_is_complete_is_not_done_again() -> None:
    """A loan's slot that drains keeps its quarantine."""
    with room() as (writer, _, store):
        loan = lent(writer, 1)
        put(store, "key", loan)
        _, slot = store._store.entries["key"].slots
        store.remove("key")
        objects = store._store.objects
        fences = objects._draining[slot].fences
        fences.append(math.inf)
        objects.give_up(slot)
        del loan
        assert objects.scan() == 0
        fences.clear()
        assert objects.scan() == 1
        assert writer.statistics().slots_free == SLOTS


def test_an_exception_anywhere_in_undoing_a_put_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The put is undone because there is no memory for it."""
    monkeypatch.setattr(PackedObject, "write", lambda *_: errno.ENOSPC)
    with room() as (writer, _, store):
        was_reached, place = True, 0
        while was_reached:
            was_reached = cut_at(place, partial(store.put, "key", pages(4)))
            assert (writer.statistics().slots_free, writer.statistics().bytes_in_use) == (SLOTS, 0), place
            place += 1


@pytest.mark.parametrize("access", ["shared", "private"])
def test_an_exception_anywhere_in_a_get_leaves_no_hold(access: Any) -> None:
    with queue_of(arena=replace(ROOM, reader_access=access)) as (writer, [reader]):
        store, readers = writer.object_cache(reserve_bytes=0, reserve_slots=0), reader.cache_reader()
        handle = put(store, "key", [pages(1, 1), lent(writer, 2), b"small"])
        mapping = reader._end.segment.mapping
        before, place = mapping.grants, 0
        while interrupted_at(place, partial(readers.get, handle)):
            assert mapping.grants == before, place
            place += 1
        assert place >= 3, "each of three buffers takes a native call at least"
        store.clear()
        assert writer.statistics().slots_free == SLOTS


# ---- transactions ---------------------------------------------------------------------------------------------------


def test_transactions_nest() -> None:
    with cache_of() as (store, _):
        with suppress(ZeroDivisionError), store.transaction():
            with store.transaction():
                pass
            put(store, "a", 1)
            raise ZeroDivisionError
        assert "a" not in store


def test_a_transaction_that_ends_after_shutdown_raises_what_ended_it() -> None:
    with ObjectCache(4 * PAGE, 0) as store:

        def rejected() -> None:
            with store.transaction():
                put(store, "a", 1)
                store.shutdown()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            rejected()


# ---- locks ----------------------------------------------------------------------------------------------------------


def together(calls: list[Callable[[], object]]) -> None:
    """Runs functions at once, in threads; fails where one does not come back."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait(WATCHDOG_S)
        call()

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert not any(thread.is_alive() for thread in threads), "they wait for one another"


def test_puts_statistics_and_shutdown_at_once_never_wait_for_one_another() -> None:
    """The cache is full of what a reader holds, so that each put looks around; the queue's statistics look at its slots."""
    for _ in range(30):
        with room() as (writer, reader, store):
            readers = reader.cache_reader()
            held = [readers.get(put(store, f"held{i}", pages(2, i))) for i in range(SLOTS)]
            done = threading.Event()

            def often(call: Callable[[], object], done: threading.Event = done) -> None:
                with suppress(ArenaError):
                    while not done.is_set():
                        call()

            def end(writer: MessageQueue = writer, done: threading.Event = done) -> None:
                done.wait(0.01)
                writer.shutdown()
                done.set()

            puts = [partial(store.put, key, pages(1)) for key in ("one", "two")]
            together([*(partial(often, call) for call in (*puts, writer.statistics, store.statistics, store.clear)), end])
            del held


def test_a_rejected_transaction_leaves_what_another_thread_put() -> None:
    """The other thread is faster, in the middle of this put: the handle is this thread's too, the object is not."""
    with cache_of() as (cache, _):
        others = []

        class Slow:
            def __reduce__(self) -> Any:
                others.append(in_thread(lambda: cache.put("key", "theirs", replace=False))())
                return str, ("mine",)

        with suppress(ZeroDivisionError), cache.transaction():
            assert [cache.put("key", Slow(), replace=False)] == others
            raise ZeroDivisionError
        assert cache.get(others[0]) == "theirs"


def test_keys_that_use_the_queue_are_made_before_the_lock() -> None:
    with cache_of() as (cache, _):
        cache.put("key", 1)

        def keys() -> Any:
            assert in_thread(lambda: cache.get_handle("key"))() is not None  # another thread has the lock free
            yield "key"

        assert cache.touch(keys()) == []


def test_after_shutdown_nothing_is_found() -> None:
    cache = ObjectCache(16 * PAGE, 0)
    cache.put("key", 1)
    cache.shutdown()
    uses: list[Any] = [lambda: cache.get_handle("key"), lambda: cache.hold("key"), lambda: cache.release("key")]
    uses += [lambda: cache.touch(["key"]), lambda: cache.contains("key"), lambda: len(cache)]
    for use in uses:
        with pytest.raises(Cancelled):
            use()
