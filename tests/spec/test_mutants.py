"""The machine that makes faults makes each it should, and its sample is killed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from click.testing import CliRunner

from spec import mutants as command_module
from spec.__main__ import main
from spec.mutants import DETECTORS, GROUPS, mutants
from spec.mutants_c import mutants_of_code, mutants_of_header
from spec.mutants_equivalent import EQUIVALENT
from spec.mutants_python import Mutant, mutants_of
from spec.mutants_run import ROOT, TimedTest, Tree, outcomes

SOURCE = """
def claim(free, pending):
    if not free or len(pending) >= 2:
        return None
    free.pop()
    self.slot = free[0] + 1
    return True
"""


def test_what_is_changed_in_python() -> None:
    found = [each.what.removeprefix("claim: ") for each in mutants_of("a.py", SOURCE)]
    assert found == [
        "negated: if not free or len(pending) >= 2",
        "without: free.pop()",
        "without: self.slot = free[0] + 1",
        "and <-> or in not free or len(pending) >= 2",
        "free[0] + 1 -> Sub",
        "True -> False in return True",
        "without the not: not free",
        "len(pending) >= 2 -> Gt",
        "1 -> 2 in self.slot = free[0] + 1",
        "2 -> 3 in if not free or len(pending) >= 2:",
        "0 -> 1 in self.slot = free[0] + 1",
    ]
    for each in mutants_of("a.py", SOURCE):
        assert ast.unparse(ast.parse(SOURCE)) != each.text


def test_each_order_is_weakened_and_each_store_and_fence_dropped() -> None:
    found = [each.what for each in mutants_of_header("h", (ROOT / "csrc/arena_atomics.h").read_text())]
    for expected in (
        "arena_done_store_release: release -> relaxed", "arena_done_store_release: dropped",
        "arena_gen_load_seq_cst: seq_cst -> acquire", "arena_stamp_add_acq_rel: acq_rel -> release",
        "arena_fence_closed_to_parked_seq_cst: dropped", "arena_member_cas_acq_rel: acq_rel -> relaxed",
    ):  # fmt: skip
        assert expected in found
    assert len(found) == len(set(found))


def test_each_guard_of_the_c_code_is_negated() -> None:
    text = "void f(int a) {\n    if (a && g(a)) return;\n    arena_done_store_release(w, 1); /* x */\n}\n"
    negated, dropped = mutants_of_code("f.c", text)
    assert "if (!(a && g(a))) return;" in negated.text
    assert "arena_done_store_release" not in dropped.text


def test_every_reason_is_of_a_mutant_that_exists() -> None:
    every = [each for group in GROUPS for each in mutants(group)]
    for path, part in EQUIVALENT:
        assert any(each.path.endswith(path) and part in each.what for each in every), (path, part)


@pytest.mark.parametrize("group", GROUPS)
def test_there_are_mutants(group: str) -> None:
    names = [each.name for each in mutants(group)]
    assert len(names) > 40


def test_no_fault_is_made_twice_and_none_of_what_is_only_said() -> None:
    source = """
class Some:
    @property
    def it(self) -> int:
        \"\"\"What it is.\"\"\"
        log.warning("%d", 3)
        trace.observe(self, 1)
        if self.other is None:
            raise ValueError(f"{self.number + 1} is none")
        number: dict[int, 0] = list(zip(a, b, strict=True))
        return number

    @it.setter
    def it(self, value: int) -> None:
        self.other = value
