"""The models know nothing of the code, and the code nothing of the models: only abstraction and traces import both."""

from __future__ import annotations

from pathlib import Path

import pytest
from imports import imports_of

ROOT = Path(__file__).parent.parent.parent
# What the code's memory means in the words of the models, and what its logs do.
BRIDGES = {f"spec/{name}.py" for name in ("refine", "trace", "trace_search", "trace_messages", "trace_objects")}


def importers(folder: str, package: str) -> set[str]:
    """The files of a folder that import something of a package."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*.py")
        if any(module.split(".")[0] == package for module, _ in imports_of(path.read_text()))
    }


def test_the_models_know_nothing_of_the_code() -> None:
    assert importers("spec", "arena") == BRIDGES


@pytest.mark.parametrize("package", ["spec", "tests", "fuzz"])
def test_the_code_knows_nothing_of_what_holds_it(package: str) -> None:
    assert importers("arena", package) == set()


@pytest.mark.parametrize(
    "source",
    ["import arena", "import arena.queue as q", "from arena import queue", "def f():\n    from arena.queue import it"],
)
def test_an_import_is_seen(source: str) -> None:
    assert [module.split(".")[0] for module, _ in imports_of(source)] == ["arena"]
