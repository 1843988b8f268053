"""The machine that makes faults makes each it should, and its sample is killed."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from spec.mutants import GROUPS, mutants
from spec.mutants_c import mutants_of_code, mutants_of_header
from spec.mutants_equivalent import EQUIVALENT
from spec.mutants_python import mutants_of
from spec.mutants_run import ROOT

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


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spec", "mutants", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=7000)


def test_a_sample_is_killed() -> None:
    done = run("--group", "header", "--sample", "2", "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 killed" in done.stdout


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("group", GROUPS)
def test_all_are_killed_or_equivalent(group: str) -> None:
    done = run("--group", group, "--sample", "0", "--deep")
    assert done.returncode == 0, done.stdout + done.stderr
