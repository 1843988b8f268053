"""The TLA+ twins: TLC must find the states and the transitions that the models' own checker finds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spec import models, tla
from spec.__main__ import main
from spec.checker import check
from spec.models import ring
from spec.models.message_slots import Config

SIZES = {
    "one slot, one reader": Config(slots=1, readers=1, tensors=1),
    "one slot": Config(slots=1, tensors=1),
    "one reader": Config(readers=1),
    "two of each": Config(),
    "leave": Config(slots=1, tensors=1, leave=True),
    "quarantine": Config(slots=1, tensors=1, quarantine=True),
}


@pytest.fixture(scope="module")
def tlc() -> None:
    try:
        tla.find_tlc()
    except tla.NoTLC as why:
        pytest.skip(str(why))


def agree(name: str, config: object, *, symmetry: bool = False) -> None:
    twin = tla.TWINS[name]
    theirs = tla.run_tlc(twin, twin.configuration(config, symmetry))
    ours = check(models.load(name).model(config), symmetry=symmetry, drain=False)
    assert theirs.violated is None
    assert theirs.distinct == ours.states
    assert theirs.generated == ours.transitions + 1  # TLC counts the initial state too


QUICK = ("two of each", "leave", "quarantine", "one record")  # each costs the start of a Java machine


def instances(configs: dict[str, Any]) -> list[Any]:
    return [pytest.param(each, id=name, marks=() if name in QUICK else pytest.mark.deep) for name, each in configs.items()]


@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize("config", instances(SIZES))
def test_message_slots_agree(config: Config) -> None:
    agree("message_slots", config)


@pytest.mark.usefixtures("tlc")
def test_message_slots_agree_under_symmetry() -> None:
    agree("message_slots", Config(), symmetry=True)


RINGS = {
    "never shut down": ring.Config(shutdown=False),
    "one record": ring.Config(),
    "two records": ring.Config(capacity=2),
    "slices": ring.Config(slices=True),
}
DEEP_RINGS = {
    "two readers": ring.Config(readers=2, deaths=False, shutdown=False, spurious=False),
    "two readers, deaths": ring.Config(readers=2, shutdown=False, spurious=False),
}


@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize("config", instances(RINGS))
def test_the_ring_agrees(config: ring.Config) -> None:
    agree("ring", config)


@pytest.mark.usefixtures("tlc")
@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("config", DEEP_RINGS.values(), ids=DEEP_RINGS)
def test_the_ring_agrees_on_two_readers(config: ring.Config) -> None:
    agree("ring", config)


@pytest.mark.usefixtures("tlc")
@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("config", [replace(Config(), leave=True), replace(Config(), quarantine=True)])
def test_message_slots_with_options_agree(config: Config) -> None:
    agree("message_slots", config)


@pytest.mark.usefixtures("tlc")
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_message_slots_agree_on_three_slots() -> None:
    twin = tla.TWINS["message_slots"]
    theirs = tla.run_tlc(twin, twin.configuration(Config(slots=3)))
    assert (theirs.violated, theirs.distinct) == (None, 1_112_588)


# the twins' own sensitivity: an invariant tells that a wrong twin is wrong
FAULTS = [
    ("message_slots", "S1", 'r \\notin alive\n    /\\ \\A s \\in Slots : ref[r][s][1] # "dma"', "TRUE"),
    ("message_slots", "S4", "Range(pending) \\union current IN", "current IN"),
    ("ring", "NoLostWakeup", 'writer.buf = <<>> /\\ WriterMoves("wake fence"', 'WriterMoves("wake fence"'),
    ("ring", "NoOverwrite", "< Capacity\n\nInit", "<= Capacity\n\nInit"),
    ("ring", "NoLostRecord", 'IF Something(r) THEN "unpark" ELSE "writer died"', '"writer died"'),
]


@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize(("name", "fault", "right", "wrong"), FAULTS)
def test_a_fault_in_the_twin_is_found(name: str, fault: str, right: str, wrong: str, tmp_path: Path) -> None:
    twin = tla.TWINS[name]
    assert twin.text.count(right) == 1
    (tmp_path / f"{twin.module}.tla").write_text(twin.text.replace(right, wrong))
    found = tla.run_tlc(replace(twin, folder=tmp_path), twin.configuration(models.load(name).Config()))
    assert found.violated == fault


@pytest.mark.parametrize(
    ("name", "config"), [("message_slots", Config(leave=True, quarantine=True)), ("ring", ring.Config())]
)
def test_the_twin_has_the_actions_of_the_model(name: str, config: object) -> None:
    next_state = tla.TWINS[name].text.split("\nNext ==")[1].split("\nSpec ==")[0]
    words = set(re.findall(r"\b[A-Z]\w+", next_state))
    ours = {"".join(word.capitalize() for word in each.name.split("_")) for each in models.load(name).model(config).actions}
    assert words - {"Slots", "Readers"} - {word for word in words if word.startswith("With")} == ours


def test_the_command_prints_the_module_and_its_configuration(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["tla", "--slots", "3", "--symmetry"])
    assert run.exit_code == 0
    assert "MODULE MessageSlots" in run.output
    assert "Slots = {s0, s1, s2}" in run.output
    assert "SYMMETRY Symmetry" in run.output
    assert CliRunner().invoke(main, ["tla", "ring", "--symmetry"]).exit_code == 2
    assert "VIEW View" in CliRunner().invoke(main, ["tla", "ring"]).output
    run = CliRunner().invoke(main, ["tla", "--out", str(tmp_path)])
    assert run.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"MessageSlots.tla", "MessageSlots.cfg"}


@pytest.mark.parametrize(("violated", "code"), [(None, 0), ("S1", 1)])
def test_the_command_tells_what_tlc_has_found(violated: str | None, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tla, "run_tlc", lambda twin, configuration: tla.TLCResult(54, 108, violated, ""))
    run = CliRunner().invoke(main, ["tla", "--run", "--json"])
    assert (run.exit_code, json.loads(run.stdout)) == (code, {"distinct": 54, "generated": 108, "violated": violated})
    run = CliRunner().invoke(main, ["tla", "--run"])
    assert (run.exit_code, run.stdout) == (code, f"54 distinct states, 108 generated; violated: {violated}\n")


def test_without_java_the_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = CliRunner().invoke(main, ["tla", "--run"])
    assert run.exit_code == 1
    assert "TLC needs Java" in run.stderr
