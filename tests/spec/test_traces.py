"""Real runs, with deaths, fallbacks and loans, are behaviours of the model; corrupted copies of their logs are not."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from arena import MessageQueue
from arena.protocol.objects import ObjectReader, ObjectWriter
from arena.shm.trace import WRITER
from arena.shm.tracelog import Event, Log, read_runs
from arena.tools.commands import arena
from arena.tools.trace import SLOTS, timeline
from spec.__main__ import main
from spec.trace import validate
from spec.trace_messages import MessageReplay, positions_with_slots
from spec.trace_objects import ObjectReplay

HERE = Path(__file__).parent
QUICK, DEEP = (3, 80, 100), (25, 180, 500)  # runs of one process, steps of one run, events at least

Corrupt = Callable[[list[Log], "Kind"], list[Log]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The logs of a few runs."""
    return record(tmp_path_factory.mktemp("traces"), request.config.getoption("--seed"), *QUICK)


def record(directory: Path, seed: int, runs: int, steps: int, events: int) -> Path:
    """Records runs in a process of its own, so that its reader processes trace, too."""
    command = [sys.executable, str(HERE / "traced_runs.py"), *map(str, (seed, runs, steps, events))]
    environment = {"ARENA_TRACE": str(directory), "PYTHONPATH": str(HERE.parent.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return directory


def test_real_runs_are_behaviours_of_the_model(directory: Path) -> None:
    outcome = CliRunner().invoke(main, ["trace", str(directory)])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("a behaviour of the model of message slots and object slots") == QUICK[0]


@pytest.mark.deep
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", range(8))
def test_200_traces(part: int, tmp_path: Path, seed: int) -> None:
    runs = list(read_runs(record(tmp_path, seed + part, *DEEP)).values())
    n_runs, _, n_events = DEEP
    assert len(runs) == n_runs
    for logs in runs:
        verdict = validate(logs)
        assert verdict.accepted, verdict
        logged = sum(len(log.events) for log in logs)
        print(f"{verdict.segment}: {logged} events of {len(logs)} ends, {verdict.events} explained by the models")
        assert min(logged, verdict.events) >= n_events


# ---- corrupted copies -----------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What can be corrupted of one model's events."""

    counts: Callable[[list[Log]], Callable[[Event], bool]]  # whether an event has to do with its slots
    dropped: tuple[str, ...]
    neighbours: set[tuple[str, str]]  # the second needs the first
    slot_at: dict[str, int]  # which argument is the slot; of a claim it is a result, the slot and one


def messages_carried(logs: list[Log]) -> Callable[[Event], bool]:
    """A message without a slot leaves the slots alone."""
    positions, replay = positions_with_slots(logs), MessageReplay(logs)
    return lambda event: replay.matters(event) and (event.action not in ("send", "read") or place_of(event) in positions)


def place_of(event: Event) -> int:
    return event.args[1] if event.action == "read" else event.args[0]


def objects_touched(logs: list[Log]) -> Callable[[Event], bool]:
    """A get that misses leaves everything as it was, and the claim of a message's slot is the other model's."""
    replay, succeeds = ObjectReplay(logs), {"claim": lambda args: args[0] == 2, "get": lambda args: args[3]}
    return lambda event: replay.matters(event) and bool(succeeds.get(event.action, bool)(event.args))


KINDS = {
    "messages": Kind(
        messages_carried,
        ("claim", "publish", "send", "read", "lease", "release", "admit", "loan"),
        {("claim", "copy"), ("copy", "publish"), ("read", "lease")},
        {"claim": 3, "copy": 0, "publish": 0, "lease": 1, "release": 1},
    ),
    "objects": Kind(
        objects_touched,
        ("claim", "publish_object", "evict", "scan", "get", "release_hold"),
        {("claim", "adopt"), ("copy", "publish_object"), ("evict", "scan"), ("get", "release_hold")},
        {"claim": 3, "adopt": 0, "copy": 0, "publish_object": 0, "evict": 0, "scan": 0, "get": 1, "release_hold": 1},
    ),
}


def with_events(logs: list[Log], number: int, events: list[Event]) -> list[Log]:
    return [replace(log, events=events) if each == number else log for each, log in enumerate(logs)]


def some_event(logs: list[Log], kind: Kind, actions: Iterable[str]) -> tuple[int, int]:
    """A log and an event of one of these actions, not among the last few, after which nothing depends on it."""
    counts = kind.counts(logs)
    found = [
        (number, at)
        for number, log in enumerate(logs)
        for at, event in enumerate(log.events[: len(log.events) * 3 // 4])
        if event.action in actions and counts(event)
    ]
    return random.choice(found)


def dropped(logs: list[Log], kind: Kind) -> list[Log]:
    number, at = some_event(logs, kind, kind.dropped)
    events = logs[number].events
    return with_events(logs, number, events[:at] + events[at + 1 :])


def slot_of(event: Event, kind: Kind) -> int | None:
    if event.action not in kind.slot_at:
        return None
    return event.args[kind.slot_at[event.action]] - (event.action == "claim")


def swapped(logs: list[Log], kind: Kind) -> list[Log]:
    """Two neighbours of one process, of which the second needs the first, trade their places in time."""
    counts = kind.counts(logs)
    mine = [sorted(filter(counts, log.events)) for log in logs]
    found = [
        (number, first, second)
        for number, events in enumerate(mine)
        for first, second in pairwise(events[: len(events) * 3 // 4])
        if (first.action, second.action) in kind.neighbours and slot_of(first, kind) in (None, slot_of(second, kind))
    ]
    number, first, second = random.choice(found)
    traded = {
        first: first._replace(before=second.before, after=second.after),
        second: second._replace(before=first.before, after=first.after),
    }
    return with_events(logs, number, [traded.get(event, event) for event in logs[number].events])


def wrong_slot(logs: list[Log], kind: Kind) -> list[Log]:
    number, at = some_event(logs, kind, kind.slot_at)
    event = logs[number].events[at]
    place = kind.slot_at[event.action]
    first = 1 if event.action == "claim" else 0
    others = [slot for slot in range(first, logs[0].n_slots + first) if slot != event.args[place]]
    args = (*event.args[:place], random.choice(others), *event.args[place + 1 :])
    return with_events(logs, number, [*logs[number].events[:at], event._replace(args=args), *logs[number].events[at + 1 :]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("corrupt", "rate"), [(dropped, 0.65), (swapped, 0.85), (wrong_slot, 0.85)], ids=["dropped", "swapped", "wrong_slot"]
)
def test_corrupted_logs_are_refused(corrupt: Corrupt, rate: float, kind: str, directory: Path) -> None:
    """Not all can be: a dropped release of a reader that is killed soon after is as good as one that never came."""
    runs = list(read_runs(directory).values())
    verdicts = [validate(corrupt(random.choice(runs), KINDS[kind])) for _ in range(100)]
    refused = sum(not verdict.accepted for verdict in verdicts)
    print(f"{corrupt.__name__}, {kind}: {refused} of {len(verdicts)} refused")
    assert refused >= rate * len(verdicts)


def killed_in_a_send(logs: list[Log]) -> Iterator[list[Log]]:
    """Copies that end in the middle of a send whose message some reader has leased from: all that came later is cut off."""
    (writer,) = [number for number, log in enumerate(logs) if log.row == WRITER]
    events, positions = sorted(logs[writer].events), positions_with_slots(logs)
    for at, event in enumerate(events[:-1]):
        until = events[at + 1].before
        cut = [replace(log, events=[each for each in log.events if each.before < until]) for log in logs]
        is_leased = any(each.action == "lease" and each.before > event.before for log in cut for each in log.events)
        if event.action == "send" and event.args[0] in positions and is_leased:
            unfinished = event._replace(after=math.inf, args=(*event.args[:3], 0, 0))
            yield with_events(cut, writer, [*events[:at], unfinished])


def test_a_writer_killed_between_a_message_and_its_last_word(directory: Path) -> None:
    """The log does not say that the message was out; the readers' logs do."""
    cut = [copy for logs in read_runs(directory).values() for copy in killed_in_a_send(logs)]
    assert cut
    for logs in cut:
        verdict = validate(logs)
        assert verdict.accepted, verdict


def test_a_refusal_says_where_and_what_would_have_been_right(directory: Path) -> None:
    logs = next(iter(read_runs(directory).values()))
    (writer,) = [number for number, log in enumerate(logs) if log.name.startswith("writer")]
    events = logs[writer].events
    at = next(at for at, event in enumerate(events) if event.action == "publish")
    verdict = validate(with_events(logs, writer, [*events[:at], events[at]._replace(args=(7,) * 5), *events[at + 1 :]]))
    assert not verdict.accepted
    assert any("publish(7" in reason and "not of the message under way" in reason for reason in verdict.why)
    assert verdict.allowed


def test_the_command_refuses_a_corrupted_run_and_an_empty_folder(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = next(iter(read_runs(directory).values()))
    (writer,) = [number for number, log in enumerate(logs) if log.row == WRITER]
    events = [event for event in logs[writer].events if event.action != "claim"]
    monkeypatch.setattr("spec.trace.read_runs", lambda folder: {"segment": with_events(logs, writer, events)})
    run = CliRunner().invoke(main, ["trace", str(directory)])
    assert run.exit_code == 1
    assert "NOT a behaviour of the model of message slots" in run.output
    assert "the model would have allowed: " in run.output
    run = CliRunner().invoke(main, ["trace", str(directory), "--json"])
    (verdict,) = json.loads(run.output)
    assert (run.exit_code, verdict["accepted"]) == (1, False)
    assert verdict["why"]
    assert verdict["allowed"]
    monkeypatch.undo()
    run = CliRunner().invoke(main, ["trace", str(tmp_path)])
    assert (run.exit_code, run.output) == (1, f"no logs (*.trace) in {tmp_path}\n")


def test_off_nothing_is_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a traced method is the class's own: the same instructions as without the module."""
    from support import queue_of

    for directory in ("", str(tmp_path)):
        monkeypatch.setenv("ARENA_TRACE", directory)
        with queue_of(1) as (writer, (reader,)):
            objects = ObjectWriter(writer._end.segment, writer._end.slots)
            ends = (writer._end.ring, writer._end.slots, objects, reader._end.ring, ObjectReader(reader._end.segment, 0))
            wrapped = [any(hasattr(type(end), name) for name in vars(end)) for end in ends]
        assert wrapped == [bool(directory)] * len(ends)


def test_a_mistyped_directory_is_refused_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support import queue_of

    with queue_of(1) as (writer, _):
        monkeypatch.setenv("ARENA_TRACE", str(tmp_path / "mistyped"))
        for make in (lambda: MessageQueue(1), lambda: MessageQueue.create_from_handle(writer.export_handle(), 0)):
            with pytest.raises(ValueError, match=r"ARENA_TRACE=.*mistyped: there is no such directory; make it first"):
                make()
    assert not list(tmp_path.iterdir())


def test_the_timeline_has_slots_leases_messages_and_deaths(directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    outcome = CliRunner().invoke(arena, ["trace", str(directory), "--perfetto", str(out)])
    assert outcome.exit_code == 0, outcome.output
    entries = json.loads(out.read_text())["traceEvents"]
    named = {entry["pid"]: entry["args"]["name"] for entry in entries if entry["ph"] == "M"}
    assert {name.split()[0] for name in named.values()} == {"writer", "reader", "slots", "leases"}
    spans = {entry["name"] for entry in entries if entry["ph"] == "X"}
    assert any(name.startswith("object, generation") for name in spans)
    assert any("reader 0, object" in name for name in spans)
    sent, taken = ({entry["id"] for entry in entries if entry["ph"] == kind} for kind in "sf")
    assert taken
    assert taken <= sent
    assert any(entry["ph"] == "i" and "reclaimed" in entry["name"] for entry in entries)
    assert {entry["pid"] for entry in entries} == set(named)
    assert_nested(entries)


def assert_nested(entries: list[Any]) -> None:
    """A viewer draws what happens in one row as a stack: of two spans that overlap one must lie inside the other."""
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for entry in entries:
        if entry["ph"] == "X":
            rows[entry["pid"], entry["tid"]].append((entry["ts"], -entry["dur"]))
    for row, spans in rows.items():
        ends: list[float] = []
        for start, minus_length in sorted(spans):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - minus_length <= ends[-1], f"row {row} at {start}"
            ends.append(start - minus_length)


def drawn(*logs: Log) -> dict[str, list[tuple[float, float]]]:
    """When each span of the slots' and the leases' rows begins and ends, by name."""
    entries = timeline({"segment": list(logs)})
    assert_nested(entries)
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for entry in entries:
        if entry["ph"] == "X" and entry["pid"] >= SLOTS:
            spans[entry["name"]].append((entry["ts"], entry["ts"] + entry["dur"]))
    return {name: sorted(each) for name, each in spans.items()}


def log_of(row: int, *events: tuple[str, tuple[int, ...]], at: Sequence[int]) -> Log:
    """A log of events that take from ten times their moment to five more."""
    made = [Event(10 * when, 10 * when + 5, action, 1, args) for (action, args), when in zip(events, at, strict=True)]
    return Log(Path(), row, 1, 1, 2, 4, "segment", 0, made)


CLAIM_5, CLAIM_6 = ("claim", (1, 4096, 0, 1, 5)), ("claim", (1, 4096, 0, 1, 6))  # of slot 0


def test_a_slot_of_an_aborted_message_is_drawn_free() -> None:
    writer = log_of(
        WRITER, CLAIM_5, ("abort", (0, 1, 0, 0, 0)), CLAIM_6, ("send", (0, 0, 0, 1, 0)), ("admit", (1, 1, 1, 0, 0)),
        at=(1, 2, 4, 5, 9),
    )  # fmt: skip
    assert drawn(writer) == {"generation 5": [(10, 20)], "generation 6": [(40, 95)]}


def test_a_dead_readers_lease_ends_when_it_is_reclaimed() -> None:
    """And the slot's generation with the next one: nobody has logged its release."""
    reader = log_of(0, ("lease", (0, 0, 5, 1, 0)), at=(3,))
    writer = log_of(WRITER, CLAIM_5, ("send", (0, 0, 0, 1, 0)), ("reclaim", (0, 0, 0, 0, 0)), CLAIM_6, at=(1, 2, 4, 6))
    assert drawn(writer, reader) == {
        "generation 5": [(10, 60)], "generation 6": [(60, 65)], "reader 0, generation 5": [(30, 40)],
    }  # fmt: skip


def test_leases_of_one_object_are_drawn_inside_one_another() -> None:
    get, release = ("get", (2, 0, 4, 1, 0)), ("release_hold", (2, 0, 4, 0, 0))
    assert drawn(log_of(WRITER, get, get, release, release, at=(1, 2, 3, 4))) == {"writer, object 4": [(10, 40), (20, 30)]}
