"""`python -m spec COMMAND`. Each command lives in a module of its own, which is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

# command: the module that has it; its click command is called `command` there
COMMANDS = {
    "check": "spec.check",
    "prove": "spec.prove",
    "orders": "spec.orders",
    "tla": "spec.tla",
    "mutants": "spec.mutants",
    "trace": "spec.trace",
    "picture": "spec.picture",
}


class LazyGroup(click.Group):
    """A group whose commands are looked up in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, module in COMMANDS.items() if find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The protocols of arena: check the models, prove them, and hold code and traces to them."""


if __name__ == "__main__":
    main(prog_name="python -m spec")
