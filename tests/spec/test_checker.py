"""The checker is checked with a model so small that every number can be counted by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from spec import export, parallel, story
from spec.__main__ import COMMANDS, main
from spec.checker import Result, check, reachable
from spec.model import Action, Drain, Invariant, Model, action, invariant, put, sometimes
from spec.symmetry import canonicaliser


@dataclass(frozen=True)
class Config:
    """Two cups; each takes so many spoons of sugar."""

    spoons: int = 2


class Cups(NamedTuple):
    sugar: tuple[int, int]
    spilt: bool = False


@action("cook", over=["cup"], edge="[cup.sugar]", progress=False)
def add(config: Config, state: Cups, cup: int) -> Cups | None:
    """Put one spoon of sugar into a cup."""
    if state.spilt or state.sugar[cup] == config.spoons:
        return None
    return state._replace(sugar=put(state.sugar, cup, state.sugar[cup] + 1))


@action("guest {cup}", over=["cup"])
def drink(config: Config, state: Cups, cup: int) -> Cups | None:
    """Empty a cup."""
    if state.spilt or not state.sugar[cup]:
        return None
    return state._replace(sugar=put(state.sugar, cup, 0))


@action("cat", environment=True, progress=False)
def spill(config: Config, state: Cups) -> Cups | None:
    """The cat jumps onto the table when both cups are full."""
    return state._replace(spilt=True) if state.sugar == (config.spoons, config.spoons) and not state.spilt else None


@action("nobody")
def never(config: Config, state: Cups) -> Cups | None:
    """A guard that never holds."""
    return state if min(state.sugar) > config.spoons else None


@action("nobody", defensive=True)
def mop(config: Config, state: Cups) -> Cups | None:
    """A guard that never holds, on purpose."""
    return state if min(state.sugar) > config.spoons else None


@invariant("LOW")
def low(config: Config, state: Cups) -> str | None:
    """Never more than three spoons in all."""
    return f"{sum(state.sugar)} spoons" if sum(state.sugar) > 3 else None


@invariant("MOVES")
def moves(config: Config, state: Cups) -> str | None:
    """With sugar in a cup somebody can move."""
    return "nobody can drink" if any(state.sugar) else None


@sometimes("both cups are full")
def both(config: Config, state: Cups) -> bool:
    return state.sugar == (config.spoons, config.spoons)


@sometimes("a cup overflows")
def overflow(config: Config, state: Cups) -> bool:
    return max(state.sugar) > config.spoons


def swap(state: Cups) -> Cups:
    return min(state, state._replace(sugar=state.sugar[::-1]))


EMPTY = Drain("D", demanded=lambda config, state: True, good=lambda config, state: not any(state.sugar))


def cups(*actions: Action, **changes: Any) -> Model:
    base = Model("cups", Config(), (Cups((0, 0)),), actions, {"cup": range(2)}, canonical=swap)
    return replace(base, **changes)


def names(result: Result) -> list[str]:
    assert result.violation is not None
    return [str(moment.step) for moment in result.violation.run[1:]]


def test_counts_are_exact() -> None:
    result = check(cups(add, drink))
    # 3 x 3 states; per cup 2 of 3 values let `add` and 2 of 3 let `drink` happen, so 2 cups x 4 x 3 transitions
    assert (result.states, result.transitions, result.depth) == (9, 24, 4)
    assert result.fired == {"add": 12, "drink": 12}
    assert result.complete
    assert result.ok


def test_symmetry_merges_what_differs_in_numbering_only() -> None:
    result = check(cups(add, drink), symmetry=True)
    assert result.states == 6  # unordered pairs of {0, 1, 2}
    assert {swap(state) for state in reachable(cups(add, drink))} == set(reachable(cups(add, drink), symmetry=True))


def test_symmetry_needs_a_declaration() -> None:
    with pytest.raises(ValueError, match="declares no symmetry"):
        check(cups(add, canonical=None), symmetry=True)


@pytest.mark.parametrize("symmetry", [False, True])
def test_a_planted_violation_is_found_with_the_fewest_steps(symmetry: bool) -> None:
    result = check(cups(add, drink, invariants=(low,)), symmetry=symmetry)
    assert not result.ok
    assert not result.complete
    assert result.violation is not None
    assert (result.violation.name, result.violation.complaint, result.violation.steps) == ("LOW", "4 spoons", 4)
    assert all(name.startswith("add") for name in names(result))


def test_a_counterexample_under_symmetry_is_a_genuine_run() -> None:
    model = cups(add, drink, invariants=(low,))
    violation = check(model, symmetry=True).violation
    assert violation is not None
    state = violation.run[0].state
    assert state in model.initial
    for moment in violation.run[1:]:
        assert moment.step is not None
        state = moment.step.action(model.config, state, *moment.step.args)
        assert state == moment.state


def test_a_violation_in_the_initial_state_is_found() -> None:
    result = check(cups(add, initial=(Cups((2, 2)),), invariants=(low,)))
    assert result.violation is not None
    assert result.violation.steps == 0


def test_a_dead_action_is_reported_and_a_defensive_one_is_not() -> None:
    result = check(cups(add, drink, never, mop))
    assert result.violation is None
    assert result.dead_actions == ("never",)
    assert not result.ok


def test_a_situation_that_never_comes_is_reported() -> None:
    result = check(cups(add, drink, sometimes=(both, overflow)))
    assert result.never_seen == ("a cup overflows",)
    assert not result.ok


@pytest.mark.parametrize("symmetry", [False, True])
def test_an_undrainable_state_is_reported(symmetry: bool) -> None:
    assert check(cups(add, drink, drain=EMPTY), symmetry=symmetry).undrainable == 0
    result = check(cups(add, drink, spill, drain=EMPTY), symmetry=symmetry)
    assert result.undrainable == 1
    assert result.violation is not None
    assert (result.violation.name, result.violation.steps) == ("D", 5)
    assert names(result)[-1] == "spill()"


def test_drain_counts_on_progress_steps_alone() -> None:
    unwilling = replace(drink, progress=False)
    assert check(cups(add, unwilling, drain=EMPTY)).undrainable == 8


def test_a_deadlock_is_a_state_without_a_progress_step() -> None:
    assert check(cups(add, drink, deadlocks=(moves,))).violation is None
    result = check(cups(add, drink, spill, deadlocks=(moves,)))
    assert result.violation is not None
    assert (result.violation.name, result.violation.steps) == ("MOVES", 5)


def test_a_limit_stops_the_search() -> None:
    result = check(cups(add, drink), limit=3)
    assert not result.complete
    assert not result.ok
    assert result.states < 9


def test_the_order_of_discovery_is_always_the_same() -> None:
    assert reachable(cups(add, drink)) == reachable(cups(add, drink))
    assert [str(step) for step in cups(add, drink).steps()] == [
        "add(cup=0)",
        "add(cup=1)",
        "drink(cup=0)",
        "drink(cup=1)",
    ]


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec.checker.REPORT_EVERY", 1)
    seen: list[tuple[int, int]] = []
    check(cups(add, drink), progress=lambda states, waiting: seen.append((states, waiting)))
    assert seen[-1] == (9, 0)


def test_a_story_tells_who_did_what_and_what_changed() -> None:
    result = check(cups(add, drink, spill, drain=EMPTY))
    assert result.violation is not None
    told = story.as_text(result.violation)
    assert told.startswith("D fails after 5 steps")
    assert "cook" in told
    assert "sugar[0]: 0 → 1" in told
    assert told.splitlines()[-1].split()[1:] == ["cat", "spill()", "spilt:", "no", "→", "yes"]


def test_an_itf_trace_has_every_state() -> None:
    result = check(cups(add, drink, invariants=(low,)))
    assert result.violation is not None
    trace = json.loads(json.dumps(export.itf(result.violation.run, "cups")))
    assert trace["vars"] == ["sugar", "spilt"]
    assert [state["#meta"]["index"] for state in trace["states"]] == [0, 1, 2, 3, 4]
    assert trace["states"][0]["sugar"] == [{"#bigint": "0"}, {"#bigint": "0"}]
    assert trace["states"][0]["spilt"] is False


def test_the_graph_has_every_state_and_every_transition() -> None:
    picture = export.graph(cups(add, drink))
    assert sum("label" in line and "->" not in line for line in picture.body) == 9
    assert sum("->" in line for line in picture.body) == 24
    with pytest.raises(ValueError, match="too many"):
        export.graph(cups(add, drink, config=Config(spoons=50)))


def test_what_an_action_says_about_itself() -> None:
    assert (add.function, spill.function) == ("add", None)
    assert action("x", part_of="add")(lambda config, state: state).function == "add"
    assert add.edges == ("[cup.sugar]",)
    assert add.meaning == "Put one spoon of sugar into a cup."
    assert low.meaning == "Never more than three spoons in all."
    assert isinstance(low, Invariant)
    steps = cups(add, drink).steps()
    assert (steps[0].actor, steps[3].actor) == ("cook", "guest 1")


def test_canonicaliser_tries_only_readers_that_look_alike() -> None:
    def renumber(state: tuple[Any, ...], readers: tuple[int, ...], slots: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(tuple(state[r][s] for s in slots) for r in readers)

    canonical = canonicaliser(
        lambda state: [sorted(row) for row in state],
        lambda state, readers: [[state[r][s] for r in readers] for s in range(len(state[0]))],
        renumber,
    )
    first, *others = (((1, 2), (2, 1)), ((2, 1), (1, 2)))
    assert {canonical(first)} == {canonical(state) for state in others}
    assert canonical(((1, 2), (1, 2))) == ((1, 2), (1, 2))
    assert canonical(((3, 0), (0, 0))) == canonical(((0, 0), (0, 3))) == ((0, 0), (0, 3))


def test_the_command_checks_a_model_and_fails_on_a_violation() -> None:
    run = CliRunner().invoke(main, ["check", "message_slots", "--slots", "1", "--readers", "1", "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert (told["states"], told["transitions"], told["violation"]) == (54, 107, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["no_such_model"],
        ["--variant", "none such"],
        ["--set", "slots"],
        ["--set", "slots=x"],
        ["--set", "nothing=1"],
        ["--slots", "0"],
        ["--readers", "-1"],
        ["--set", "queue=0"],
        ["--limit", "0"],
        ["--slots", "1", "--readers", "1", "--dot", "a.nonsense"],
        ["ring", "--dot", "too_many_states.dot"],
    ],
)
def test_the_command_refuses_what_it_does_not_know(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(main, ["check", *arguments])
    assert run.exit_code == 2, run.output
    assert "Error" in run.output
    assert list(tmp_path.iterdir()) == []


def test_a_search_that_a_limit_ends_says_neither_yes_nor_no() -> None:
    run = CliRunner().invoke(main, ["check", "--limit", "10"])
    assert run.exit_code == 3
    assert "undecided" in run.output
    assert "FAILS" not in run.output


def test_what_a_stopped_search_has_not_seen_is_not_called_dead() -> None:
    told = json.loads(CliRunner().invoke(main, ["check", "--limit", "10", "--json"]).stdout)
    assert (told["dead_actions"], told["never_seen"]) == (None, None)
    told = json.loads(CliRunner().invoke(main, ["check", "--slots", "1", "--readers", "1", "--json"]).stdout)
    assert (told["dead_actions"], told["never_seen"]) == ([], [])


def test_the_variants_as_data() -> None:
    run = CliRunner().invoke(main, ["check", "--variants", "--json"])
    told = {each["variant"]: (each["breaks"], each["steps"]) for each in json.loads(run.stdout)}
    assert (told["abort-forgets"], told["leave"]) == (("S4", 4), (None, None))


def test_a_trace_that_is_not_written_is_spoken_of(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    run = CliRunner().invoke(main, ["check", "--slots", "1", "--readers", "1", "--itf", str(trace)])
    assert run.exit_code == 0
    assert "no counterexample" in run.stderr
    run = CliRunner().invoke(main, ["check", "--variant", "abort-forgets", "--itf", str(trace)])
    assert run.exit_code == 1
    assert len(json.loads(trace.read_text())["states"]) == 5


GRAPH = ["check", "--slots", "1", "--readers", "1", "--dot"]


def test_the_graph_is_written_as_text(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, [*GRAPH, str(tmp_path / "a.dot")])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "a.dot").read_text().count("->") == 107


def test_the_graph_is_drawn_by_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in where there is none: it draws an arrow for each that it is given."""
    if shutil.which("dot") is None:
        stand_in = tmp_path / "dot"
        stand_in.write_text("""#!/bin/sh\necho "<svg $*>"; grep -e '->' | sed 's/.*/<path class="edge"/'; echo '</svg>'\n""")
        stand_in.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    run = CliRunner().invoke(main, [*GRAPH, str(tmp_path / "a.svg")])
    assert run.exit_code == 0, run.output
    drawn = (tmp_path / "a.svg").read_text()
    assert "<svg" in drawn
    assert drawn.count('class="edge"') == 107


