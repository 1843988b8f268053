"""The main job end to end: `arena demo`, small."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from support import wait_until

from arena.tools import engine, extras, processes, workload
from arena.tools.commands import arena
from arena.tools.report import LEGEND, Result, Row, show
from arena.tools.transports import TRANSPORTS, PipeWriter

DEMO = [sys.executable, "-c", "from arena.tools.cli import main; main()", "demo"]
SMALL = ["--workers", "2", "--sizes", "320x240", "--seconds"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_demo_runs_every_transport_and_verifies_every_tensor() -> None:
    done = subprocess.run(
        [*DEMO, "--workers", "2", "--sizes", "1", "--seconds", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert [row["transport"] for row in told["rows"]] == list(TRANSPORTS)
    assert {row["size"] for row in told["rows"]} == {"1155x866"}
    assert all(row["last_worker_ms"] > 0 and row["steps"] >= 4 for row in told["rows"])
    copied = {row["transport"]: row["megabytes_copied"] / row["megabytes"] for row in told["rows"]}
    assert copied["arena"] == pytest.approx(1, rel=0.05), "one copy, however many workers"
    assert copied["out of band"] == pytest.approx(2, rel=0.05), "one copy for each worker"
    assert copied["in-band pickle"] == pytest.approx(3, rel=0.05)
    assert told["slots_leaked"] == 0
    assert told["wrong"] == []


def test_table_ends_with_a_verdict() -> None:
    shown = CliRunner().invoke(arena, ["demo", *SMALL, "0.1", "--transport", "in-band pickle", "--transport", "arena"])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[-1].startswith("arena: all ")


@pytest.mark.parametrize(
    "transport", ["arena", *(pytest.param(name, marks=pytest.mark.deep) for name in TRANSPORTS if name != "arena")]
)
def test_a_wrong_checksum_is_told_and_ends_with_1(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "checksum", lambda tensor: "planted")
    shown = CliRunner().invoke(arena, ["demo", *SMALL, "0.1", "--json", "--transport", transport])
    assert shown.exit_code == 1, shown.output
    told = json.loads(shown.stdout)
    assert f"{transport}, worker 0: image-0: pixel_values of qwen2-vl bfloat16" in told["wrong"]
    assert told["verdict"].startswith("WRONG")


@contextlib.contextmanager
def long_demo(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A demo in the middle of its work, and its child processes."""
    environment = os.environ | {"TMPDIR": str(temporary)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen([*DEMO, *SMALL, "600"], env=environment, text=True, **pipes) as engine:
        try:
            yield engine, _children_at_work(engine)
        finally:
            engine.kill()


def _children_at_work(engine: subprocess.Popen[str]) -> list[psutil.Process]:
    """The engine's children, once both workers have joined: they map the segment."""
    joined = partial(_children_with, engine, "/memfd:arena")
    wait_until(lambda: engine.poll() is not None or len(joined()) == 2, "two workers that have joined")
    assert engine.poll() is None, engine.communicate()[1]
    return psutil.Process(engine.pid).children(recursive=True)


@pytest.mark.parametrize(
    "end",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.deep),
        pytest.param(signal.SIGINT, marks=pytest.mark.deep),
    ],
    ids=lambda end: end.name,
)
def test_nothing_is_left_when_the_engine_is_ended(end: signal.Signals, tmp_path: Path) -> None:
    files_before = set(os.listdir("/dev/shm"))
    with long_demo(tmp_path) as (engine, children):
        engine.send_signal(end)
        assert engine.wait(30) not in (0, 1, 2)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []
    assert list(tmp_path.iterdir()) == []
    assert {name for name in os.listdir("/dev/shm") if "arena" in name} <= files_before


