"""How the commands of `arena` end: one line and a code of their own for each kind of failure, and no traceback."""

from __future__ import annotations

import io
import re
import struct
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from arena.errors import ArenaError, CapacityError, ForkedError
from arena.shm import tracelog
from arena.tools import cli, commands, engine, worker
from arena.tools.commands import arena
from arena.tools.extras import MissingExtra
from spec.__main__ import main as spec

DEMO = ["demo", "--workers", "1", "--sizes", "320x240", "--seconds", "0.1"]


def said(shown: Result) -> str:
    """What a user reads: the exception that ended the command must be an exit, or there would be a traceback."""
    assert isinstance(shown.exception, SystemExit), shown.exception
    return shown.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["demo", "--workers", "64"], "64 is not in the range 1<=x<=63"),
        (["demo", "--seconds", "nan"], "nan is not a finite number"),
        (["demo", "--seconds", "inf"], "inf is not a finite number"),
        (["demo", "--sizes", "28x6000"], "size '28x6000': one side must be at most 200 times the other"),
        (["demo", "--repeat-images", "--transport", "in-band pickle"], "--repeat-images .* takes no --transport"),
        (["offload", "populate", "--gib", "nan"], "nan is not a finite number"),
        (["offload", "populate", "--gib", "inf"], "inf is not in the range 0<x<=1048576"),
        (["offload", "populate", "--numa", "9" * 5000], "--numa"),
    ],
)
def test_arguments_that_cannot_be_are_usage_errors(arguments: list[str], text: str) -> None:
    shown = CliRunner().invoke(arena, arguments)
    assert shown.exit_code == 2, shown.exception
    assert re.search(text, " ".join(said(shown).split()))


@pytest.mark.parametrize(
    "error",
    [
        CapacityError("no room"), ForkedError("a child"), MissingExtra("no skimage"), engine.WorkerFailed("worker 0 ended"),
        OSError("no space left"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_be_done_is_one_line_and_ends_with_3(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(engine, "run", fail)
    shown = CliRunner().invoke(arena, DEMO)
    assert shown.exit_code == 3
    assert said(shown).strip().splitlines() == [f"Error: {error}"]


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "run", interrupt)
    assert CliRunner().invoke(arena, DEMO).exit_code == 130


def test_without_click_the_extra_is_named_and_the_command_ends_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "click", None)  # importing it then raises ModuleNotFoundError
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    assert "shm-tensor-arena[demo]" in capsys.readouterr().err


def test_a_locale_without_a_character_costs_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """`arena bench` prints what it has measured at its end, with a sign that ASCII lacks: all was lost then."""
    page = io.TextIOWrapper(raw := io.BytesIO(), "ascii", "strict", write_through=True)
    monkeypatch.setattr(sys, "stdout", page)
    monkeypatch.setattr(commands, "arena", lambda prog_name: Console(file=sys.stdout).print("put ÷ memcpy"))
    cli.main()
    assert raw.getvalue() == b"put \\xf7 memcpy\n"


class Words:
    """The end of a pipe: keeps what a worker tells."""

    def __init__(self) -> None:
        self.told: list[worker.Failure] = []

    def send(self, failure: worker.Failure) -> None:
        self.told.append(failure)


@pytest.mark.parametrize(("error", "lines"), [(ArenaError("no room"), 1), (RuntimeError("a fault"), 5)])
def test_a_worker_tells_a_typed_error_in_one_line(error: Exception, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker, "_serve", fail)
    words = Words()
    worker.run(0, {}, "arena", words)  # type: ignore[arg-type]
    [failure] = words.told
    assert str(error) in failure.text
    assert len(failure.text.splitlines()) >= lines
    assert ("Traceback" in failure.text) == (lines > 1)


HEADER = struct.pack("<QQ", 1, 1) + tracelog.ABOUT.pack(tracelog.MAGIC, tracelog.VERSION, 0, 1, 1, 1, 1, bytes(16))
FOREIGN = {
    "x.trace": (b"junk", "not the name of a log"),
    "a.b.0.trace": (b"junk", "too short for a log"),
    "a.b.1.trace": (bytes(300), "not a log, or of another version"),
    "a.b.2.trace": (HEADER.ljust(128, b"\0") + tracelog.EVENT.pack(1, 2, 999, 1, *[0] * 5), "a damaged log"),
    "a.b.3.trace": (HEADER.ljust(128, b"\0") + b"cut", "a damaged log"),
}


@pytest.mark.parametrize("command", [arena, spec], ids=["arena", "spec"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_no_log_is_named(command: object, name: str, tmp_path: Path) -> None:
    data, text = FOREIGN[name]
    (tmp_path / name).write_bytes(data)
    shown = CliRunner().invoke(command, ["trace", str(tmp_path)])  # type: ignore[arg-type]
    assert shown.exit_code == 2, shown.exception
    assert f"{name}: {text}" in "".join(said(shown).split("\n"))
