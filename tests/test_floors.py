"""The floors of the package: who imports whom points down only, and nowhere in a circle."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from imports import imports_of

ROOT = Path(__file__).parent.parent
FLOORS = [
    {"tools", "bench"},
    {"queue"},
    {"writer", "reader", "cache", "cache_reader", "cache_store", "cache_handle", "mirrored", "hashing"},
    {"offload", "offload_held", "ends", "endpoint", "handle"},
    {"message"},
    {"device", "protocol"},
    {"shm"},
    {"config", "statistics", "ratelimit"},
    {"errors"},
]
"""From the top."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "arena").rglob("*.py")
}


def imported(module: str) -> Iterator[str]:
    """The modules of the package that one imports, also inside its functions."""
    for of, taken in imports_of(MODULES[module].read_text()):
        yield from [each for each in (f"{of}.{taken}", of) if each in MODULES][:1]


def floor(module: str) -> int:
    (found,) = (number for number, names in enumerate(FLOORS) if module.split(".")[1] in names)
    return found


def test_imports_point_down_only() -> None:
    inner = [module for module in MODULES if module != "arena"]
    top = FLOORS.index({"tools", "bench"})  # what uses the package as its users do
    wrong = [
        f"{module} imports {other}"
        for module in inner
        for other in imported(module)
        if (floor(module) != top if other == "arena" else floor(other) < floor(module))
    ]
    assert not wrong


def test_imports_make_no_circle() -> None:
    TopologicalSorter({module: set(imported(module)) - {module} for module in MODULES}).prepare()
