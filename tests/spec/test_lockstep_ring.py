"""The production ring does what the model of ring and parking does, as far as one process can tell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from lockstep_ring import RingCode, calls
from lockstep_walks import Mismatch, run_at_random, walk

from arena.errors import CorruptError
from arena.protocol.ring import Outcome
from arena.shm.layout import HEADER_PUBLISHED, HEADER_WRITER_PARK, MEMBER_BYTES, MEMBER_CONSUMED, MEMBER_PARK, PAGE
from spec.models import ring
from spec.models.ring_state import Config

CALM = Config(readers=2, shutdown=False, deaths=False, spurious=False)


@pytest.mark.parametrize(
    ("config", "states", "taken"),
    [
        (Config(), 567, 2_260),
        (Config(capacity=2), 788, 3_128),
        (CALM, 4_658, 13_974),
        pytest.param(Config(readers=2, shutdown=False, spurious=False), 8_736, 44_110, marks=pytest.mark.deep),
    ],
    ids=["1 reader", "1 reader, 2 records", "2 readers", "2 readers that die"],
)
def test_every_call_from_every_state(config: Config, states: int, taken: int) -> None:
    with closing(RingCode(config)) as code:
        assert walk(ring.model(config), code, calls) == (states, taken)


# ---- faults ---------------------------------------------------------------------------------------------------------


def word(code: RingCode, at: int, value: int) -> None:
    code._control[at : at + 8] = value.to_bytes(8, "little")


def publish_too_far(code: RingCode) -> None:
    publish = code.writer.publish

    def changed(nbytes: int) -> None:
        publish(nbytes)
        word(code, HEADER_PUBLISHED, code.writer.position + 8)

    code.writer.publish = changed  # type: ignore[method-assign]


def publish_nothing(code: RingCode) -> None:
    publish = code.writer.publish

    def changed(nbytes: int) -> None:
        before = code.words.published
        publish(nbytes)
        word(code, HEADER_PUBLISHED, before)

    code.writer.publish = changed  # type: ignore[method-assign]


def wake_nobody(code: RingCode) -> None:
    code.writer.wake_readers = lambda: None  # type: ignore[method-assign]


def always_room(code: RingCode) -> None:
    reserve = code.writer.reserve
    code.writer.reserve = lambda nbytes: (reserve(nbytes), Outcome.OK)[1]  # type: ignore[method-assign]


def never_park(code: RingCode) -> None:
    code.writer.park = lambda: None  # type: ignore[method-assign]


def stay_parked(code: RingCode) -> None:
    unpark = code.writer.unpark

    def changed() -> None:
        unpark()
        word(code, HEADER_WRITER_PARK, 1)

    code.writer.unpark = changed  # type: ignore[method-assign]


def keep_the_dead(code: RingCode) -> None:
    code.writer.drop_reader = lambda rank: None  # type: ignore[method-assign]


def admit_at_zero(code: RingCode) -> None:
    admit = code.writer.admit

    def changed(rank: int, entry: object) -> None:
        admit(rank, entry)  # type: ignore[arg-type]
        word(code, PAGE + MEMBER_BYTES * rank + MEMBER_CONSUMED, 0)

    code.writer.admit = changed  # type: ignore[assignment, method-assign]


def on_readers(name: str, change: Callable[[RingCode, int], None]) -> Callable[[RingCode], None]:
    """A fault in a call of every reader's: the change comes after it."""

    def fault(code: RingCode) -> None:
        call = getattr(code, name)

        def changed(row: int) -> None:
            call(row)
            change(code, row)

        setattr(code, name, changed)

    fault.__name__ = f"{name}, {change.__name__}"
    return fault


def parked_again(code: RingCode, row: int) -> None:
    word(code, PAGE + MEMBER_BYTES * row + MEMBER_PARK, 1)


def running_again(code: RingCode, row: int) -> None:
    word(code, PAGE + MEMBER_BYTES * row + MEMBER_PARK, 0)


def not_advanced(code: RingCode, row: int) -> None:
    word(code, PAGE + MEMBER_BYTES * row + MEMBER_CONSUMED, code.words.consumed(row) - code.footprint)


def wakes_the_writer_for_nothing(code: RingCode, row: int) -> None:
    word(code, HEADER_WRITER_PARK, 0)


FAULTS = (
    publish_too_far, publish_nothing, wake_nobody, always_room, never_park, stay_parked, keep_the_dead, admit_at_zero,
    on_readers("reader_park", running_again), on_readers("reader_unpark", parked_again),
    on_readers("advance", not_advanced), on_readers("shutdown", parked_again),
    on_readers("reader_sleep", wakes_the_writer_for_nothing),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_code_is_noticed(fault: Callable[[RingCode], None]) -> None:
    config = Config(capacity=2)
    with closing(RingCode(config)) as code:
        fault(code)
        with pytest.raises((Mismatch, CorruptError)):
            walk(ring.model(config), code, calls)


# ---- larger sizes, at random -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("examples", [15, pytest.param(500, marks=pytest.mark.deep)])
def test_random_calls_at_a_larger_size(examples: int) -> None:
    config = Config(readers=4, capacity=4)
    run_at_random(ring.model(config), lambda: RingCode(config), examples, steps=80, possible=calls)
