"""Logs of a run: with ``ARENA_TRACE=DIRECTORY`` each end of a queue or cache logs what it does in a file of its own, there.

An event is an action with its arguments and results, stamped before and after from one counter in the segment: two events
of different processes are ordered where their stamps say so, and only there.  The file is mapped, so that a SIGKILL loses
at most what the event under way would have become.  ``python -m spec trace DIRECTORY`` holds the logs to the model,
``arena trace`` draws them.

Off, nothing is wrapped: what it costs is one look at the environment when an end is made, and in C one predicted branch
per release.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from arena.shm import process
from arena.shm.native import lib

VARIABLE = "ARENA_TRACE"
SUFFIX = ".trace"
ACTIONS = (
    "release", "release_hold",  # these two are logged in C
    "claim", "copy", "populate", "loan", "adopt", "publish", "abort", "reclaim", "drop_reader", "send", "admit",
    "read", "advance", "lease", "leave",
    "publish_object", "abort_object", "evict", "scan", "get",
)  # fmt: skip
CODES = {name: code for code, name in enumerate(ACTIONS)}
HEADER_BYTES = 128
ABOUT_OFFSET = 16
ABOUT = struct.Struct("<QIIQQII16s")  # magic, version, row, pid, start time, readers, slots, segment id
MAGIC = 0x454341525441
VERSION = 2
WRITER = 0xFFFFFFFF  # the row of a writer's log
EVENT = struct.Struct("<QQII5Q")  # before, after, action, thread, five arguments and results
CAPACITY = 1 << 18  # events in a log; the file is sparse

_numbers = count()
_logs: WeakKeyDictionary[Any, Log] = WeakKeyDictionary()


class Log:
    """The log of one end."""

    def __init__(self, directory: Path, segment: Any, row: int) -> None:
        self._mapping = segment.mapping
        if not directory.is_dir():  # it is not made: the path may be mistyped
            raise ValueError(f"{VARIABLE}={directory}: there is no such directory; make it first, or unset {VARIABLE}")
        pid, segment_id = os.getpid(), segment.handle.segment_id
        name = f"{segment_id.hex()}.{pid}.{next(_numbers)}{SUFFIX}"
        fd = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, HEADER_BYTES + CAPACITY * EVENT.size)
            of = segment.layout
            about = (MAGIC, VERSION, row, pid, process.own_start_time(), of.n_readers, of.n_slots, segment_id)
            os.pwrite(fd, ABOUT.pack(*about), ABOUT_OFFSET)
            error = lib.arena_trace_open(self._mapping, fd, CAPACITY)
            if error:
                raise OSError(error, f"{VARIABLE}: no log for this end: {os.strerror(error)}")
        finally:
            os.close(fd)

    @contextmanager
    def event(self, action: str, a: int = 0, b: int = 0, c: int = 0) -> Iterator[list[int]]:
        """Around an action; its results go into the list."""
        results = [0, 0]
        number = lib.arena_trace_begin(self._mapping, CODES[action], a, b, c)
        try:
            yield results
        finally:
            lib.arena_trace_end(self._mapping, number, *results)


def observe(end: Any, segment: Any) -> None:
    """Wraps the actions of one end of the ring or the slots, if tracing is on."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    log = _logs.get(segment)
    if log is None:
        log = _logs[segment] = Log(Path(directory), segment, getattr(end, "rank", WRITER))
    for name, wrap in _WRAPPERS[type(end).__name__].items():
        setattr(end, name, wrap(log, end, getattr(end, name)))


Call = Callable[..., Any]

# ---- the writer -----------------------------------------------------------------------------------------------------


def _claim(log: Log, slots: Any, call: Call) -> Call:
    def claim(nbytes: int, kind: int = 1, *arguments: Any) -> Any:
        with log.event("claim", kind, nbytes) as results:
            slot = call(nbytes, kind, *arguments)
            if isinstance(slot, int):
                results[:] = slot + 1, int(slots.generations[slot])
        return slot

    return claim


def _fill(action: str) -> Callable[[Log, Any, Call], Call]:
    """``copy`` and ``populate``: the result is an errno."""

    def wrap(log: Log, slots: Any, call: Call) -> Call:
        def fill(slot: int, *arguments: Any) -> int:
            with log.event(action, slot) as results:
                results[0] = error = int(call(slot, *arguments))
            return error

        return fill

    return wrap


