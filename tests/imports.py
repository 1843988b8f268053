"""What a Python source imports, read and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def imports_of(source: str) -> Iterator[tuple[str, str]]:
    """Each module that is imported, by its absolute name, wherever in the source; with what ``from`` takes of it, or ""."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.module or "", each.name) for each in node.names)
