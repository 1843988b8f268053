"""The programs of parking and shutdown: store mine, fence, load yours; and the designs of them that no order saves."""

from __future__ import annotations

from typing import Any

from spec.orders_machine import (
    RELAXED,
    Body,
    Program,
    cas,
    equals,
    exchange,
    fence,
    kernel_exchange,
    kernel_load,
    kernel_wait,
    load,
    store,
    wait_for,
    write,
)

EMPTY, JOINING, JOINED, LEFT = 0, 1, 2, 3
UNADMITTED = 0  # what every word starts with; in the programs of admission it stands for JOINING
ASLEEP, WAKER = 1, 2


# ---- parking -------------------------------------------------------------------------------------


def _park(after: str) -> Body:
    yield store("park", 1, "park_store")
    yield fence(after)


def _sleep() -> Body:
    """futex_wait: under the kernel's lock, sleep if the word is still 1, until somebody wakes."""
    yield kernel_exchange("futex", ASLEEP)
    if (yield kernel_load("park")) == 1:
        yield kernel_wait("futex", equals(WAKER))


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
    yield wait_for("closed", equals(1), "closed_load")
    return (yield load("published", "published_load"))


LAST_RECORD = Program(
    "last record",
    "a record is published, then the writer closes: who sees it closed sees the record",
    ("closed",),
    (_last_publisher, _reader_after_close),
    lambda _, published: None if published else "the last record is lost",
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

PARKING = (
    PARKED_READER, PARKED_WRITER, PARKED_WRITER_LEAVE, PARKED_WRITER_JOIN, PARKED_JOINER, PARKED_TWICE, SHUTDOWN_READER,
    SHUTDOWN_WRITER, CLOSED_WRITER, LAST_RECORD,
)  # fmt: skip
