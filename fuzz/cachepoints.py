"""A signal before every access to a shared word, of a cache's writer and of a reader that gets and drops."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from arena import CacheHandle, CacheReader, Handle, ObjectCache
from arena.errors import CacheMiss
from arena.shm.native import lib
from fuzz import belongings
from fuzz.crashpoints import SIGNALS
from fuzz.scenario import Arm, Report, _handled, arm_now
from fuzz.session import Failure, Session, expect
from fuzz.workers import LIMIT_S, Ended, Pool, Side, Worker, wait_until

PAGE = 4096
PAGES = 8
PUTS = 12
ROLES = ("writer", "reader")

Known = list[tuple[CacheHandle, int]]
"""Handles, and the number that the object behind each consists of."""


def cachepoints(session: Session) -> None:
    """A signal before step k of a cache's writer, then of a reader, for every k; every ``stride``-th if told."""
    stride, only = int(session.options.get("stride", 1)), session.options.get("at")
    with Pool() as pool:
        for role in session.options.get("role") or ROLES:
            for name in session.options.get("signal") or SIGNALS:
                at = session.rng(role, name).randrange(stride) if only is None else int(only)
                while not session.over() and _hit(pool, name, Arm(role, 0, at, SIGNALS[name])):
                    session.count("cases")
                    session.count(f"{name} {role}")
                    at += stride
                    if only is not None:
                        break


def _hit(pool: Pool, name: str, arm: Arm) -> bool:
    """One match; whether the step was reached."""
    worker = pool.take()
    try:
        report = (_hit_writer if arm.role == "writer" else _hit_reader)(worker, arm)
    except Failure as failure:
        raise Failure(f"{arm}: {failure}", f"--role {arm.role} --signal {name} --at {arm.at}") from None
    if report is None:  # it was killed
        pool.end(worker)
        return True
    pool.give_back(worker)
    expect(not report.left, f"{arm}: left {report.left}")
    return report.steps > arm.at


def value_of(number: int) -> torch.Tensor:
    """One to three pages that consist of a number."""
    return torch.full(((1 + number % 3) * PAGE - 512,), number, dtype=torch.uint8)


def _found(get: Callable[[CacheHandle], Any], handle: CacheHandle, number: int) -> Any:
    """The object, if it is still there; it must be the right one."""
    try:
        value = get(handle)
    except CacheMiss:
        return None
    expect(torch.equal(value, value_of(number)), f"the handle of {number} led to other bytes")
    return value


