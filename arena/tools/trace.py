"""``arena trace DIRECTORY``: what a traced run did, as a summary or as a timeline for a browser's trace viewer."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from arena.shm.trace import SUFFIX, VARIABLE, WRITER
from arena.shm.tracelog import Event, Log, read_runs

KIND_MESSAGE = 1
SLOTS, LEASES = 1_000_000, 2_000_000  # the viewer's process numbers of the two tables

Entry = dict[str, Any]


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--perfetto", type=click.Path(dir_okay=False, path_type=Path), help="Write a timeline to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(directory: Path, perfetto: Path | None, as_json: bool) -> None:
    """Show the logs that a run with ARENA_TRACE=DIRECTORY has left.

    The timeline opens in ui.perfetto.dev or chrome://tracing. Its unit is not time: it is the shared counter that stamps
    the events, so what overlaps there had no order.
    """
    try:
        runs = read_runs(directory)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not runs:
        raise click.UsageError(f"no logs (*{SUFFIX}) in {directory}: run with {VARIABLE}={directory}")
    if perfetto is not None:
        perfetto.write_text(json.dumps({"traceEvents": timeline(runs)}))
    summaries = [summary(segment, logs) for segment, logs in runs.items()]
    if as_json:
        click.echo(json.dumps(summaries, indent=2))
        return
    for each in summaries:
        counts = ", ".join(f"{count} {action}" for action, count in each["events"].items())
        click.echo(f"segment {each['segment'][:8]}: {', '.join(each['ends'])}: {counts}")
    if perfetto is not None:
        click.echo(f"timeline: {perfetto}")


def summary(segment: str, logs: Sequence[Log]) -> Entry:
    """One segment: its ends and how often each action occurs."""
    counts = Counter(event.action for log in logs for event in log.events)
    return {"segment": segment, "ends": [log.name for log in logs], "events": dict(sorted(counts.items()))}


def timeline(runs: dict[str, list[Log]]) -> list[Entry]:
    """The entries of a trace viewer's file: what each thread does, each slot's grants, leases, messages and deaths."""
    entries: list[Entry] = []
    for number, (segment, logs) in enumerate(runs.items()):
        first = number * 1000
        end = max((_end(event) for log in logs for event in log.events), default=0.0)
        for place, log in enumerate(logs):
            entries.append(_named(first + place, f"{log.name} of {segment[:8]}"))
            entries += [_what_it_does(event, first + place) for event in log.events]
            entries += _messages(log, first + place)
        entries.append(_named(SLOTS + number, f"slots of {segment[:8]}"))
        entries += _grants(logs, SLOTS + number, end)
        entries.append(_named(LEASES + number, f"leases of {segment[:8]}"))
        entries += _leases(logs, LEASES + number, end)
    return entries


def _named(process: int, name: str) -> Entry:
    return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}


def _end(event: Event) -> float:
    return event.before + 1 if math.isinf(event.after) else event.after


def _span(name: str, process: int, thread: int, start: float, end: float, **about: Any) -> Entry:
    return {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": start, "dur": max(end - start, 1), "args": about}


def _what_it_does(event: Event, process: int) -> Entry:
    about = {"arguments": list(event.args[:3]), "results": list(event.args[3:]), "unfinished": math.isinf(event.after)}
    return _span(event.action, process, event.thread, event.before, _end(event), **about)


def _messages(log: Log, process: int) -> Iterator[Entry]:
    """An arrow from the send of a message to each read of it, and a mark for each death."""
    for event in log.events:
        at: Entry = {"pid": process, "tid": event.thread, "ts": event.before}
        if event.action == "send" and event.args[3]:
            yield {"ph": "s", "name": "message", "cat": "message", "id": f"{log.segment}:{event.args[0]}", **at}
        elif event.action == "read" and event.args[3]:
            identity = f"{log.segment}:{event.args[1]}"
            yield {"ph": "f", "bp": "e", "name": "message", "cat": "message", "id": identity, **at, "ts": _end(event)}
        elif event.action == "reclaim":
            yield {"ph": "i", "s": "g", "name": f"reader {event.args[0]} is reclaimed", **at}


def _grants(logs: Sequence[Log], process: int, end: float) -> Iterator[Entry]:
    """Each generation of a slot: from its claim to the last release that it got, or an object's until nobody held it."""
    last: dict[tuple[int, ...], float] = {}
    for log in logs:
        for event in log.events:
            if event.action == "release":
                key = event.args[1:3]
                last[key] = max(last.get(key, 0.0), _end(event))
    written = [event for log in logs if log.row == WRITER for event in log.events]
    for event in (event for event in written if event.action == "claim" and event.args[3]):
        kind, slot, generation = event.args[0], event.args[3] - 1, event.args[4]
        if kind == KIND_MESSAGE:
            until = last.get((slot, generation), end)
            yield _span(f"generation {generation}", process, slot, event.before, until, nbytes=event.args[1])
    freed = {event.args[:2]: event.before for event in written if event.action == "scan"}
    for event in (event for event in written if event.action == "publish_object"):
        slot, generation = event.args[:2]
        until = freed.get((slot, generation), end)
        yield _span(f"object, generation {generation}", process, slot, event.before, until)


def _leases(logs: Sequence[Log], process: int, end: float) -> Iterator[Entry]:
    """Each lease of a message's slot or of an object, until it is released, or the logs end."""
    for log in logs:
        yield from _holds(log, process, end)
        released = {event.args[1:3]: event for event in log.events if event.action == "release"}
        for event in log.events:
            if event.action == "lease" and event.args[3]:
                row, slot, generation = event.args[:3]
                release = released.get((slot, generation))
                until = end if release is None else _end(release)
                yield _span(f"reader {row}, generation {generation}", process, row * log.n_slots + slot, event.before, until)


def _holds(log: Log, process: int, end: float) -> Iterator[Entry]:
    """The leases of objects: a row may have several of one generation, of which the oldest is taken to end first."""
    released: dict[tuple[int, ...], list[float]] = {}
    for event in log.events:
        if event.action == "release_hold":
            released.setdefault(event.args[:3], []).append(_end(event))
    for event in log.events:
        if event.action == "get" and event.args[3]:
            row, slot, generation = event.args[:3]
            ends = released.get((row, slot, generation))
            until = ends.pop(0) if ends else end
            yield _span(f"reader {row}, object {generation}", process, row * log.n_slots + slot, event.before, until)
