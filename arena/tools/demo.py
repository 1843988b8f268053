"""`arena demo`: an engine broadcasts real images to its workers, over three transports in one run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from arena.shm.layout import READERS_MAX
from arena.tools.devices import NAMES as DEVICES
from arena.tools.devices import why_not
from arena.tools.exits import WRONG
from arena.tools.extras import require
from arena.tools.options import FiniteRange
from arena.tools.transports import TRANSPORTS

if TYPE_CHECKING:
    from arena.tools.images import FrameSize

WIDTH = 120
"""Columns, where the output is not a terminal."""


def _parse_sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> list[FrameSize]:
    from arena.tools.images import FrameSize

    try:
        return [FrameSize.parse(size) for size in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("demo")
@click.option("--workers", type=click.IntRange(1, READERS_MAX), default=4, show_default=True, help="Worker processes.")
@click.option(
    "--seconds", type=FiniteRange(min=0.1), default=30.0, show_default=True,
    help="Time to measure, shared by all sizes; each transport gets at least one round of each size.",
)  # fmt: skip
@click.option(
    "--sizes", default="1,12,4096x4096", show_default=True, callback=_parse_sizes,
    help="Image sizes, separated by commas: megapixels of a 4:3 sensor, or WIDTHxHEIGHT.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Which photographs, and the small fields.")
@click.option(
    "--transport", "transports", type=click.Choice(list(TRANSPORTS)), multiple=True, help="Only this one (may be repeated)."
)
@click.option(
    "--repeat-images", is_flag=True, help="Half of the images repeat: the arena with an object cache, and without one."
)
@click.option(
    "--device", type=click.Choice(DEVICES),
    help="Workers copy the images to a device and keep and verify them there: a GPU, or a DMA engine in software.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of a table.")
def command(
    workers: int,
    seconds: float,
    sizes: list[FrameSize],
    seed: int,
    transports: tuple[str, ...],
    repeat_images: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Broadcast real images from an engine process to worker processes.

    Photographs are laid out as two kinds of image processor do it, sent inside scheduler messages, kept by the
    workers for several steps and verified by checksum when they arrive and when their request ends. The same
    requests go through the arena, out of band through a socket to each worker, and inside a pickle.

    Ends with 1 if a checksum differs or a slot is leaked, with 2 if there is no such device, with 3 if a worker fails.
    """
    if device is not None and (reason := why_not(device)):
        raise click.UsageError(reason)
    if repeat_images and transports:
        raise click.UsageError("--repeat-images compares the arena with and without a cache: it takes no --transport")
    names = [name for name in TRANSPORTS if not transports or name in transports]
    if not _run(workers, seconds, sizes, seed, names, as_json, repeat_images, device):
        sys.exit(WRONG)


def _run(
    workers: int, seconds: float, sizes: list[FrameSize], seed: int, names: list[str], as_json: bool, repeat: bool,
    device: str | None,
) -> bool:  # fmt: skip
    """Run, show; whether all was right."""
    console_module, progress_module = require("rich.console"), require("rich.progress")
    require("skimage")
    from arena.tools import engine, report

    console = console_module.Console(stderr=True)
    with progress_module.Progress(console=console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=1.0)
        result = engine.run(
            workers, seconds, sizes, seed, ["arena", engine.CACHED] if repeat else names,
            lambda doing, done: bar.update(task, description=doing, completed=done),
            repeat=repeat, device=device,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        report.show(result, console_module.Console(width=None if sys.stdout.isatty() else WIDTH))
    return result.ok
