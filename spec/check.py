"""`python -m spec check`: search a model, say what was found, and fail if it is not right."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from spec import export, models, parallel, story
from spec.checker import Progress as ProgressFunction
from spec.checker import Result, check
from spec.model import Model


def configure(module: Any, variant: str | None, settings: dict[str, Any]) -> Any:
    """The configuration of a model: the default or a variant's, with some fields set."""
    if variant is None:
        config = module.Config()
    elif variant in module.VARIANTS:
        config = module.VARIANTS[variant].config
    else:
        raise click.BadParameter(f"{variant!r} is none of {', '.join(module.VARIANTS)}", param_hint="--variant")
    known = {each.name: getattr(config, each.name) for each in fields(config)}
    unknown = sorted(settings.keys() - known.keys())
    if unknown:
        raise click.UsageError(f"this model has no {', '.join(unknown)}; it has {', '.join(known)}")
    return replace(config, **{name: _parsed(name, value, known[name]) for name, value in settings.items()})


def settings_of(slots: int | None, readers: int | None, settings: tuple[str, ...]) -> dict[str, Any]:
    """What the options of a command set, by the name of the field."""
    sizes = {"slots": slots, "readers": readers}
    chosen: dict[str, Any] = {key: value for key, value in sizes.items() if value is not None}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--set")
        chosen[key] = value
    return chosen


def _parsed(name: str, text: str | int, like: Any) -> Any:
    """`text` as a value of the same type as `like`."""
    if isinstance(like, bool):
        if str(text).lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise click.BadParameter(f"{name} is yes or no, not {text!r}")
        return str(text).lower() in ("true", "yes", "1")
    if isinstance(like, int):
        least = min(1, like)
        if not str(text).lstrip("-").isdecimal() or int(text) < least:
            raise click.BadParameter(f"{name} is a number, {least} or more, not {text!r}")
        return int(text)
    if like is None or isinstance(like, str):
        return str(text)
    raise click.BadParameter(f"{name} cannot be set here; choose a --variant")


