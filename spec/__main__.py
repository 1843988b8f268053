"""`python -m spec COMMAND`. Each command lives in a module of its own, which is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

# name: (module, summary). The click command is `command` in its module; a module that is not there is not listed.
COMMANDS = {
    "check": ("spec.check", "Search every reachable state of a model."),
    "prove": ("spec.prove.command", "Prove a protocol for any number of slots, readers and messages."),
    "orders": ("spec.orders", "Try all memory orders of the shared accesses."),
    "tla": ("spec.tla", "Print a model as a TLA+ module with its configuration."),
    "mutants": ("spec.mutants", "Run the detectors against seeded faults."),
    "trace": ("spec.trace", "Hold the logs of a real run to the model."),
    "picture": ("spec.picture", "Draw a protocol from its model."),
}


class LazyGroup(click.Group):
    """A group whose commands are looked up in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The protocols of arena: check the models, prove them, and hold code and traces to them."""


if __name__ == "__main__":
    main(prog_name="python -m spec")
