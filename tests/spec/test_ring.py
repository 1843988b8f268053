"""The ring: exact numbers of states and transitions, what each fault breaks, and that its actions are functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked import breaks_as_said, holds

from spec import story
from spec.checker import check
from spec.models.ring import VARIANTS, Config, model
from spec.models.ring_properties import DROPS_THE_DEAD

QUIET = Config(readers=2, deaths=False, shutdown=False, spurious=False)
MORTAL = Config(readers=2, shutdown=False, spurious=False)
LEAVING = Config(readers=2, deaths=False, spurious=False)

INSTANCES = {
    "one reader, never shut down": (Config(shutdown=False), 1_456, 5_863),
    "one reader, one record": (Config(), 6_389, 30_806),
    "one reader, two records": (Config(capacity=2), 9_064, 43_574),
    "one reader, three records": (Config(capacity=3), 11_743, 56_361),
    "one reader, one record, sliced sleeps": (Config(slices=True), 6_458, 30_982),
}
TWO_READERS = {
    "one record": (QUIET, 66_879, 236_176),
}
DEEP_INSTANCES = {
    "two records": (replace(QUIET, capacity=2), 144_080, 512_148),
    "one record, deaths and rejoin": (MORTAL, 99_588, 593_731),
    "two records, deaths and rejoin": (replace(MORTAL, capacity=2), 222_081, 1_341_749),
    "one record, shutdown and leave": (LEAVING, 1_488_007, 7_228_720),
    "one record, shutdown, leave and deaths": (
        Config(readers=2, rejoin=False, spurious=False, slices=True),
        1_725_877,
        12_790_236,
    ),
}
DEEP_VARIANTS = {"no-slices"}
HARMLESS = {"watcher-wakes": (1_478, 5_971), "sleep-on-position": (1_667, 6_707)}
FUNCTIONS = {
    "reserve", "write", "publish", "wake_readers", "park", "recheck", "sleep", "unpark", "drop_reader", "admit",
    "read", "advance", "wake_writer", "last_look", "leave", "shutdown",
}  # fmt: skip


@pytest.mark.parametrize("name", INSTANCES)
def test_one_reader(name: str) -> None:
    config, states, transitions = INSTANCES[name]
    assert holds(model(config)) == (states, transitions)


@pytest.mark.parametrize("name", TWO_READERS)
def test_two_readers(name: str) -> None:
    config, states, transitions = TWO_READERS[name]
    assert holds(model(config), drain=False) == (states, transitions)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", {**TWO_READERS, **DEEP_INSTANCES})
def test_two_readers_deep(name: str) -> None:
    config, states, transitions = {**TWO_READERS, **DEEP_INSTANCES}[name]
    assert holds(model(config), drain=states < 300_000) == (states, transitions)


def test_dead_readers_are_dropped() -> None:
    result = check(replace(model(Config()), drain=DROPS_THE_DEAD))
    assert result.violation is None, story.as_text(result.violation)
    assert result.undrainable == 0


def test_dead_readers_are_not_dropped_by_the_fault() -> None:
    result = check(replace(model(VARIANTS["dead-kept"].config), drain=DROPS_THE_DEAD))
    assert result.violation is not None
    assert (result.violation.name, result.violation.steps) == ("stuck", 1)


@pytest.mark.parametrize(("name", "stuck", "states"), [("dead-kept", 33, 1_176), ("closed-stays", 974, 5_686)])
def test_stuck_states(name: str, stuck: int, states: int) -> None:
    result = check(model(VARIANTS[name].config))
    assert (result.undrainable, result.states) == (stuck, states)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name in DEEP_VARIANTS else ()) for name in VARIANTS]
)
def test_variants(name: str) -> None:
    variant = VARIANTS[name]
    breaks_as_said(model(variant.config), variant)


def test_harmless_variants_are_counted() -> None:
    harmless = {name: variant for name, variant in VARIANTS.items() if variant.breaks is None}
    assert {name: holds(model(variant.config)) for name, variant in harmless.items()} == HARMLESS


def test_actions_are_functions_of_the_code() -> None:
    assert {each.function for each in model(Config()).actions} - {None} == FUNCTIONS


def test_both_ends_of_an_edge_are_named() -> None:
    ends: dict[str, set[str]] = {}
    for each in model(Config()).actions:
        for edge in each.edges:
            ends.setdefault(edge, set()).add(each.actor.split()[0])
    for edge in ("[ring.publish]", "[ring.consume]", "[park.published]", "[park.consumed]", "[member.leave]"):
        assert ends[edge] == {"writer", "reader"}


def test_the_code_has_these_functions() -> None:
    """Each process's actions are methods of its end of the ring."""
    from arena.protocol.ring import RingReader, RingWriter

    ends: dict[str, type] = {"writer": RingWriter, "reader": RingReader}
    for each in model(Config()).actions:
        if each.function is not None:
            assert callable(getattr(ends[each.actor.split()[0]], each.function, None)), each