@contextmanager
def progress_bar(console: Console, name: str) -> Iterator[ProgressFunction]:
    """A line that shows states, states still to expand, and states per second."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,} states, {task.fields[waiting]:,} to expand, {task.fields[speed]:,.0f} states/s"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:  # no thread: we may fork
        task = bar.add_task(name, total=None, waiting=0, speed=0)
        started = time.perf_counter()

        def report(states: int, waiting: int) -> None:
            bar.update(task, refresh=True, completed=states, waiting=waiting, speed=states / (time.perf_counter() - started))

        yield report


def as_json(result: Result, name: str) -> dict[str, Any]:
    """The result as plain data; the counterexample is an ITF trace. What only a whole search can tell is None after less."""
    config = result.model.config
    found = result.violation
    return {
        "model": name,
        "config": {each.name: _plain(getattr(config, each.name)) for each in fields(config)},
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "seconds": round(result.seconds, 3),
        "complete": result.complete,
        "ok": result.ok,
        "undrainable": result.undrainable,
        "dead_actions": list(result.dead_actions) if result.complete else None,
        "never_seen": list(result.never_seen) if result.complete else None,
        "fired": dict(sorted(result.fired.items())),
        "violation": found
        and {
            "property": found.name,
            "complaint": found.complaint,
            "steps": found.steps,
            "story": [
                {"step": number, "actor": actor, "action": step, "changed": changed}
                for number, actor, step, changed in story.lines(found.run)
            ],
            "trace": export.itf(found.run, name),
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)


def undecided(result: Result) -> bool:
    """Stopped at a limit before anything was found."""
    return not result.complete and result.violation is None


def report(result: Result, name: str, console: Console) -> None:
    """Print what a search found."""
    table = Table(show_header=False, title=name, title_justify="left")
    table.add_row("states", f"{result.states:,}" + ("" if result.complete else " (stopped)"))
    table.add_row("transitions", f"{result.transitions:,}")
    table.add_row("depth", str(result.depth))
    table.add_row("time", f"{result.seconds:.2f} s, {result.states / max(result.seconds, 1e-9):,.0f} states/s")
    invariants = ", ".join(each.name for each in (*result.model.invariants, *result.model.deadlocks))
    table.add_row("invariants", invariants or "none")
    if result.undrainable is not None:
        table.add_row("cannot drain", f"{result.undrainable:,}")
    if result.complete:
        table.add_row("dead actions", ", ".join(result.dead_actions) or "none")
        table.add_row("never seen", ", ".join(result.never_seen) or "none")
    table.add_row("verdict", "holds" if result.ok else "undecided: stopped at the limit" if undecided(result) else "FAILS")
    console.print(table)
    if result.violation is not None:
        story.tell(result.violation, console)


@click.command("check")
@click.argument("name", metavar="[MODEL]", default="message_slots")
@click.option("--slots", type=int, help="Slots of the instance.")
@click.option("--readers", type=int, help="Readers of the instance.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set any field of the configuration.")
@click.option("--variant", help="Check a variant, such as a seeded fault; --variants lists them.")
@click.option("--variants", "list_variants", is_flag=True, help="List the model's variants and stop.")
@click.option("--symmetry", is_flag=True, help="Count states that differ only in numbering as one.")
@click.option("--drain/--no-drain", default=True, help="Also check that every state can drain.")
@click.option("--processes", type=click.IntRange(1), default=1, help="Share the search among so many processes.")
@click.option("--limit", type=click.IntRange(1), help="Stop beyond this many states.")
@click.option("--json", "json_out", is_flag=True, help="Print the result, or the variants, as JSON.")
@click.option("--dot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the state graph (.dot, .svg, ...).")
@click.option("--itf", type=click.Path(path_type=Path, dir_okay=False), help="Write the counterexample as ITF JSON.")
def command(
    name: str,
    slots: int | None,
    readers: int | None,
    settings: tuple[str, ...],
    variant: str | None,
    list_variants: bool,
    symmetry: bool,
    drain: bool,
    processes: int,
    limit: int | None,
    json_out: bool,
    dot: Path | None,
    itf: Path | None,
) -> None:
    """Search every reachable state of MODEL.

    The exit code is 1 if something does not hold, and 3 if the search was stopped at the limit before that is known.
    """
    if name not in models.available():
        raise click.BadParameter(f"{name!r} is none of {', '.join(models.available())}", param_hint="MODEL")
    module = models.load(name)
    console = Console()
    if list_variants:
        show_variants(module, console, json_out)
        return
    chosen = settings_of(slots, readers, settings)
    model = module.model(configure(module, variant, chosen))
    if symmetry and model.canonical is None:
        raise click.UsageError(f"the model {name} declares no symmetry")
    if dot is not None:  # before a search that may take long
        draw(model, dot, symmetry=symmetry)
    title = name if variant is None else f"{name}, variant {variant}"
    with progress_bar(Console(stderr=True), title) as progress:
        if processes == 1:
            result = check(model, symmetry=symmetry, drain=drain, limit=limit, progress=progress)
        else:
            result = parallel.check(
                model, processes=processes, symmetry=symmetry, drain=drain, limit=limit, progress=progress
            )
    if json_out:
        click.echo(json.dumps(as_json(result, name), indent=1))
    else:
        report(result, title, console)
    if itf is not None:
        write_trace(result, itf, name)
    if not result.ok:
        raise SystemExit(3 if undecided(result) else 1)


def draw(model: Model, target: Path, *, symmetry: bool) -> None:
    """Write the state graph, or say why it cannot be."""
    try:
        export.write_graph(export.graph(model, symmetry=symmetry), target)
    except ValueError as why:
        raise click.UsageError(f"--dot {target}: {why}") from None


def write_trace(result: Result, target: Path, name: str) -> None:
    """Write the counterexample, or say that there is none."""
    if result.violation is None:
        click.echo(f"{target} is not written: there is no counterexample", err=True)
    else:
        target.write_text(json.dumps(export.itf(result.violation.run, name), indent=1))


def show_variants(module: Any, console: Console, json_out: bool) -> None:
    """Print every variant with what it breaks and how soon."""
    if json_out:
        told = [
            {"variant": name, "summary": each.summary, "breaks": each.breaks, "steps": each.steps}
            for name, each in module.VARIANTS.items()
        ]
        click.echo(json.dumps(told, indent=1))
        return
    table = Table("variant", "what is changed", "breaks", "steps")
    for name, each in module.VARIANTS.items():
        table.add_row(name, each.summary, each.breaks or "nothing", "" if each.steps is None else str(each.steps))
    console.print(table)
