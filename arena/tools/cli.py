"""The console script `arena`."""

from __future__ import annotations

import sys

from arena.tools.exits import FAILED
from arena.tools.extras import MissingExtra, require


def main() -> None:
    """Run the command line; without the packages that it needs, say which extra brings them."""
    try:
        require("click")
    except MissingExtra as error:
        print(f"arena: {error}", file=sys.stderr)
        sys.exit(FAILED)
    from arena.tools.commands import arena

    arena(prog_name="arena")
