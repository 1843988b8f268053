"""`spec/README.md` lists every fault of every model, with what it breaks and how soon."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import spec

TEXT = Path(spec.__file__).with_name("README.md").read_text()


@pytest.mark.parametrize("name", ["object_slots", "one_word", "ring", "membership", "rendezvous"])
def test_the_faults_are_listed(name: str) -> None:
    variants = import_module(f"spec.models.{name}").VARIANTS
    for key, each in variants.items():
        if each.breaks:
            assert f"| `{key}`: {each.summary} | {each.breaks} | {each.steps} |" in TEXT
        else:
            assert f"`{key}`" in TEXT or "right" in each.summary
