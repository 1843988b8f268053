"""The models, by name. Each module has `Config`, `model(config)` and `VARIANTS`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

NAMES = (
    "message_slots", "object_slots", "one_word", "ring", "membership", "rendezvous", "rendezvous_meeting", "flag_orders",
    "double_release",
)  # fmt: skip


def available() -> tuple[str, ...]:
    """The names of the models that are there."""
    return tuple(name for name in NAMES if find_spec(f"spec.models.{name}") is not None)


def load(name: str) -> ModuleType:
    """The module of the model `name`."""
    return import_module(f"spec.models.{name}")
