"""The shared accesses of the protocol as small programs: every edge of the C header, both ends.

An access is named by the header's function without the order at its end (`published_store`); where several functions
share that name, the edge is added (`gen_store[object.evict]`).  Plain memory stands for payloads and records: two
accesses to it that nothing orders are a race, whether or not a value is wrong.
"""

from __future__ import annotations

from typing import Any

from spec.orders_machine import (
    RELEASE,
    SEQ_CST,
    Body,
    Instruction,
    Program,
    add,
    cas,
    equals,
    load,
    reached,
    read,
    store,
    wait_for,
    write,
)
from spec.orders_parking import EMPTY, JOINED, JOINING, LEFT, PARKING, UNADMITTED

CLOSED, OPEN = 3, 2  # the generation of an evicted object; of the live one before
NEXT = 4  # the generation of the object that comes after in the same slot


# ---- message slots: publish, lease, release, reuse -----------------------------------------------


def _slot_writer() -> Body:
    for generation in (1, 2):
        if generation == 2:
            yield wait_for("done", equals(1), "done_load")
        yield store("generation", generation, "gen_store[slot.gen]")
        yield write("payload", generation)
        yield store("published", generation, "published_store")


def _slot_reader() -> Body:
    for generation in (1, 2):
        yield wait_for("published", reached(generation), "published_load")
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
            yield wait_for("consumed", reached(1), "consumed_load")
        yield write("record", position)
        yield store("published", position, "published_store")


def _ring_reader() -> Body:
    for position in (1, 2):
        yield wait_for("published", reached(position), "published_load")
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
    yield wait_for("member", equals(JOINED), "member_load")
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
    yield wait_for("member", equals(LEFT), "member_load")
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

PROGRAMS = (MESSAGE_SLOT, RING, *PARKING, EVICT_HELD, GET_NEXT, ADMIT, LEAVE, RECLAIM, STAMPS)

# Each edge of the header: the accesses at both its ends.
EDGES = {
    "ring.publish": {"published_store", "published_load", "gen_store[slot.gen]"},  # which orders the word as well
    "ring.consume": {"consumed_store", "consumed_load"},
    "slot.done": {"done_store", "done_load"},
    "slot.gen": {"gen_store[slot.gen]", "gen_load[slot.gen]"},
    "object.publish": {"gen_store[object.publish]", "gen_load[object.evict]"},
    "object.evict": {"gen_store[object.evict]", "hold_load", "hold_store[object.evict]", "gen_load[object.evict]"},
    "object.release": {"hold_store[object.release]", "hold_load"},
    "park.published": {
        "park_store", "park_load", "park_exchange", "fence_publish_to_parked", "fence_parked_to_published",
    },
    "park.consumed": {
        "park_store", "park_load", "park_exchange", "fence_consumed_to_parked", "fence_parked_to_consumed",
    },
    "closed": {"closed_store", "fence_closed_to_parked", "park_store", "park_exchange", "closed_load"},
    "member.claim": {"member_cas", "member_load"},
    "member.admit": {"member_cas", "member_load"},
    "member.leave": {"member_store", "member_load"},
    "member.reclaim": {"member_store", "member_cas", "member_load"},
    "trace.stamp": {"stamp_add"},
}  # fmt: skip
