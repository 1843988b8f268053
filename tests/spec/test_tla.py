"""The TLA+ twins: TLC must find the states and the transitions that the models' own checker finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from spec import models, tla
from spec.__main__ import main
from spec.checker import check
from spec.models import message_slots
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


@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize("config", SIZES.values(), ids=SIZES)
def test_message_slots_agree(config: Config) -> None:
    agree("message_slots", config)


@pytest.mark.usefixtures("tlc")
def test_message_slots_agree_under_symmetry() -> None:
    agree("message_slots", Config(), symmetry=True)


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


@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize(
    ("fault", "change"),
    [
        # the twin's own sensitivity: a wrong twin disagrees, and is told so by an invariant
        ("S1", lambda text: text.replace('r \\notin alive\n    /\\ \\A s \\in Slots : ref[r][s][1] # "dma"', "TRUE")),
        ("S4", lambda text: text.replace("Range(pending) \\union current IN", "current IN")),
    ],
)
def test_a_fault_in_the_twin_is_found(fault: str, change: Callable[[str], str], tmp_path: Path) -> None:
    twin = tla.TWINS["message_slots"]
    text = change(twin.text)
    assert text != twin.text
    module = tmp_path / f"{twin.module}.tla"
    module.write_text(text)
    found = tla.run_tlc(replace(twin, folder=tmp_path), twin.configuration(Config()))
    assert found.violated == fault


def test_the_twin_has_the_actions_of_the_model() -> None:
    twin = tla.TWINS["message_slots"].text
    disjuncts = set(re.findall(r"\b([A-Z]\w+)\(r|\b([A-Z]\w+)\b", twin.split("\nNext ==")[1].split("\nSpec ==")[0]))
    named = {name for pair in disjuncts for name in pair if name} - {"Slots", "Readers", "WithLeave", "WithQuarantine"}
    actions = message_slots.model(Config(leave=True, quarantine=True)).actions
    assert named == {"".join(word.capitalize() for word in each.name.split("_")) for each in actions}


def test_the_command_prints_the_module_and_its_configuration(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["tla", "--slots", "3", "--symmetry"])
    assert run.exit_code == 0
    assert "MODULE MessageSlots" in run.output
    assert "Slots = {s0, s1, s2}" in run.output
    assert "SYMMETRY Symmetry" in run.output
    run = CliRunner().invoke(main, ["tla", "--out", str(tmp_path)])
    assert run.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"MessageSlots.tla", "MessageSlots.cfg"}
