"""The shared accesses of the protocol as small programs: every edge of the C header, both ends.

An access is named by the header's function without the order at its end (`published_store`); where several functions
share that name, the edge is added (`gen_store[object.evict]`).  Plain memory stands for payloads and records: two
accesses to it that nothing orders are a race, whether or not a value is wrong.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from spec.orders_machine import (
    RELAXED,
    RELEASE,
    SEQ_CST,
    Instruction,
    Program,
    add,
    cas,
    exchange,
    fence,
    kernel_exchange,
    kernel_load,
    kernel_wait,
    load,
    read,
    store,
    wait_for,
    write,
)

Body = Generator[Instruction, int, Any]

EMPTY, JOINING, JOINED, LEFT = 0, 1, 2, 3
UNADMITTED = 0  # what every word starts with; in the programs of admission it stands for JOINING
ASLEEP, WAKER = 1, 2
CLOSED, OPEN = 3, 2  # the generation of an evicted object; of the live one before
NEXT = 4  # the generation of the object that comes after in the same slot


def _reached(position: int) -> Any:
    return lambda value: value >= position


def _is(wanted: int) -> Any:
    return lambda value: value == wanted


# ---- message slots: publish, lease, release, reuse -----------------------------------------------


def _slot_writer() -> Body:
    for generation in (1, 2):
        if generation == 2:
            yield wait_for("done", _is(1), "done_load")
        yield store("generation", generation, "gen_store[slot.gen]")
        yield write("payload", generation)
        yield store("published", generation, "published_store")


def _slot_reader() -> Body:
    for generation in (1, 2):
        yield wait_for("published", _reached(generation), "published_load")
        if (yield load("generation", "gen_load[slot.gen]")) != generation:
            return f"message {generation}: the slot has another generation"
        if (yield read("payload")) != generation:
            return f"message {generation}: another generation's payload"
        yield store("done", generation, "done_store")
    return None


MESSAGE_SLOT = Program(
    "message slot",
    "two messages in one slot: publish, lease, release, reuse",
    ("ring.publish", "slot.done", "slot.gen"),
    (_slot_writer, _slot_reader),
    lambda _, reader: reader,
)


# ---- ring: consume -------------------------------------------------------------------------------


def _ring_writer() -> Body:
    for position in (1, 2):
        if position == 2:
            yield wait_for("consumed", _reached(1), "consumed_load")
        yield write("record", position)
        yield store("published", position, "published_store")


def _ring_reader() -> Body:
    for position in (1, 2):
        yield wait_for("published", _reached(position), "published_load")
        if (yield read("record")) != position:
            return f"record {position} is torn"
        yield store("consumed", position, "consumed_store")
    return None


RING = Program(
    "ring",
    "two records in a ring with room for one: publish, read, consume, overwrite",
    ("ring.publish", "ring.consume"),
    (_ring_writer, _ring_reader),
    lambda _, reader: reader,
)


# ---- parking -------------------------------------------------------------------------------------


def _park(after: str) -> Body:
    yield store("park", 1, "park_store")
    yield fence(after)


def _sleep() -> Body:
    """futex_wait: under the kernel's lock, sleep if the word is still 1, until somebody wakes."""
    yield kernel_exchange("futex", ASLEEP)
    if (yield kernel_load("park")) == 1:
        yield kernel_wait("futex", _is(WAKER))


def _wake_if_parked(before: str) -> Body:
    yield fence(before)
    if (yield load("park", "park_load")) and (yield exchange("park", 0, "park_exchange")):
        yield kernel_exchange("futex", WAKER)


def _lost(*results: Any) -> str | None:
    return "asleep, with something to do and nobody about to wake" if None in results else None


def _parking(
    name: str, words: str, label: str, waker: Any, sleeper: Any, given: tuple[tuple[str, str], ...] = ()
) -> Program:
    return Program(name, words, (label,), (waker, sleeper), _lost, given=given)


def _publisher() -> Body:
    yield store("published", 1, "published_store")
    yield from _wake_if_parked("fence_publish_to_parked")
    return True


def _waiting_reader() -> Body:
    yield from _park("fence_parked_to_published")
    if not (yield load("published", "published_load")):
        yield from _sleep()
    yield store("park", 0, "park_store")
    return True


def _consumer() -> Body:
    yield store("consumed", 1, "consumed_store")
    yield from _wake_if_parked("fence_consumed_to_parked")
    return True


def _waiting_writer() -> Body:
    yield from _park("fence_parked_to_consumed")
    if not (yield load("consumed", "consumed_load")):
        yield from _sleep()
    yield store("park", 0, "park_store")
    return True


def _leaver() -> Body:
    yield store("member", LEFT, "member_store")
    yield from _wake_if_parked("fence_consumed_to_parked")
    return True


