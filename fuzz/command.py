"""The command line: seeds, replays, progress."""

from __future__ import annotations

import faulthandler
import random
import sys
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fuzz import targets
from fuzz.planted import SEEN_BY
from fuzz.session import Failure, Session

SILENCE_LIMIT_S = 300.0
"""A harness that has not finished a case for so long hangs itself: its stacks are printed, and it exits with 1."""


class _Group(click.Group):
    """``TARGET`` stands for any name of ``targets``; ``list`` lists them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["list", *targets.names()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "list":
            return _listing
        return _command(cmd_name) if cmd_name in targets.names() else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Targets"):
            formatter.write_dl([(name, targets.summary(name)) for name in targets.names()])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Fuzzers of arena.  A run that found something exits with 1 and prints the command that replays it."""


@click.command("list")
def _listing() -> None:
    """Names the targets."""
    table = Table("target", "what it does", box=None)
    for name in targets.names():
        table.add_row(name, targets.summary(name))
    Console(soft_wrap=True).print(table)


def _options(name: str) -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(["--seed"], type=int, help="of everything random; by default a new one"),
        click.Option(["--seconds"], type=click.FloatRange(min=0), help="how long"),
        click.Option(["--runs"], type=click.IntRange(min=1), help="how many cases"),
        click.Option(["--first"], type=click.IntRange(min=0), help="the number of the first case, to replay it"),
    ]
    if name == "crashpoints":
        options += [
            click.Option(["--role"], type=click.Choice(["writer", "reader", "joiner"]), multiple=True, help="who is hit"),
            click.Option(["--signal"], type=click.Choice(["kill", "stop", "exception"]), multiple=True, help="by what"),
            click.Option(["--readers"], type=click.IntRange(1, 63), multiple=True, help="how many readers there are"),
            click.Option(["--at"], type=click.IntRange(min=0), help="before this step only"),
            click.Option(["--trace"], type=click.IntRange(min=0), default=20, help="log every n-th step's match; 0: none"),
            click.Option(["--stride"], type=click.IntRange(min=1), default=1, help="every n-th step only"),
        ]
    if name == "cachepoints":
        options += [
            click.Option(["--role"], type=click.Choice(["writer", "reader"]), multiple=True, help="who is hit"),
            click.Option(["--signal"], type=click.Choice(["kill", "stop", "exception"]), multiple=True, help="by what"),
            click.Option(["--at"], type=click.IntRange(min=0), help="before this step only"),
            click.Option(["--stride"], type=click.IntRange(min=1), default=1, help="every n-th step only"),
        ]
    if name == "soak":
        options += [
            click.Option(["--readers"], type=click.IntRange(1, 63), default=3, help="how many readers there are"),
            click.Option(["--output"], type=click.Path(file_okay=False), default=".", help="where the plot is written"),
        ]
    if name == "bytes":
        options.append(click.Option(["--input"], help="one input that coverage led to, in hexadecimal, to replay it"))
    if name == "canary":
        faults = click.Choice([*SEEN_BY])
        options.append(click.Option(["--fault"], type=faults, help="one planted fault, to see how it fails"))
    return options


def _command(name: str) -> click.Command:
    def run(seed: int | None, seconds: float | None, runs: int | None, first: int | None, **options: Any) -> None:
        sys.exit(execute(name, seed, seconds, runs, {"first": first, **options}))

    return click.Command(name, params=_options(name), callback=run, help=targets.find(name).__doc__)


def execute(name: str, seed: int | None, seconds: float | None, runs: int | None, options: dict[str, Any]) -> int:
    """Runs a target; the exit code."""
    console = Console(stderr=True, soft_wrap=True)
    session = Session(random.SystemRandom().randrange(2**32) if seed is None else seed, seconds, runs, options)
    console.print(f"{name}: seed {session.seed}")
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    failure: BaseException | None = None
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name)

        def told(session: Session) -> None:
            faulthandler.dump_traceback_later(SILENCE_LIMIT_S, exit=True, file=2)
            progress.update(task, description=_described(session))

        session.told = told
        told(session)
        try:
            targets.find(name)(session)
        except Failure as found:
            failure = found
        except Exception as found:  # an error of arena's, or of the fuzzer: both are findings
            console.print_exception()
            failure = found
        finally:
            faulthandler.cancel_dump_traceback_later()
    console.print(f"{name}: {_described(session)}, {session.elapsed_s():.1f} s")
    if failure is None:
        return 0
    console.print(f"[red]{name} FAILED[/red] with seed {session.seed}:")
    console.print(str(failure), markup=False)
    console.print(f"replay: {replay(name, session, failure)}", markup=False)
    return 1


def _described(session: Session) -> str:
    return ", ".join(f"{what} {n}" for what, n in session.counts.items()) or "starting"


def replay(name: str, session: Session, failure: BaseException) -> str:
    """The command that leads there again: to the failed case alone, where cases are drawn one by one; else as before."""
    words = [f"python -m fuzz {name} --seed {session.seed}"]
    if isinstance(failure, Failure) and failure.replay is not None:
        return " ".join([*words, failure.replay])
    options = {"seconds": session.seconds, "runs": session.runs, **session.options}
    if session.case is not None:
        options |= {"seconds": None, "runs": 1, "first": session.case}
    for option, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{option} {each}" for each in values if each is not None]
    return " ".join(words)
