"""Membership: exact numbers of states and transitions, and what each fault breaks."""

from __future__ import annotations

import pytest

from spec import story
from spec.checker import check, reachable
from spec.models.membership import VARIANTS, Config, model

INSTANCES = {
    "one reader": (Config(), 795, 2_807),
    "one reader, messages only": (Config(objects=False), 402, 1_166),
    "two readers, handshake and leave": (Config(2, messages=False, objects=False), 4_633, 19_353),
    "two readers, messages, nobody leaves": (Config(2, objects=False, leave=False), 8_491, 35_810),
}
DEEP_INSTANCES = {
    "two readers, objects": (Config(2, messages=False), 17_889, 97_791),
    "two readers, messages": (Config(2, objects=False), 14_730, 63_798),
}


def holds(config: Config) -> tuple[int, int]:
    """Check an instance that must be right, and return its numbers of states and transitions."""
    result = check(model(config))
    assert result.violation is None, story.as_text(result.violation)
    assert result.ok
    assert result.undrainable == 0
    return result.states, result.transitions


@pytest.mark.parametrize("name", INSTANCES)
def test_counts(name: str) -> None:
    config, states, transitions = INSTANCES[name]
    assert holds(config) == (states, transitions)


@pytest.mark.deep
@pytest.mark.parametrize("name", DEEP_INSTANCES)
def test_counts_deep(name: str) -> None:
    config, states, transitions = DEEP_INSTANCES[name]
    assert holds(config) == (states, transitions)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    variant = VARIANTS[name]
    violation = check(model(variant.config)).violation
    found = None if violation is None else (violation.name, violation.steps)
    assert found == (None if variant.breaks is None else (variant.breaks, variant.steps))


def test_a_time_out_names_the_missing_ranks() -> None:
    """Both, or either one: whoever is no member."""
    states = reachable(model(Config(2, messages=False, objects=False)))
    assert {state.writer.named for state in states} == {(), (0,), (1,), (0, 1)}