def test_without_graphviz_a_drawing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = CliRunner().invoke(main, [*GRAPH, str(tmp_path / "a.svg")])
    assert run.exit_code == 2
    assert "a .dot file needs none" in run.output


def test_help_lists_the_commands_without_importing_them() -> None:
    run = CliRunner().invoke(main, ["--help"])
    assert run.exit_code == 0
    assert "  check " in run.output
    assert COMMANDS["check"][1] in run.output


# forking while pytest's own threads run is what newer Pythons warn about; the workers touch nothing of theirs
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

ALL = (add, drink, spill)
SHARED = {
    "plain": cups(add, drink, sometimes=(both, overflow)),
    "violation": cups(*ALL, invariants=(low,)),
    "drain": cups(*ALL, drain=EMPTY),
    "deadlock": cups(*ALL, deadlocks=(moves,)),
    "dead action": cups(*ALL, never, drain=EMPTY),
    "larger": cups(add, drink, config=Config(spoons=12), drain=EMPTY),
}


@forks
@pytest.mark.parametrize("symmetry", [False, True])
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("name", SHARED)
def test_several_processes_find_the_same(name: str, processes: int, symmetry: bool) -> None:
    model = SHARED[name]
    one, many = check(model, symmetry=symmetry), parallel.check(model, processes=processes, symmetry=symmetry)
    assert (many.violation is None) == (one.violation is None)
    if one.violation is not None and many.violation is not None:
        assert (many.violation.name, many.violation.steps) == (one.violation.name, one.violation.steps)
        assert many.violation.run[0].state in model.initial
    if one.complete:
        assert (many.states, many.transitions, many.depth) == (one.states, one.transitions, one.depth)
        assert (many.fired, many.never_seen, many.undrainable) == (one.fired, one.never_seen, one.undrainable)
        assert many.dead_actions == one.dead_actions
    assert many.complete == one.complete


@forks
def test_several_processes_on_message_slots() -> None:
    run = CliRunner().invoke(main, ["check", "--slots", "1", "--set", "tensors=1", "--processes", "2", "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert (told["states"], told["transitions"], told["undrainable"], told["ok"]) == (580, 1681, 0, True)


@forks
def test_a_worker_that_fails_ends_the_search(capfd: pytest.CaptureFixture[str]) -> None:
    @action("nobody")
    def fail(config: Config, state: Cups) -> Cups | None:
        raise RuntimeError("spoon")

    with pytest.raises((EOFError, ConnectionError)):
        parallel.check(cups(add, fail), processes=2)
    assert "spoon" in capfd.readouterr().err
