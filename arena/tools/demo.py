"""`arena demo`: an engine broadcasts real images to its workers, over three transports in one run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from arena.tools.extras import MissingExtra, require

if TYPE_CHECKING:
    from arena.tools.images import FrameSize

NAMES = ("arena", "out of band", "in-band pickle")
EXIT_WRONG = 1
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
WIDTH = 120
"""Columns, where the output is not a terminal."""


def _parse_sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> list[FrameSize]:
    from arena.tools.images import FrameSize

    try:
        return [FrameSize.parse(size) for size in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("demo")
@click.option("--workers", type=click.IntRange(1, 64), default=4, show_default=True, help="Worker processes.")
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=30.0, show_default=True,
    help="Time to measure, shared by all sizes; each transport gets at least one round of each size.",
)  # fmt: skip
@click.option(
    "--sizes", default="1,12,4096x4096", show_default=True, callback=_parse_sizes,
    help="Image sizes, separated by commas: megapixels of a 4:3 sensor, or WIDTHxHEIGHT.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Which photographs, and the small fields.")
@click.option("--transport", "transports", type=click.Choice(NAMES), multiple=True, help="Only this one (may be repeated).")
@click.option(
    "--repeat-images", is_flag=True, help="Half of the images repeat: the arena with an object cache, and without one."
)
@click.option(
    "--device", type=click.Choice(["sim", "cuda"]),
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

    Ends with 1 if a checksum differs or a slot is leaked, with 2 if a worker fails or there is no such device.
    """
    from arena.tools.devices import why_not

    if device is not None and (reason := why_not(device)):
        raise click.UsageError(reason)
    names = [name for name in NAMES if not transports or name in transports]
    try:
        ok = _run(workers, seconds, sizes, seed, names, as_json, repeat_images, device)
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None
    if not ok:
        sys.exit(EXIT_WRONG)


def _run(
    workers: int, seconds: float, sizes: list[FrameSize], seed: int, names: list[str], as_json: bool, repeat: bool,
    device: str | None,
) -> bool:  # fmt: skip
    """Run, show; whether all was right."""
    console_module, progress_module = require("rich.console"), require("rich.progress")
    require("skimage")
    from arena.tools import engine, report

    console = console_module.Console(stderr=True)
    try:
        with progress_module.Progress(console=console, transient=True, refresh_per_second=4) as bar:
            task = bar.add_task("", total=1.0)
            result = engine.run(
                workers, seconds, sizes, seed, ["arena", engine.CACHED] if repeat else names,
                lambda doing, done: bar.update(task, description=doing, completed=done),
                repeat=repeat, device=device,
            )  # fmt: skip
    except engine.WorkerFailed as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        console_module.Console(width=None if sys.stdout.isatty() else WIDTH).print(report.table(result))
        click.echo(result.verdict())
    return result.ok