def _joiner() -> Body:
    yield cas("member", EMPTY, JOINING, "member_cas")
    yield from _wake_if_parked("fence_consumed_to_parked")
    return True


def _writer_waiting_for_members() -> Body:
    yield from _park("fence_parked_to_consumed")
    if not (yield load("member", "member_load")):
        yield from _sleep()
    yield store("park", 0, "park_store")
    return True


def _admitter() -> Body:
    yield cas("member", UNADMITTED, JOINED, "member_cas")
    yield from _wake_if_parked("fence_publish_to_parked")
    return True


def _reader_waiting_for_admission() -> Body:
    yield from _park("fence_parked_to_published")
    if not (yield load("member", "member_load")):
        yield from _sleep()
    yield store("park", 0, "park_store")
    return True


PARKED_READER = _parking(
    "parked reader", "a record is published while the reader parks", "park.published", _publisher, _waiting_reader
)
PARKED_WRITER = _parking(
    "parked writer", "a record is consumed while the writer parks", "park.consumed", _consumer, _waiting_writer
)
PARKED_WRITER_LEAVE = _parking(
    "parked writer, leave", "LEFT is stored while the writer parks for room", "park.consumed",
    _leaver, _writer_waiting_for_members,
)  # fmt: skip
PARKED_WRITER_JOIN = _parking(
    "parked writer, join", "an entry is claimed while the writer parks for readers", "park.consumed",
    _joiner, _writer_waiting_for_members,
)  # fmt: skip
PARKED_JOINER = _parking(
    "parked joiner", "the writer admits a reader that parks while it is JOINING", "park.published",
    _admitter, _reader_waiting_for_admission,
)  # fmt: skip


def _publisher_of_two() -> Body:
    yield from _publisher()
    yield store("published", 2, "published_store")
    yield from _wake_if_parked("fence_publish_to_parked")
    return True


def _reader_of_two() -> Body:
    for position in (1, 2):
        yield from _park("fence_parked_to_published")
        if (yield load("published", "published_load")) < position:
            yield from _sleep()
        yield store("park", 0, "park_store")
    return True


PARKED_TWICE = _parking(
    "parked twice", "the reader parks again while a late waker still has its first flag", "park.published",
    _publisher_of_two, _reader_of_two, (("published_store", RELAXED), ("published_load", RELAXED)),
)  # fmt: skip


# ---- shutdown ------------------------------------------------------------------------------------


def _shutdown() -> Body:
    yield store("closed", 1, "closed_store")
    yield fence("fence_closed_to_parked")
    yield store("park", 0, "park_store")
    yield kernel_exchange("futex", WAKER)
    return True


def _close_for_readers() -> Body:
    yield store("closed", 1, "closed_store")
    yield fence("fence_closed_to_parked")
    yield exchange("park", 0, "park_exchange")
    yield kernel_exchange("futex", WAKER)
    return True


def _owner_of(fence_after_park: str) -> Any:
    def owner() -> Body:
        yield from _park(fence_after_park)
        if not (yield load("closed", "closed_load")):
            yield from _sleep()
        return True

    return owner


SHUTDOWN_READER = _parking(
    "shutdown of a reader", "any thread closes while the reader parks", "closed", _shutdown,
    _owner_of("fence_parked_to_published"),
)  # fmt: skip
SHUTDOWN_WRITER = _parking(
    "shutdown of a writer", "any thread closes while the writer parks", "closed", _shutdown,
    _owner_of("fence_parked_to_consumed"),
)  # fmt: skip
CLOSED_WRITER = _parking(
    "closed by the writer", "the writer says that nothing more will come while a reader parks", "closed",
    _close_for_readers, _owner_of("fence_parked_to_published"),
)  # fmt: skip


def _last_publisher() -> Body:
    yield write("record", 1)
    yield store("published", 1, "published_store")
    yield store("closed", 1, "closed_store")


def _reader_after_close() -> Body:
    yield wait_for("closed", _is(1), "closed_load")
    return (yield load("published", "published_load"))


LAST_RECORD = Program(
    "last record",
    "a record is published, then the writer closes: who sees it closed sees the record",
    ("closed",),
    (_last_publisher, _reader_after_close),
    lambda _, published: None if published else "the last record is lost",
)


# ---- object slots --------------------------------------------------------------------------------


def _evicter() -> Body:
    yield store("generation", CLOSED, "gen_store[object.evict]")
    if (yield load("hold", "hold_load")) == OPEN:
        yield wait_for("hold", lambda value: value != OPEN, "hold_load")
    yield write("payload", NEXT)
    yield store("generation", NEXT, "gen_store[object.publish]")


def _getter(generation: int) -> Any:
    def getter() -> Body:
        yield store("hold", generation, "hold_store[object.evict]")
        found = (yield load("generation", "gen_load[object.evict]")) == generation
        payload = (yield read("payload")) if found else generation
        yield store("hold", 0, "hold_store[object.release]")
        return payload == generation

    return getter


