"""Membership: exact numbers of states and transitions, and what each fault breaks."""

from __future__ import annotations

import pytest
from checked import breaks_as_said, holds

from spec.checker import reachable
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


@pytest.mark.parametrize("name", INSTANCES)
def test_counts(name: str) -> None:
    config, states, transitions = INSTANCES[name]
    assert holds(model(config)) == (states, transitions)


@pytest.mark.deep
@pytest.mark.parametrize("name", DEEP_INSTANCES)
def test_counts_deep(name: str) -> None:
    config, states, transitions = DEEP_INSTANCES[name]
    assert holds(model(config)) == (states, transitions)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    variant = VARIANTS[name]
    breaks_as_said(model(variant.config), variant)


def test_a_time_out_names_the_missing_ranks() -> None:
    """Both, or either one: whoever is no member."""
    states = reachable(model(Config(2, messages=False, objects=False)))
    assert {state.writer.named for state in states} == {(), (0,), (1,), (0, 1)}
