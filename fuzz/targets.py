"""The targets, by name.  A target is a function that is given a session and raises Failure; its docstring is its summary."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fuzz.session import Session

Target = Callable[[Session], None]

_MODULES = {
    "crashpoints": "fuzz.crashpoints",
    "crashpairs": "fuzz.crashpoints",
    "killall": "fuzz.killall",
    "recovery": "fuzz.recovery",
    "exhaustion": "fuzz.exhaustion",
    "bytes": "fuzz.corruption",
    "pickle": "fuzz.graphs",
    "extents": "fuzz.extents",
    "cache": "fuzz.cache",
    "cachepoints": "fuzz.cachepoints",
    "soak": "fuzz.soak",
    "canary": "fuzz.canary",
}
_FUNCTIONS = {"bytes": "corruption", "pickle": "graphs"}


def names() -> list[str]:
    """All targets, in the order in which they are listed."""
    return list(_MODULES)


def find(name: str) -> Target:
    """The function of a target, imported when it is asked for."""
    target: Target = getattr(import_module(_MODULES[name]), _FUNCTIONS.get(name, name))
    return target


def summary(name: str) -> str:
    """The first line of a target's docstring."""
    return (find(name).__doc__ or "").strip().splitlines()[0]
