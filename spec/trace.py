"""Is a run that really happened a behaviour of the models? `python -m spec trace DIRECTORY` reads its logs and says so.

With `ARENA_TRACE=DIRECTORY` each end of a queue or cache logs its actions (`arena/shm/trace.py`), each stamped before and
after from one shared counter. Two events whose stamps overlap may have happened in either order; all others are ordered.
The run is *accepted* if, for each of the two slot models, some order that the stamps allow is a run of the model, from "no
reader has joined" on. The search goes depth first, remembers where it has been, and if it gets stuck tells the furthest
point: which events could come next, why the model refuses each, and what it would have allowed.

Messages and objects use slots of one table; each model follows its own, and of the other's it knows that they are taken.
What the logs do not say, the search supplies: a death (it is seen when the writer reclaims), the last view's end (a
release says it), and the one event that a killed process was in the middle of, which may have happened or not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from arena.shm.trace import SUFFIX
from arena.shm.tracelog import Log, read_runs
from spec.trace_messages import MessageReplay
from spec.trace_objects import ObjectReplay, has_objects
from spec.trace_search import Found, Replay, search


@dataclass(frozen=True)
class Verdict(Found):
    """What was found about one segment's run, in the model that refused it, if one did."""

    segment: str = ""
    processes: int = 0
    model: str = ""


def validate(logs: Sequence[Log]) -> Verdict:
    """Whether the merged logs of one segment are a behaviour of the models."""
    lost = tuple(f"{log.name} lost {log.lost} events: its log was full" for log in logs if log.lost)
    if lost:
        return about(logs, Found(sum(len(log.events) for log in logs), False, 0, lost), "")
    replays: list[Replay] = [MessageReplay(logs)]
    if has_objects(logs):
        replays.append(ObjectReplay(logs))
    explained = 0
    for replay in replays:
        found = search(replay, logs)
        if not found.accepted:
            return about(logs, found, replay.model)
        explained += found.explained
    return about(logs, Found(explained, True, explained), " and ".join(replay.model for replay in replays))


def about(logs: Sequence[Log], found: Found, model: str) -> Verdict:
    """The verdict that says whose run it was."""
    return Verdict(**asdict(found), segment=logs[0].segment, processes=len(logs), model=model)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(directory: Path, as_json: bool) -> None:
    """Hold the logs of a real run (ARENA_TRACE=DIRECTORY) to the models of message slots and object slots."""
    try:
        runs = read_runs(directory)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    verdicts = [validate(logs) for logs in runs.values()]
    if as_json:
        click.echo(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        for verdict in verdicts:
            tell(verdict)
        if not verdicts:
            click.echo(f"no logs (*{SUFFIX}) in {directory}")
    if not verdicts or not all(verdict.accepted for verdict in verdicts):
        sys.exit(1)


def tell(verdict: Verdict) -> None:
    """One segment's verdict, for people."""
    about = f"segment {verdict.segment[:8]}: {verdict.events} events of {verdict.processes} ends"
    if verdict.accepted:
        click.echo(f"{about}: a behaviour of the model of {verdict.model}")
        return
    click.echo(f"{about}: NOT a behaviour of the model of {verdict.model}; {verdict.explained} events are explained, then")
    for reason in verdict.why:
        click.echo(f"  {reason}")
    if verdict.allowed:
        click.echo(f"  the model would have allowed: {', '.join(verdict.allowed)}")
