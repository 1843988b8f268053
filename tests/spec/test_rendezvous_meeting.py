"""Those who meet at a barrier agree: exact numbers of states and transitions, and what the dropped rules break."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checked import breaks_as_said, holds

from spec.checker import check
from spec.model import Drain
from spec.models.rendezvous_meeting import VARIANTS, Config, State, Step, model, pass_barrier

COUNTS = {"AAA": (6170, 11754), "AAB": (13479, 32607)}
TO_ARRIVE = (Step.AWAY, Step.IN, Step.TELL, Step.READY)
THROUGH = (Step.AWAY, Step.MEMBER, Step.LEAVE, Step.GONE, Step.DEAD)


def all_know(config: Config, state: State) -> bool:
    """Nobody waits at a barrier that enough have come to, or can still come to, nor on the way to it."""
    for name, seats in config.seats:
        peers = [each for each, other in zip(state.processes, config.instances, strict=True) if other == name]
        enough = sum(each.arrived or each.step in TO_ARRIVE for each in peers) >= seats
        if enough and not all(each.step in THROUGH for each in peers):
            return False
    return True


DRAIN = Drain("D", demanded=lambda config, state: True, good=all_know)


@pytest.mark.parametrize("instances", COUNTS)
def test_counts(instances: str) -> None:
    """With one that is replaced, and with a stranger."""
    assert holds(replace(model(Config(instances)), drain=DRAIN)) == COUNTS[instances]


def test_a_barrier_that_lets_nobody_pass_is_noticed() -> None:
    right = replace(model(Config("AAA")), drain=DRAIN)
    stuck = check(replace(right, actions=tuple(each for each in right.actions if each is not pass_barrier)))
    assert stuck.violation is not None
    assert stuck.violation.name == "D"


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    variant = VARIANTS[name]
    breaks_as_said(model(variant.config), variant)
