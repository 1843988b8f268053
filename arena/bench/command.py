"""`arena bench`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from arena.bench.registry import ALL_SCENARIOS
from arena.tools.extras import require

if TYPE_CHECKING:
    from arena.bench.harness import Figure

HEADINGS = ("figure", "value", "quartiles", "at most", "", "samples")
WIDTH = 130
"""Columns, where the output is not a terminal."""


HELP = f"""Measure what the package promises, as ratios to peers in the same run.

Without SCENARIO all are measured: {", ".join(ALL_SCENARIOS)}.
"""


@click.command("bench", help=HELP)
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--quick", is_flag=True, help="Tiny sizes and few rounds: shows that it works; nothing is judged.")
@click.option("--full", is_flag=True, help="The largest sizes that the promises name: 8 GiB are populated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def command(scenarios: tuple[str, ...], quick: bool, full: bool, as_json: bool, markdown: bool) -> None:
    """Measure, and show."""
    if unknown := set(scenarios) - set(ALL_SCENARIOS):
        raise click.UsageError(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(ALL_SCENARIOS)}")
    if quick and full:
        raise click.UsageError("--quick and --full: one of them")
    if as_json and markdown:
        raise click.UsageError("--json and --markdown: one of them")
    figures = _measure(scenarios or tuple(ALL_SCENARIOS), quick, full)
    _show(figures, quick, as_json, markdown)


def _measure(names: Iterable[str], quick: bool, full: bool) -> list[Figure]:
    console_module, progress_module = require("rich.console"), require("rich.progress")
    from arena.bench.readers import Pool
    from arena.bench.scenarios import FULL, QUICK, Bench, Scale

    figures: list[Figure] = []
    pool = Pool()
    bench = Bench(QUICK if quick else FULL if full else Scale(), pool)
    # Redrawn between scenarios only: a thread that refreshes the bar would disturb what is measured.
    bar = progress_module.Progress(console=console_module.Console(stderr=True), transient=True, auto_refresh=False)
    try:
        with bar:
            task = bar.add_task("", total=len(tuple(names)))
            for name in names:
                bar.update(task, description=name, refresh=True)
                figures += [replace(one, is_judged=not quick) for one in ALL_SCENARIOS[name](bench)]
                bar.advance(task)
    finally:
        pool.close()
    return figures


def _show(figures: list[Figure], quick: bool, as_json: bool, markdown: bool) -> None:
    from arena.bench.harness import environment

    about = environment()
    if as_json:
        told = {"quick": quick, "environment": about, "figures": [one.as_json() for one in figures]}
        click.echo(json.dumps(told, indent=2))
        return
    rows = [_cells(one) for one in figures]
    if markdown:
        lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
        click.echo("\n".join(f"| {' | '.join(line)} |" for line in lines))
    else:
        require("rich.console").Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(rows))
    if quick:
        click.echo("quick: this shows that the benchmark works; the figures mean nothing")
    click.echo(", ".join(f"{key} {value}" for key, value in about.items()))


def _cells(one: Figure) -> tuple[str, ...]:
    return (
        one.name,
        f"{one.value:.3g} {one.unit}",
        f"{one.low:.3g} - {one.high:.3g}",
        "" if one.limit is None else f"{one.limit:g} {one.unit}",
        f"{one.verdict} ({one.note})" if one.note else one.verdict,
        str(one.samples),
    )


def _table(rows: list[tuple[str, ...]]) -> Any:
    table = require("rich.table").Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("figure", "") else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