def test_a_worker_that_still_imports_leaves_an_interrupt_to_the_engine() -> None:
    """Ctrl-C goes to all processes of a terminal: each worker that was not at work yet told of it with a traceback."""
    with subprocess.Popen([*DEMO, *SMALL, "0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as engine:
        try:
            importing = partial(_children_with, engine, "libtorch")
            wait_until(lambda: engine.poll() is not None or len(importing()) == 2, "two workers that import")
            for child in importing():
                child.send_signal(signal.SIGINT)
            _, told = engine.communicate(timeout=120)
        finally:
            engine.kill()
    assert (engine.returncode, told.strip()) == (0, "")


def test_a_worker_whose_engine_ended_before_it_was_at_work_does_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It told with a traceback that the engine's memory could not be opened."""
    reading, writing = os.pipe()
    os.close(writing)  # as the sentinel of a process that has ended
    ended: list[int] = []

    def leave(code: int) -> None:
        ended.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(processes, "parent_process", lambda: SimpleNamespace(sentinel=reading))
    monkeypatch.setattr(processes.signal, "signal", lambda *_: None)
    monkeypatch.setattr(processes.os, "_exit", leave)
    try:
        with pytest.raises(SystemExit):
            processes.die_with_parent()
    finally:
        os.close(reading)
    assert ended == [1]


def _children_with(engine: subprocess.Popen[str], mapped: str) -> list[psutil.Process]:
    """The engine's children that have mapped a file of such a name."""
    children = psutil.Process(engine.pid).children()
    return [child for child in children if mapped in Path(f"/proc/{child.pid}/maps").read_text()]


def test_a_worker_that_ends_is_named(tmp_path: Path) -> None:
    with long_demo(tmp_path) as (engine, children):
        max(children, key=lambda child: sum(child.cpu_times()[:2])).kill()
        _, told = engine.communicate(timeout=60)
        assert engine.returncode == 3, told
        assert "ended without a word" in told
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []


def test_a_worker_that_ended_before_a_step_is_named() -> None:
    """The pipe to it has no reader any more."""
    step = workload.Step(0, [], workload.RunningRequests([], [], [], []), {}, 0, [])
    with contextlib.suppress(engine.WorkerFailed), engine.crew(1, ["in-band pickle"]) as crew:
        (process,) = crew._processes
        process.kill()
        process.join()
        with pytest.raises(engine.WorkerFailed, match="worker 0 ended without a word"):
            crew.step("in-band pickle", step)


def test_a_bad_size_is_a_usage_error() -> None:
    shown = CliRunner().invoke(arena, ["demo", "--sizes", "1,huge"])
    assert shown.exit_code == 2
    assert "size 'huge' is neither WIDTHxHEIGHT nor a number of megapixels" in shown.output


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(extras.MissingExtra, match=r"'no_such_package'.*extra 'demo'.*shm-tensor-arena\[demo\]"):
        extras.require("no_such_package.part")


def test_the_checksum_sees_one_changed_bit_a_moved_page_and_another_type() -> None:
    print("seed 7")
    original = torch.frombuffer(bytearray(random.Random(7).randbytes(3 * 4096 + 100)), dtype=torch.uint8)
    digest = workload.checksum(original)
    for position in (0, 4095, 4096, 3 * 4096, len(original) - 1):
        changed = original.clone()
        changed[position] ^= 1
        assert workload.checksum(changed) != digest
    assert workload.checksum(torch.cat([original[4096:8192], original[:4096], original[8192:]])) != digest
    assert workload.checksum(original.view(torch.int8)) != digest
    assert workload.checksum(original.view(1, -1)) != digest
    assert workload.checksum(original.clone()) == digest


def test_a_wave_keeps_each_request_for_its_steps_and_ends_all() -> None:
    images = [workload.Payload.of(str(index), {"x": torch.tensor([index])}) for index in range(4)]
    steps = list(workload.wave(images, 10, random.Random(0)))
    assert [step.number for step in steps] == list(range(10, 17))
    started = {request.request_id: step.number for step in steps for request in step.new_requests}
    ended = {request_id: step.number for step in steps for request_id in step.finished_ids}
    assert started.keys() == ended.keys()
    assert all(ended[request] - started[request] == workload.REQUEST_STEPS for request in started)
    for step in steps:
        alive = {request for request in started if started[request] < step.number < ended[request]}
        named = {request for request in step.running.request_ids if request.startswith("image")}
        assert alive == named


def shown_at(width: int, result: Result, *, terminal: bool = True) -> list[str]:
    """The lines of a page."""
    text = StringIO()
    show(result, Console(file=text, width=width, force_terminal=terminal, color_system=None))
    return [line.rstrip() for line in text.getvalue().splitlines()]


THREE = [
    Row("4096x4096", name, 12, 136.57, 148.55, 1127.12, 1139.33, 546.6, {"no_slot": 1234})
    for name in ("arena", "out of band", "in-band pickle")
]


def test_the_table_shows_each_figure_whole_in_80_columns() -> None:
    text = "\n".join(shown_at(80, Result(4, 1, THREE)))
    figures = ("4096x4096", "in-band pickle", "136.6", "148.6", "1127.1", "1139.3", "546.6", "1234")
    assert all(figure in text for figure in figures)
    assert "…" not in text


@pytest.mark.parametrize("repeated", [False, True])
def test_words_below_a_table_that_is_narrower_use_all_columns(repeated: bool) -> None:
    """What the columns mean used to be broken to the width of the table, which depends on its figures."""
    small = [Row("64x64", name, 4, 0.1, 0.1, 0.1, 0.1, 0.1, {}) for name in ("arena", "out of band", "in-band pickle")]
    result = Result(4, 1, small, lookups=2 if repeated else 0, hits=1)
    lines = shown_at(80, result)
    assert max(map(len, lines)) <= 80
    below = lines[next(number for number, line in enumerate(lines) if line.startswith("writer:")) :]
    assert " ".join(below) == f"{LEGEND} {result.verdict()}"
    assert len(below) == len(textwrap.wrap(LEGEND, 80)) + len(textwrap.wrap(result.verdict(), 80))


def test_the_verdict_is_the_last_line_where_no_terminal_breaks_it() -> None:
    wrong = Result(4, 1, THREE, wrong=["arena, worker 0: [bold] " + "a name " * 40 + "end"])
    for result in (Result(4, 1, THREE), wrong):
        assert shown_at(120, result, terminal=False)[-1] == result.verdict()


def test_the_verdict_says_who_is_sooner_and_how_sure_that_is() -> None:
    def of(name: str, steps: int, last_worker_ms: float) -> Row:
        return Row("512x512", name, steps, 1.0, 1.0, last_worker_ms, 1.0, 1.0, {})

    slow = Result(1, 1, [of("out of band", 20, 8.0), of("in-band pickle", 20, 20.0), of("arena", 20, 10.0)])
    assert slow.verdict().endswith("the worker has the image 1.2x later than out of band, 2.0x sooner than in-band pickle")
    few = Result(4, 1, [of("out of band", 20, 8.0), of("arena", 9, 4.0)])
    assert "the last of 4 workers has the image 2.0x sooner than out of band (some rows are of 9 steps" in few.verdict()


def test_a_leaked_slot_is_a_failure() -> None:
    row = Row("s", "arena", 1, 1.0, 1.0, 1.0, 1.0, 1.0, {"small": 3, "no slot": 2})
    assert row.fallbacks_total == 2
    assert Result(1, 0, [row], 1, [], slots_leaked=0).ok
    assert not Result(1, 0, [row], 1, [], slots_leaked=1).ok
    assert "LEAK: 1 arena slots" in Result(1, 0, [row], 1, [], slots_leaked=1).verdict()


def test_messages_larger_than_a_pipe_arrive_whole() -> None:
    writer = PipeWriter(1)
    reader = writer.endpoint(0).open()
    sent = [torch.arange(count) for count in (0, 1, 1 << 16, 1 << 20)]
    sender = threading.Thread(target=lambda: [writer.send(each, 60) for each in sent])
    sender.start()
    try:
        for each in sent:
            assert torch.equal(reader.receive(60), each)
        with pytest.raises(TimeoutError):
            reader.receive(0.01)
    finally:
        sender.join()
        writer.close()