def _object_program(name: str, words: str, generation: int) -> Program:
    return Program(
        name,
        words,
        ("object.evict", "object.release", "object.publish"),
        (_evicter, _getter(generation)),
        lambda _, right: None if right else "a get returned another object's payload",
        (("generation", OPEN), ("payload", OPEN)),
    )


EVICT_HELD = _object_program("evict", "a get of an object that is being evicted and its slot reused", OPEN)
GET_NEXT = _object_program("put and get", "a get of the object that is being put, its handle come by any road", NEXT)


# ---- members -------------------------------------------------------------------------------------


def _admitting_writer() -> Body:
    yield store("published", 1, "published_store")
    yield store("consumed", 1, "consumed_store")
    yield cas("member", UNADMITTED, JOINED, "member_cas")


def _admitted_reader() -> Body:
    yield wait_for("member", _is(JOINED), "member_load")
    position = yield load("consumed", "consumed_load")
    return position == 1 and (yield load("published", "published_load")) >= position


ADMIT = Program(
    "admit",
    "the writer sets the joiner's cursor, then JOINED",
    ("member.admit",),
    (_admitting_writer, _admitted_reader),
    lambda _, right: None if right else "the joiner starts from a dead reader's cursor, or ahead of the writer",
)


def _leaving_reader() -> Body:
    yield read("record")
    yield store("consumed", 1, "consumed_store")
    yield store("member", LEFT, "member_store")


def _writer_seeing_left() -> Body:
    yield wait_for("member", _is(LEFT), "member_load")
    final = yield load("consumed", "consumed_load")
    yield write("record", 2)
    return final


LEAVE = Program(
    "leave",
    "a reader's last cursor, then LEFT: what it has read is not taken for unread",
    ("member.leave",),
    (_leaving_reader, _writer_seeing_left),
    lambda _, final: None if final == 1 else "what the reader has read is taken for unread",
)


def _reclaiming_writer() -> Body:
    yield store("hold", 0, "hold_store[object.release]")
    yield store("done", 0, "done_store")
    yield store("member", EMPTY, "member_store")
    yield from _evicter()


def _next_reader() -> Body:
    if (yield cas("member", EMPTY, JOINING, "member_cas")) != EMPTY:
        return True
    return (yield from _getter(OPEN)())


RECLAIM = Program(
    "reclaim",
    "a dead reader's rows are zeroed, then EMPTY; the next reader claims the entry and gets at once",
    ("member.reclaim", "member.claim"),
    (_reclaiming_writer, _next_reader),
    lambda _, right: None if right else "a get returned another object's payload",
    (("generation", OPEN), ("payload", OPEN), ("hold", OPEN), ("member", JOINED)),
    (
        ("gen_store[object.evict]", SEQ_CST),
        ("gen_load[object.evict]", SEQ_CST),
        ("hold_store[object.evict]", SEQ_CST),
        ("hold_load", SEQ_CST),
        ("gen_store[object.publish]", RELEASE),
    ),
)


# ---- traces --------------------------------------------------------------------------------------


def _stamped(access: Instruction) -> Any:
    def thread() -> Body:
        before = yield add("stamp", 1, "stamp_add")
        value = yield access
        after = yield add("stamp", 1, "stamp_add")
        return before, value, after

    return thread


def _stamps_lie(storing: Any, loading: Any) -> str | None:
    if storing[2] < loading[0] and loading[1] == 0:
        return "an event that ended before another began is not seen by it"
    if loading[2] < storing[0] and loading[1] == 1:
        return "an event sees one that began after it had ended"
    return None


STAMPS = Program(
    "stamps",
    "two events of two processes, each stamped before and after",
    ("trace.stamp",),
    (_stamped(store("word", 1, "gen_store[slot.gen]")), _stamped(load("word", "gen_load[slot.gen]"))),
    _stamps_lie,
)

# ---- designs that no order saves -----------------------------------------------------------------


def _admitter_that_unparks() -> Body:
    yield store("park", 0, "park_store")
    yield from _admitter()
    return True


ADMIT_UNPARKS = _parking(
    "admission clears the park word", "the writer stores 0 over the 1 of a joiner that has parked, then JOINED",
    "park.published", _admitter_that_unparks, _reader_waiting_for_admission,
)  # fmt: skip

PROGRAMS = (
    MESSAGE_SLOT, RING, PARKED_READER, PARKED_WRITER, PARKED_WRITER_LEAVE, PARKED_WRITER_JOIN, PARKED_JOINER,
    PARKED_TWICE, SHUTDOWN_READER, SHUTDOWN_WRITER, CLOSED_WRITER, LAST_RECORD, EVICT_HELD, GET_NEXT, ADMIT, LEAVE,
    RECLAIM, STAMPS,
)  # fmt: skip