def _on_one(action: str) -> Callable[[Log, Any, Call], Call]:
    """An action on one slot or row, which is its first argument."""

    def wrap(log: Log, slots: Any, call: Call) -> Call:
        def on_one(number: int, *arguments: Any) -> Any:
            with log.event(action, number):
                return call(number, *arguments)

        return on_one

    return wrap


def _publish(log: Log, slots: Any, call: Call) -> Call:
    def publish(message: Any, members: int) -> None:
        message = list(message)
        call(message, members)
        for place, slot in enumerate(message):  # private to the writer: the order is all that matters
            with log.event("publish", slot, int(slots.generations[slot]), place) as results:
                results[0] = members

    return publish


def _abort(log: Log, slots: Any, call: Call) -> Call:
    def abort(message: Any) -> None:
        message = list(message)
        if message:
            with log.event("abort", message[0], len(message)):
                call(message)

    return abort


def _adopt(log: Log, slots: Any, call: Call) -> Call:
    def adopt(slot: int) -> bool:
        with log.event("adopt", slot) as results:
            is_adopted = bool(call(slot))
            results[0] = int(is_adopted)
        return is_adopted

    return adopt


def _publish_object(log: Log, objects: Any, call: Call) -> Call:
    def publish_object(slot: int) -> Any:
        with log.event("publish_object", slot, objects.grant_to_be(slot).generation):
            return call(slot)

    return publish_object


def _evict(log: Log, objects: Any, call: Call) -> Call:
    def evict(slot: int) -> None:
        with log.event("evict", slot, objects._open[slot]):
            call(slot)

    return evict


def _scan(log: Log, objects: Any, call: Call) -> Call:
    """What was freed: which look saw which row clear is private to the writer, and its order is all that matters."""

    def scan() -> int:
        before = {slot: draining.generation for slot, draining in objects._draining.items()}
        count = int(call())
        for slot in before.keys() - objects._draining.keys():
            with log.event("scan", slot, before[slot]):
                pass
        return count

    return scan


def _send(log: Log, ring: Any, call: Call) -> Call:
    def send(*arguments: Any) -> Any:
        with log.event("send", ring.position) as results:
            outcome = call(*arguments)
            results[:] = int(outcome == 0), ring.position
        return outcome

    return send


def _admit(log: Log, ring: Any, call: Call) -> Call:
    def admit(row: int, entry: Any) -> None:
        with log.event("admit", row, entry.pid, entry.start):
            call(row, entry)

    return admit


# ---- a reader -------------------------------------------------------------------------------------------------------


def _read(log: Log, ring: Any, call: Call) -> Call:
    def read(*arguments: Any) -> Any:
        before = int(ring._ring.position)
        with log.event("read", ring.rank, before) as results:
            outcome = call(*arguments)
            results[0] = int(outcome == 0)
        return outcome

    return read


def _advance(log: Log, ring: Any, call: Call) -> Call:
    def advance() -> None:
        with log.event("advance", ring.rank) as results:
            call()
            results[1] = int(ring._ring.position)

    return advance


def _granted(action: str) -> Callable[[Log, Any, Call], Call]:
    """``lease``, of a message's slot or, as ``get``, of an object's: the result is whether there is one."""

    def wrap(log: Log, slots: Any, call: Call) -> Call:
        def lease(grant: Any) -> Any:
            with log.event(action, slots.row, *grant) as results:
                held = call(grant)
                results[0] = 1
            return held

        return lease

    return wrap


def _leave(log: Log, ring: Any, call: Call) -> Call:
    def leave() -> None:
        with log.event("leave", ring.rank):
            call()

    return leave


_WRAPPERS: dict[str, dict[str, Callable[[Log, Any, Call], Call]]] = {
    "SlotWriter": {
        "claim": _claim,
        "copy": _fill("copy"),
        "populate": _fill("populate"),
        "loan": _on_one("loan"),
        "adopt": _adopt,
        "publish": _publish,
        "abort": _abort,
        "reclaim": _on_one("reclaim"),
        "excuse_unread": _on_one("drop_reader"),
    },
    "RingWriter": {"send": _send, "send_plain": _send, "admit": _admit},
    "RingReader": {"read": _read, "wait": _read, "look": _read, "advance": _advance, "finish": _advance, "leave": _leave},
    "SlotReader": {"lease": _granted("lease")},
    "ObjectWriter": {
        "publish_object": _publish_object,
        "abort": _on_one("abort_object"),
        "evict": _evict,
        "scan": _scan,
    },
    "ObjectReader": {"lease": _granted("get")},
}
