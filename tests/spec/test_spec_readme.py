"""`spec/README.md` says what the models say: pictures, tables of faults, commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from spec import picture
from spec.__main__ import main
from spec.models import message_slots

README = Path(picture.__file__).with_name("README.md")
TEXT = README.read_text()
COMMANDS = re.findall(r"^\$ python -m spec (.*?)\s*(?:#.*)?$", TEXT, re.MULTILINE)


def test_the_pictures_are_up_to_date() -> None:
    assert picture.MARK in TEXT
    assert picture.updated(TEXT) == TEXT, "run: python -m spec picture --update spec/README.md"


def test_a_changed_picture_is_noticed() -> None:
    assert picture.updated(TEXT.replace("|claim|", "|clam|")) == TEXT


def test_the_faults_of_message_slots_are_listed() -> None:
    for name, each in message_slots.VARIANTS.items():
        if each.breaks:
            assert f"| `{name}`: {each.summary} | {each.breaks} | {each.steps} |" in TEXT


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # --processes forks
@pytest.mark.parametrize("line", [pytest.param(line, marks=pytest.mark.deep if "3" in line else ()) for line in COMMANDS])
def test_the_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(main, shlex.split(line))
    assert run.exit_code == ("--variant " in line), run.output


def test_a_view_is_drawn_in_both_formats(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["picture"])
    assert "message_slots/slot" in run.output
    run = CliRunner().invoke(main, ["picture", "message_slots/slot", "--out", str(tmp_path / "slot.dot")])
    assert run.exit_code == 0
    assert '"free again" -> claimed' in (tmp_path / "slot.dot").read_text()
    assert "|claim|" in CliRunner().invoke(main, ["picture", "message_slots/slot"]).output
    assert CliRunner().invoke(main, ["picture", "no/such"]).exit_code == 2
    assert CliRunner().invoke(main, ["picture", "message_slots/slot", "--out", str(tmp_path / "slot.no")]).exit_code == 2
