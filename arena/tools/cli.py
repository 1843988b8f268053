"""The console script `arena`."""

from __future__ import annotations

import io
import sys

from arena.tools.exits import FAILED
from arena.tools.extras import MissingExtra, require


def main() -> None:
    """Run the command line; without the packages that it needs, say which extra brings them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the locale lacks must not cost what was measured
            stream.reconfigure(errors="backslashreplace")
    try:
        require("click")
    except MissingExtra as error:
        print(f"arena: {error}", file=sys.stderr)
        sys.exit(FAILED)
    from arena.tools.commands import arena

    arena(prog_name="arena")
