"""`python -m spec orders`: are the memory orders of the C header right, and is each of them needed?

The shared accesses of the protocol stand in `orders_programs` as small programs.  For each program all assignments of
orders to its accesses are decided by `orders_machine`; `orders_check` compares the minimal sufficient ones with what
`csrc/arena_atomics.h` declares.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spec.orders_check import ProgramReport, Report, SiteReport, check_header
from spec.orders_header import HEADER


@click.command("orders")
@click.option(
    "--header",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=HEADER,
    help="The C header to read; that of the project by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print data instead of tables.")
def command(header: Path, as_json: bool) -> None:
    """Try all memory orders of the shared accesses and compare with the C header.

    Exit code 1 if the header declares an order that is too weak, or needlessly strong without a reason.
    """
    started = time.perf_counter()
    report = check_header(header.read_text())
    seconds = time.perf_counter() - started
    if as_json:
        click.echo(json.dumps({**as_data(report), "seconds": round(seconds, 3)}, indent=2))
    else:
        show(Console(), report, seconds)
    sys.exit(0 if report.ok else 1)


def as_data(report: Report) -> dict[str, Any]:
    """The outcome as plain data."""
    return {
        "ok": report.ok,
        "problems": report.problems,
        "accesses": [_site_data(each) for each in report.sites],
        "programs": [
            {
                "name": each.program.name,
                "words": each.program.words,
                "executions": each.executions,
                "assignments": each.assignments,
                "minimal": each.minimal,
                "sufficient": each.failure is None,
            }
            for each in report.programs
        ],
    }


def _site_data(site: SiteReport) -> dict[str, Any]:
    return {
        "function": site.access.function,
        "edges": list(site.access.labels),
        "declared": site.access.order,
        "needed": site.needed,
        "verdict": site.verdict,
        "reason": site.access.justification,
    }


def show(console: Console, report: Report, seconds: float) -> None:
    """Prints the programs, the accesses, and what is wrong."""
    console.print(_programs(report.programs))
    console.print(_accesses(report.sites))
    for site in report.sites:
        if site.verdict == "justified":
            text = f"{site.access.function}: stronger than {site.needed}, because: {site.access.justification}"
            console.print(escape(text), soft_wrap=True)
    for program in report.programs:
        if program.failure:
            console.print(f"\n[red]{program.program.name}[/red]: {escape(program.failure[0])}", soft_wrap=True)
            for line in program.failure[1].lines():
                console.print("    " + escape(line), soft_wrap=True, highlight=False)
    for problem in report.problems:
        console.print(f"[red]problem[/red]: {escape(problem)}", soft_wrap=True)
    verdict = "the header declares what is needed" if report.ok else f"{len(report.problems)} problems"
    tried = sum(each.assignments for each in report.programs)
    console.print(f"{len(report.programs)} programs, {tried} assignments, {verdict}, {seconds:.1f} s", soft_wrap=True)


def _programs(programs: list[ProgramReport]) -> Table:
    table = Table(title="Programs, and the orders that they need", title_justify="left", box=SIMPLE)
    table.add_column("program", no_wrap=True)
    table.add_column("edges", no_wrap=True)
    for name in ("runs", "orders", "minimal"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("header", no_wrap=True)
    for each in programs:
        table.add_row(
            each.program.name,
            "\n".join(each.program.labels),
            str(each.executions),
            str(each.assignments),
            str(len(each.minimal)),
            "[red]too weak[/red]" if each.failure else "sufficient",
        )
    return table


def _accesses(sites: list[SiteReport]) -> Table:
    table = Table(title="Accesses, and the orders that the header declares", title_justify="left", box=SIMPLE)
    table.add_column("arena_...", no_wrap=True)
    table.add_column("edges", no_wrap=True)
    table.add_column("needed")
    table.add_column("")
    for each in sites:
        name = each.access.function.removeprefix("arena_")
        table.add_row(name, "\n".join(each.access.labels), each.needed, each.verdict)
    return table
