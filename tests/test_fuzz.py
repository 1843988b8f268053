"""Each fuzz target, small; the long runs are deep.  ``python -m fuzz TARGET --seed N`` replays what fails here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import guided_fault
import pytest
from click.testing import CliRunner

from fuzz import canary as canaries
from fuzz import command, guided, targets
from fuzz.exhaustion import COMBINATIONS
from fuzz.planted import FAULTS
from fuzz.session import Failure, Session

SMOKE: dict[str, dict[str, Any]] = {
    "crashpoints": {"stride": 97, "readers": (2,)},
    "crashpairs": {"runs": 8},
    "killall": {"runs": 3},
    "recovery": {"runs": 4},
    "exhaustion": {"runs": 4},
    "bytes": {"runs": 60},
    "pickle": {"runs": 150},
    "extents": {"runs": 1},
    "cache": {"runs": 80},
    "cachepoints": {"stride": 97},
    "soak": {"seconds": 2.0, "readers": 2},
}
DEEP: dict[str, dict[str, Any]] = {
    "crashpoints": {},
    "crashpairs": {"runs": 2000},
    "killall": {"runs": 100},
    "recovery": {"runs": 200},
    "exhaustion": {"runs": 4 * len(COMBINATIONS)},
    "bytes": {"runs": 20_000},
    "pickle": {"runs": 20_000},
    "extents": {},
    "cache": {"runs": 5000},
    "cachepoints": {},
    "soak": {"seconds": 1800.0, "readers": 4},
}


def _run(name: str, seed: int, options: dict[str, Any]) -> Session:
    options = dict(options)
    session = Session(seed, options.pop("seconds", None), options.pop("runs", None), options)
    try:
        targets.find(name)(session)
    except Failure as failure:
        pytest.fail(f"python -m fuzz {name} --seed {seed}: {failure}")
    return session


@pytest.mark.parametrize("name", SMOKE)
def test_target_finds_nothing_in_a_short_run(name: str, seed: int) -> None:
    session = _run(name, seed, SMOKE[name])
    assert session.counts, "a target that does nothing finds nothing"


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", DEEP)
def test_target_finds_nothing_in_a_long_run(name: str, seed: int, tmp_path: Path) -> None:
    _run(name, seed, {**DEEP[name], "output": str(tmp_path)})


@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.deep) if f == "held slot" else f for f in FAULTS])
def test_harness_sees_a_planted(fault: str) -> None:
    failure = canaries.provoke(fault)
    assert failure is not None
    assert FAULTS[fault] in str(failure)


def test_canary_fails_as_it_must_and_says_how_to_replay() -> None:
    result = CliRunner().invoke(command.main, ["canary", "--seed", "7", "--fault", "crash"])
    assert result.exit_code == 1
    text = result.output
    assert "seed 7" in text.splitlines()[0]
    assert "SIGSEGV" in text
    assert "python -m fuzz canary --seed 7" in text


def test_canary_that_sees_nothing_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "provoke", lambda fault: None)
    assert CliRunner().invoke(command.main, ["canary", "--fault", "crash"]).exit_code == 0


@pytest.mark.skipif(not guided.is_available(), reason="no atheris here: pip install 'shm-tensor-arena[fuzz]'")
def test_coverage_leads_to_a_planted_fault_that_chance_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four bytes, one after the other: one input of four thousand millions."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with pytest.raises(Failure, match=r"a fault four draws deep[\s\S]*python -m fuzz bytes --input [0-9a-f]+") as failure:
        guided.run(Session(1), 200_000, 100, "guided_fault:fault")
    replay = re.findall("--input ([0-9a-f]+)", str(failure.value))[-1]
    with pytest.raises(Failure, match="a fault four draws deep"):
        guided_fault.fault(guided.Choices(bytes.fromhex(replay)))
    guided_fault.fault(guided.Choices(b""))


def test_choices_come_from_the_bytes_and_end_in_zeros() -> None:
    choices = guided.Choices(bytes([5 << 4, 1, 2, 3]))
    assert [choices.randrange(8), choices.getrandbits(8), choices.randbytes(2)] == [5, 1, b"\x02\x03"]
    assert [choices.randrange(1000), choices.choice("abc"), choices.random()] == [0, "a", 0.0]


def test_list_names_every_target() -> None:
    result = CliRunner().invoke(command.main, ["list"])
    assert result.exit_code == 0
    assert all(name in result.output for name in targets.names())


def test_every_target_runs_small_and_long() -> None:
    assert set(SMOKE) == set(DEEP) == set(targets.names()) - {"canary"}


def test_failure_prints_the_command_that_replays_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_at_3(session: Session) -> None:
        for case in session.cases(10):
            if case == 3:
                raise Failure("the fourth case")

    monkeypatch.setattr(targets, "find", lambda name: fails_at_3)
    result = CliRunner().invoke(command.main, ["extents", "--seed", "5"])
    assert result.exit_code == 1
    assert "replay: python -m fuzz extents --seed 5 --runs 1 --first 3" in result.output
