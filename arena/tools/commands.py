"""The group of all subcommands; each is imported only when it is run or when help lists it."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "bench": "arena.bench.command:command",
    "demo": "arena.tools.demo:command",
    "gc": "arena.tools.gc:command",
    "offload": "arena.tools.offload:group",
    "trace": "arena.tools.trace:command",
}
"""Subcommand -> `module:attribute` of its click command."""


class LazyGroup(click.Group):
    """Finds its subcommands in `COMMANDS`."""

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


@click.group(cls=LazyGroup)
@click.version_option(package_name="shm-tensor-arena", message="arena %(version)s")
def arena() -> None:
    """Move large tensors from an engine to its workers through shared memory."""