"""
    found = [(each.what, each.function) for each in mutants_of("a.py", source)]
    assert found == [
        ("it: self.other is None -> IsNot", "a.py:Some.it"),
        ("it: without: self.other = value", "a.py:Some.it="),
    ]


# ---- the detectors as they are run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with Tree(tmp_path_factory.mktemp("mutants") / "tree") as made:
        yield made


@pytest.mark.deep
def test_without_a_fault_the_detectors_pass(tree: Tree) -> None:
    nothing = Mutant("arena/protocol/extents.py", 1, "nothing", (ROOT / "arena/protocol/extents.py").read_text)
    tests = [TimedTest("tests/test_extents.py::test_no_bytes_at_all", 1.0, frozenset())]
    searches = dict.fromkeys(DETECTORS.values(), "passed")
    said = tree.runs(nothing, [*searches], tests, first_only=False)
    assert said == {**searches, "test_extents": "passed"}, tree.output()


def test_a_fault_is_killed_and_then_forgotten(tree: Tree) -> None:
    path, test = "arena/protocol/extents.py", TimedTest("tests/test_extents.py::test_no_bytes_at_all", 1.0, frozenset())
    text = (ROOT / path).read_text()
    for fault, verdict in (("self.used_bytes = 0", "killed"), ("nothing at all", "passed")):
        mutant = Mutant(path, 1, fault, partial(str, text.replace(fault, "raise OSError")))
        assert tree.runs(mutant, (), [test], first_only=True) == {"test_extents": verdict}
    assert (tree.folder / path).read_text() == text


def test_a_fault_in_c_is_compiled_and_one_that_does_not_compile_is_killed(tree: Tree) -> None:
    path, test = "csrc/arena_ring.c", TimedTest("tests/spec/test_ring_ends.py::test_nobody_to_watch", 1.0, frozenset())
    text = (ROOT / path).read_text()
    library = tree.folder / "arena/_native.abi3.so"
    for fault, said in (
        ("#define LENGTH_BYTES 8", {"test_ring_ends": "passed"}),
        ("#error no", {"compiler": "killed"}),
    ):
        mutant = Mutant(path, 1, fault, partial(str, f"{fault}\n{text}"))
        assert tree.runs(mutant, (), [test], first_only=True) == said
        assert library.exists()


def test_a_test_that_hangs_or_ends_its_process_is_a_kill() -> None:
    report = "started a/test_x.py::one\nfinished a/test_x.py::one\nstarted a/test_y.py::two\n"
    assert outcomes(report, 1) == {"test_x": "passed", "test_y": "hung"}
    assert outcomes(report, None) == {"test_x": "passed", "test_y": "hung"}
    assert outcomes(report, -11) == {"test_x": "passed", "test_y": "killed"}
    assert outcomes("", 4) == {"pytest": "killed"}
    failed = report.replace("finished", "failed")
    assert outcomes(failed, 1)["test_x"] == "killed"


def test_what_a_test_runs_is_seen_in_this_process_and_in_a_forked_one(tree: Tree) -> None:
    sources = ["arena/protocol/extents.py"]
    code = tree.call("coverage", modules=["tests/test_extents_restored.py"], sources=sources, report="c.json")
    found = json.loads((tree.folder / "c.json").read_text())
    full = found["tests/test_extents_restored.py::test_a_full_area_has_no_free_range"]
    assert code == 0
    assert not full["failed"]
    assert "arena/protocol/extents.py:Extents.restore" in full["functions"]
    assert "arena/protocol/extents.py:Extents.give" not in full["functions"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spec", "mutants", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=7000)


@pytest.mark.parametrize(("answer", "code"), [("killed", 0), ("hung", 0), ("passed", 1)])
def test_a_mutant_that_is_alive_fails_the_command(answer: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = Mutant("arena/protocol/extents.py", 1, "nothing", str)
    row = command_module.Row(mutant, {"test_extents": answer}, 0.0)
    monkeypatch.setattr(command_module, "run", lambda *arguments, **options: [row])
    ran = CliRunner().invoke(main, ["mutants", "--group", "header", "--sample", "1"])
    assert ran.exit_code == code, ran.output
    assert (f"alive: {mutant.name}" in ran.output) == bool(code)


def test_a_sample_is_killed() -> None:
    done = run("--group", "header", "--group", "model", "--sample", "6", "--seed", "3", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 killed" in done.stdout


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_all_are_killed_or_equivalent() -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
