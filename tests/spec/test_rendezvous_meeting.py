"""Those who meet at a barrier agree: exact numbers of states and transitions, and what the dropped rules break."""

from __future__ import annotations

import pytest
from checked import breaks_as_said, holds

from spec.models.rendezvous_meeting import VARIANTS, Config, model

COUNTS = {"AAA": (6170, 11754), "AAB": (13479, 32607)}


@pytest.mark.parametrize("instances", COUNTS)
def test_counts(instances: str) -> None:
    """With one that is replaced, and with a stranger."""
    assert holds(model(Config(instances))) == COUNTS[instances]


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    variant = VARIANTS[name]
    breaks_as_said(model(variant.config), variant)