def _follow(worker: Worker, idle: Callable[[bool], None], told: Callable[[Any], None]) -> Report | None:
    """Hears a worker out; now and then ``idle`` is told whether it is stopped, and it goes on.  None: it was killed."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        if not worker.pipe.poll(0.01):
            is_stopped = worker.is_stopped()
            idle(is_stopped)
            if is_stopped:
                worker.signal(signal.SIGCONT)
            expect(time.monotonic() < deadline, f"process {worker.pid} hangs")
            continue
        try:
            kind, what = worker.next()
        except Ended as end:
            expect(end.exit_code == -signal.SIGKILL, str(end))
            return None
        if kind == "returned":
            report: Report = what
            return report
        told(what)


# ---- a writer that is hit -------------------------------------------------------------------------------------------


def _hit_writer(worker: Worker, arm: Arm) -> Report | None:
    worker.start(write, arm)
    _, address = worker.next()
    known: Known = []
    held: list[tuple[Any, int]] = []
    with ObjectCache.attach(address, 0) as reader:
        worker.tell("go")

        def told(what: Any) -> None:
            if what == "end":
                _check(held)
                held.clear()
                worker.tell("dropped")
                return
            known.append(what)
            value = _found(reader.get, *what)
            if value is not None and len(known) % 3 == 0:
                held.append((value, what[1]))
                del held[:-2]

        report = _follow(worker, lambda is_stopped: _look(reader, known, held), told)
        _look(reader, known, held)
        held.clear()
    return report


def _look(reader: CacheReader, known: Known, held: list[tuple[Any, int]]) -> None:
    """Whatever the writer is in the middle of: a handle leads to its object or to none, and what is held stays."""
    for handle, number in known:
        _found(reader.get, handle, number)
    _check(held)


def _check(held: list[tuple[Any, int]]) -> None:
    for value, number in held:
        expect(torch.equal(value, value_of(number)), f"{number}, which was held, has changed")


def write(side: Side, arm: Arm) -> Report:
    """Puts, evicts, holds, removes, clears, and is not cached; in the end all must come back."""
    report = Report()
    before = belongings.own()
    with _handled(report):
        steps = _write_all(side, report, arm)
    report.steps, report.left = steps, belongings.more_than(before)
    return report


def _write_all(side: Side, report: Report, arm: Arm) -> int:
    with ObjectCache(PAGES * PAGE, 1, max_objects=4) as store:
        side.say(store.export_handle())
        side.hear()
        arm_now(arm)
        for number in range(PUTS):
            _write_one(side, report, store, number)
        steps = _disarm()
        side.say("end")
        side.hear()
        store.clear()
        wait_until(lambda: store.statistics().slots_draining == 0, "all objects free again")
        expect(store.statistics().bytes_in_use == 0, f"not empty: {store.statistics()}")
        expect(store.put("all", torch.zeros(PAGES * PAGE - 512, dtype=torch.uint8)), "the whole cache for one object")
    return steps


def _disarm() -> int:
    """The steps that were taken while armed."""
    steps = int(lib.arena_steps_taken())
    arm_now(None)
    return steps


def _write_one(side: Side, report: Report, store: ObjectCache, number: int) -> None:
    key = f"key{number % 5}"
    handle = report.insist(store.put, key, value_of(number))
    if isinstance(handle, CacheHandle):
        side.say((handle, number))
        report.insist(_get_and_drop, store, handle, number)
    report.insist(store.hold, key)
    report.insist(store.put, "too large", torch.zeros(PAGES * PAGE))
    report.insist(store.release, key)
    if number % 4 == 3:
        report.insist(store.remove, f"key{(number - 1) % 5}")
    if number == PUTS - 3:
        report.insist(store.clear)
    report.insist(store.reap)
    report.insist(store.statistics)


def _get_and_drop(store: ObjectCache, handle: CacheHandle, number: int) -> None:
    """In one call: the step of the drop is in it, too."""
    _found(store.get, handle, number)


# ---- a reader that is hit -------------------------------------------------------------------------------------------


def _hit_reader(worker: Worker, arm: Arm) -> Report | None:
    with ObjectCache(PAGES * PAGE, 1, max_objects=8) as store:
        known: Known = []
        for number in range(4):
            handle = store.put(f"key{number}", value_of(number))
            expect(handle, f"{number} is not cached: {handle}")
            if isinstance(handle, CacheHandle):
                known.append((handle, number))
        store.remove("key3")  # its handle is old
        worker.start(read, store.export_handle(), known, arm)

        def idle(is_stopped: bool) -> None:
            store.reap()  # a rank that was given up is free again
            if is_stopped:
                store.clear()
                for number in range(10, 20):
                    store.put(f"key{number}", value_of(number))

        report = _follow(worker, idle, lambda what: None)
        store.clear()
        if report is None:
            wait_until(lambda: store.reap() >= 0 and not store.statistics().readers[0].pid, "the death to be seen")
        wait_until(lambda: store.statistics().slots_draining == 0, "all objects free again")
        expect(store.put("all", torch.zeros(PAGES * PAGE - 512, dtype=torch.uint8)), "the whole cache for one object")
    return report


def read(side: Side, address: Handle, known: Known, arm: Arm) -> Report:
    """Attaches, gets everything twice, holds some, and leaves."""
    report = Report()
    before = belongings.own()
    with _handled(report):
        steps = _read_all(report, address, known, arm)
    report.steps, report.left = steps, belongings.more_than(before)
    return report


def _read_all(report: Report, address: Handle, known: Known, arm: Arm) -> int:
    arm_now(arm)
    reader = report.insist(ObjectCache.attach, address, 0)
    held: list[tuple[Any, int]] = []
    for handle, number in known * 2:
        report.insist(_get_one, reader, held, handle, number)
    with suppress(CacheMiss):
        report.insist(_get_all, reader, known)
    report.insist(held.clear)
    report.insist(reader.shutdown)
    return _disarm()


def _get_one(reader: CacheReader, held: list[tuple[Any, int]], handle: CacheHandle, number: int) -> None:
    value = _found(reader.get, handle, number)
    if value is not None:
        held.append((value, number))
    _check(held)
    del held[:-2]


def _get_all(reader: CacheReader, known: Known) -> None:
    reader.get_many([handle for handle, _ in known])
