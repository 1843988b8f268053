"""Imports that belong to the optional extra `demo`, with an error that names it."""

from __future__ import annotations

import importlib
from types import ModuleType

from arena.tools.exits import CommandFailed


class MissingExtra(CommandFailed, ImportError):
    """A command needs a package of an extra that is not installed: install the extra that the text names."""


def require(module: str, extra: str = "demo") -> ModuleType:
    """Import `module`, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtra(
            f"this command needs the package {missing.name!r}, which the extra {extra!r} brings: "
            f"pip install 'shm-tensor-arena[{extra}]'"
        ) from None
