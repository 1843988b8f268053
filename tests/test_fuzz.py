"""Each fuzz target, small; the long runs are deep.  ``python -m fuzz TARGET --seed N`` replays what fails here."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guided_fault
import pytest
from click.testing import CliRunner

from fuzz import cache as caches
from fuzz import cachepoints, command, crashpoints, guided, targets
from fuzz import canary as canaries
from fuzz.exhaustion import COMBINATIONS
from fuzz.planted import SEEN_BY
from fuzz.scenario import Arm
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
        pytest.fail(f"{command.replay(name, session, failure)}: {failure}")
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


@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.deep) if f == "held slot" else f for f in SEEN_BY])
def test_harness_sees_a_planted(fault: str, seed: int) -> None:
    failure = canaries.provoke(fault, seed)
    assert failure is not None
    assert SEEN_BY[fault] in str(failure)


def test_canary_fails_as_it_must_and_says_how_to_replay() -> None:
    result = CliRunner().invoke(command.main, ["canary", "--seed", "7", "--fault", "crash"])
    assert result.exit_code == 1
    text = result.output
    assert "seed 7" in text.splitlines()[0]
    assert "SIGSEGV" in text
    assert "python -m fuzz canary --seed 7" in text


def test_canary_that_sees_nothing_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "provoke", lambda fault, seed: None)
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


def output_of(name: str, *arguments: str) -> str:
    """What a run says that fails."""
    result = CliRunner().invoke(command.main, [name, "--seed", "5", *arguments])
    assert result.exit_code == 1, result.output
    assert result.output.startswith(f"{name}: seed 5")
    text: str = result.output
    return text


def replay_of(name: str, *arguments: str) -> str:
    """The command that it says last."""
    last = output_of(name, *arguments).splitlines()[-1]
    assert last.startswith(f"replay: python -m fuzz {name} --seed 5")
    return last.removeprefix(f"replay: python -m fuzz {name} --seed 5").strip()


def test_failure_prints_the_command_that_replays_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_at_3(session: Session) -> None:
        for case in session.cases(10):
            if case == 3:
                raise Failure("the fourth case")

    monkeypatch.setattr(targets, "find", lambda name: fails_at_3)
    assert replay_of("extents") == "--runs 1 --first 3"
    assert replay_of("extents", "--seconds", "60", "--first", "2") == "--runs 1 --first 3"


def fails_when(condition: Callable[..., bool]) -> Callable[..., Any]:
    def fails(*arguments: Any) -> bool:
        if condition(*arguments):
            raise Failure("planted")
        return True

    return fails


def test_a_failing_point_is_replayed_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_there(pool: object, n_readers: int, arms: list[Arm], session: Session) -> bool:
        return (arms[0].role, arms[0].signal, arms[0].at) == ("reader", signal.SIGSTOP, 6) and n_readers == 4

    monkeypatch.setattr(crashpoints, "_play", fails_when(lambda *match: is_there(*match) or match[2][0].at > 9))
    chosen = ("--readers", "4", "--role", "reader", "--signal", "stop", "--at", "6")
    assert replay_of("crashpoints", *chosen[:6]) == " ".join(chosen)
    assert replay_of("crashpoints", *chosen) == " ".join(chosen)


def test_a_failing_pair_is_replayed_alone_though_several_are_played_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashpoints, "_steps_of", lambda *_: dict.fromkeys(crashpoints.ROLES, 100))
    _, second = crashpoints._pair(Session(5).rng(1), dict.fromkeys((2, 4), dict.fromkeys(crashpoints.ROLES, 100)))
    monkeypatch.setattr(crashpoints, "_play", fails_when(lambda pool, n_readers, arms, session: arms == second))
    assert replay_of("crashpairs", "--runs", "8") == "--first 1 --runs 1"
    assert replay_of("crashpairs", "--first", "1", "--runs", "1") == "--first 1 --runs 1"


def test_a_failing_cache_point_is_replayed_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachepoints, "_hit_reader", fails_when(lambda worker, arm: True))
    chosen = ("--role", "reader", "--signal", "kill", "--at", "3")
    assert replay_of("cachepoints", *chosen) == " ".join(chosen)


def test_steps_that_build_on_one_another_are_replayed_from_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    monkeypatch.setattr(caches.Play, "step", lambda self, rng: fails_when(lambda: len(steps) == 2)() and steps.append(rng))
    assert replay_of("cache", "--first", "7", "--runs", "9") == "--first 7 --runs 3"


def test_a_soak_is_replayed_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.soak._Soak", fails_when(lambda *_: True))
    assert replay_of("soak", "--seconds", "9", "--readers", "2") == "--seconds 9.0 --readers 2 --output ."


def test_what_coverage_led_to_is_replayed_by_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.corruption._drawn", lambda session: None)
    monkeypatch.setattr(guided, "is_available", lambda: True)
    monkeypatch.setattr(guided, "run", fails_when(lambda *_: True))
    monkeypatch.setattr("fuzz.corruption.damage_once", fails_when(lambda *_: True))
    assert replay_of("bytes", "--input", "0a0b") == "--input 0a0b"


LIMITED: dict[str, dict[str, Any]] = {  # these go on until nothing is left to do, or the time is over
    "crashpoints": {"readers": (2,), "role": ("reader",), "signal": ("exception",)},
    "cachepoints": {"role": ("reader",), "signal": ("exception",)},
    "soak": {"readers": 1},
}


@pytest.mark.parametrize("name", LIMITED)
def test_a_target_plays_no_more_cases_than_it_is_told(name: str, seed: int) -> None:
    session = Session(seed, None, 3, LIMITED[name])
    targets.find(name)(session)
    assert session.counts["cases"] == 3


def test_the_canary_plants_no_more_than_it_is_told() -> None:
    assert "planted 1" in output_of("canary", "--runs", "1")
