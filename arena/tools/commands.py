"""The group of all subcommands; each is imported only when it is run or when help lists it."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from arena.errors import ArenaError
from arena.tools.exits import FAILED, INTERRUPTED, CommandFailed

COMMANDS = {
    "bench": "arena.bench.command:command",
    "demo": "arena.tools.demo:command",
    "gc": "arena.tools.gc:command",
    "offload": "arena.tools.offload:group",
    "trace": "arena.tools.trace:command",
}
"""Subcommand -> `module:attribute` of its click command."""


class Failed(click.ClickException):
    """What click shows as one line."""

    exit_code = FAILED


class LazyGroup(click.Group):
    """Finds its subcommands in `COMMANDS`, and turns what they raise into a line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import it."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read the output has gone: click ends without a word
            raise
        except (ArenaError, CommandFailed, OSError) as error:
            raise Failed(str(error) or type(error).__name__) from None
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@click.group(cls=LazyGroup)
@click.version_option(package_name="shm-tensor-arena", message="arena %(version)s")
def arena() -> None:
    """Move large tensors from an engine to its workers through shared memory.

    Exit codes: 0, all is right; 1, a checksum differs or a slot is leaked; 2, an argument that cannot be; 3, it could not be
    done, and one line says why; 130, interrupted.
    """
