"""`arena offload`: what concerns the region of offloaded KV blocks."""

from __future__ import annotations

import json
import os
import time

import click

from arena.tools.extras import require
from arena.tools.options import FiniteRange

ROW_BYTES = 2 << 20
GIB_MAX = 1 << 20
"""More memory than any machine has; in bytes it is still far below what an offset can say."""


def _parse_numa(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | int | None:
    from arena.shm.numa import Policy

    try:
        numa = int(text) if text is not None and text.isdecimal() else text
        Policy.parse(numa)  # type: ignore[arg-type]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return numa


@click.group("offload")
def group() -> None:
    """The region of offloaded KV blocks."""


@group.command("populate")
@click.option(
    "--gib", type=FiniteRange(0, GIB_MAX, min_open=True), default=1.0, show_default=True, help="Size of the region."
)
@click.option("--threads", type=click.IntRange(1, 256), help="Threads that take pages; by default as many as CPUs, up to 8.")
@click.option("--numa", callback=_parse_numa, help="Where the pages are to lie: local, interleave, or a node's number.")
@click.option("--huge-pages", is_flag=True, help="Ask for huge pages.")
@click.option("--backing", type=click.Choice(["memfd", "shm"]), default="memfd", show_default=True, help="As the engine's.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def populate(gib: float, threads: int | None, numa: str | int | None, huge_pages: bool, backing: str, as_json: bool) -> None:
    """Take all pages of a region as an engine's creator would, and give them back.

    Tells before an engine is started whether its region fits into this machine or container, and how long it takes.

    Ends with 3 if the memory is not there; the text says what would help.
    """
    seconds, nbytes = _populate(gib, threads, numa, huge_pages, backing)
    rate = nbytes / seconds / (1 << 30)
    if as_json:
        click.echo(json.dumps({"bytes": nbytes, "seconds": seconds, "gib_per_s": rate}))
    else:
        click.echo(f"{nbytes / (1 << 30):.2f} GiB in {seconds:.2f} s, {rate:.2f} GiB/s; all given back")


def _populate(gib: float, threads: int | None, numa: str | int | None, huge_pages: bool, backing: str) -> tuple[float, int]:
    """Seconds that the construction took, and the region's size."""
    console_module, bars = require("rich.console"), require("rich.progress")
    from arena.offload import SharedOffloadRegion

    rows = max(1, round(gib * (1 << 30) / ROW_BYTES))
    columns = (
        bars.TextColumn("populating"), bars.BarColumn(), bars.DownloadColumn(binary_units=True),
        bars.TransferSpeedColumn(), bars.TimeRemainingColumn(),
    )  # fmt: skip
    with bars.Progress(*columns, console=console_module.Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=rows * ROW_BYTES)
        start = time.monotonic()
        region = SharedOffloadRegion(
            f"populate-{os.getpid()}", rows, None, ROW_BYTES, 0,
            backing=backing, numa=numa, huge_pages=huge_pages, populate_threads=threads,  # type: ignore[arg-type]
            progress=lambda done, _total: bar.update(task, completed=done),
        )  # fmt: skip
        seconds = time.monotonic() - start
        region.cleanup()
    return seconds, rows * ROW_BYTES
