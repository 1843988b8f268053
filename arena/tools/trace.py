"""``arena trace DIRECTORY``: what a traced run did, as a summary or as a timeline for a browser's trace viewer."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
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
    """Each generation of a slot, one after the other: a message's from its claim, an object's from its publication.

    It ends when nobody holds it any more, and not after the next one has begun: of a killed process the logs do not say
    when it let go.
    """
    written = sorted(event for log in logs if log.row == WRITER for event in log.events)
    released, freed = _last_releases(logs) | _aborts(written), _frees(written)
    begun: dict[int, list[tuple[float, float, str, Entry]]] = defaultdict(list)
    for event in written:
        if event.action == "claim" and event.args[3] and event.args[0] == KIND_MESSAGE:
            slot, generation = event.args[3] - 1, event.args[4]
            until = released.get((slot, generation), end)
            begun[slot].append((event.before, until, f"generation {generation}", {"nbytes": event.args[1]}))
        elif event.action == "publish_object":
            slot, generation = event.args[:2]
            until = freed.get((slot, generation), end)
            begun[slot].append((event.before, until, f"object, generation {generation}", {}))
    for slot, spans in begun.items():
        nexts = [start for start, *_ in spans[1:]] + [math.inf]
        for (start, until, name, about), following in zip(spans, nexts, strict=True):
            yield _span(name, process, slot, start, min(until, following), **about)


Moments = dict[tuple[int, ...], float]  # of a slot's generation


def _last_releases(logs: Sequence[Log]) -> Moments:
    """When the last holder of a message's slot had let go."""
    last: Moments = {}
    for event in (event for log in logs for event in log.events if event.action == "release"):
        key = event.args[1:3]
        last[key] = max(last.get(key, 0.0), _end(event))
    return last


def _aborts(written: Sequence[Event]) -> Moments:
    """When a message was given up, for each slot that had been claimed for it; a loan goes back to its holder."""
    at: Moments = {}
    claimed: dict[int, int] = {}
    for event in written:
        if event.action == "claim" and event.args[3]:
            claimed[event.args[3] - 1] = event.args[4]
        elif event.action in ("loan", "adopt"):
            claimed.pop(event.args[0], None)
        elif event.action == "abort":
            slot, how_many = event.args[:2]
            gone = [slot] if how_many == 1 else list(claimed)
            at |= {(each, claimed.pop(each)): event.before for each in gone if each in claimed}
        elif event.action == "send" and event.args[3]:
            claimed.clear()
    return at


def _frees(written: Sequence[Event]) -> Moments:
    """When nobody held an evicted object any more."""
    return {event.args[:2]: event.before for event in written if event.action == "scan"}


def _leases(logs: Sequence[Log], process: int, end: float) -> Iterator[Entry]:
    """Each lease of a message's slot or of an object, until it is released, or its dead reader reclaimed, or the logs end.

    A row may have several of one generation, and nothing tells them apart: the latest is taken to end first, since a
    viewer draws them inside one another.
    """
    reclaims: dict[int, list[float]] = defaultdict(list)
    for event in (event for log in logs for event in log.events if event.action == "reclaim"):
        reclaims[event.args[0]].append(event.before)
    for log in logs:
        held: dict[tuple[int, ...], list[tuple[float, str]]] = defaultdict(list)
        for event in sorted(log.events):
            key = event.args[:3]
            if event.action in ("lease", "get") and event.args[3]:
                held[key].append((event.before, "object" if event.action == "get" else "generation"))
            elif event.action in ("release", "release_hold") and held[key]:
                yield _lease(log, process, key, *held[key].pop(), event.before)
        for key, left in held.items():
            for start, what in left:
                until = min((at for at in reclaims[key[0]] if at > start), default=end)
                yield _lease(log, process, key, start, what, until)


def _lease(log: Log, process: int, key: tuple[int, ...], start: float, what: str, until: float) -> Entry:
    row, slot, generation = key
    who = "writer" if row == log.n_readers else f"reader {row}"
    return _span(f"{who}, {what} {generation}", process, row * log.n_slots + slot, start, until)
