"""`spec/README.md` has the numbers that the other layers have: proof, memory orders, twins, lockstep, seeded faults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lockstep_faults
import pytest
import test_contracts
import test_lockstep
import test_lockstep_gates
import test_lockstep_objects
import test_lockstep_ring
import test_message_slots
import test_orders
import test_prove
import test_ring
import test_tla
import test_traces

import spec
from spec.orders_check import analysis, check_header, minimal
from spec.orders_programs import PROGRAMS
from spec.prove.mutants import MUTANTS

TEXT = Path(spec.__file__).with_name("README.md").read_text()
FLOWING = " ".join(TEXT.split())
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen")
WORDS += ("fourteen", "fifteen", "sixteen", "seventeen", "eighteen")


def section(title: str) -> str:
    """The text from a heading to the next one of its level."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def pairs(text: str) -> list[tuple[int, int]]:
    """The first two numbers of each row of the tables in a text: states and transitions."""
    rows = re.findall(r"^\|[^|]+\| ([\d,]+) \| ([\d,]+) \|", text, re.MULTILINE)
    return [(int(states.replace(",", "")), int(steps.replace(",", ""))) for states, steps in rows]


def parameters(test: Any) -> Iterator[tuple[Any, ...]]:
    """What a test is parametrised with."""
    for mark in test.pytestmark:
        if mark.name == "parametrize":
            yield from (getattr(each, "values", each) for each in mark.args[1])


def count(test: Any) -> int:
    return len(list(parameters(test)))


def test_the_steps_of_the_lockstep_are_those_that_its_tests_count() -> None:
    counted = {
        (states, steps)
        for test in (
            test_lockstep.test_every_step_from_every_state,
            test_lockstep_objects.test_every_step_from_every_state,
            test_lockstep_ring.test_every_call_from_every_state,
            test_lockstep_gates.test_every_step_with_gates,
            test_lockstep_gates.test_every_step_with_a_quarantine,
        )
        for _, states, steps in parameters(test)
    }
    told = pairs(section("Lockstep, traces, mutants").split("**Traces.**")[0])
    assert len(told) == 16
    assert set(told) <= counted


def test_the_instances_of_the_twins_are_counted_by_the_models_too() -> None:
    ours = {
        *test_message_slots.COUNTS.values(),
        (6_208, 25_980),
        *[small for small, _ in test_message_slots.HARMLESS.values()],
        *[(states, transitions) for _, states, transitions in test_ring.INSTANCES.values()],
    }
    told = pairs(section("TLA+ twin"))
    assert len(told) == len(test_tla.SIZES) + len(test_tla.RINGS) + 1
    assert set(told) <= ours


def test_the_size_of_each_proof_is_told() -> None:
    for theory, *sizes in parameters(test_prove.test_proved):
        name = theory.name.replace("_", " ")
        assert f"| {name} | {' | '.join(map(str, sizes))} | 0 |" in TEXT
    counts = [len(faults) for faults in MUTANTS.values()]
    assert f"There are {sum(counts)} seeded faults, {counts[0]} for each protocol" in FLOWING
    assert len(set(counts)) == 1
    needed = [sizes[0] - len(test_prove.REDUNDANT[theory.name]) for theory, *sizes in parameters(test_prove.test_proved)]
    assert f"{needed[0]} of 39 and {needed[1]} of 38 are indispensable" in FLOWING


def test_the_memory_orders_are_told_as_the_command_finds_them() -> None:
    text = " ".join(section("Memory orders").split())
    executions = [analysis(program).executions for program in PROGRAMS]
    assert f" {len(PROGRAMS)} programs" in text
    assert f"({min(executions)} to {max(executions)} of them)" in text
    assert f"{sum(analysis(program).assignments for program in PROGRAMS):,} in all" in text
    sets = {program.name: len(minimal(program)) for program in PROGRAMS}
    assert {name for name, count in sets.items() if count != 1} == {
        name for name in sets if re.match("parked|shutdown|closed", name) and name != "parked twice"
    }
    assert {count for count in sets.values() if count != 1} == {4}
    strong = [site for site in check_header(test_orders.TEXT).sites if site.verdict == "justified"]
    assert f"{WORDS[len(strong)].capitalize()} access is stronger than needed" in text
    assert f"{WORDS[count(test_orders.test_litmus)].capitalize()} litmus tests" in text


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (len(lockstep_faults.FAULTS), "{} seeded faults of the slot code"),
        (len(test_lockstep_objects.FAULTS), "{} of the objects'"),
        (len(test_lockstep_ring.FAULTS), "objects', {} of the ring's"),
        (count(test_lockstep_gates.test_a_fault_in_the_gates_is_noticed), "ring's, {} of the gates'"),
        (count(test_lockstep_gates.test_a_fault_in_the_quarantine_is_noticed), "and {} of the quarantine's are noticed"),
        (len(test_contracts.FAULTS), "Either finds each of {} seeded faults"),
    ],
    ids=["slots", "objects", "ring", "gates", "quarantine", "arithmetic"],
)
def test_the_seeded_faults_are_counted(number: int, words: str) -> None:
    assert words.format(WORDS[number]) in FLOWING.replace("Sixteen", "sixteen")


def test_the_rates_that_corrupted_traces_must_be_refused_at_are_told() -> None:
    rates = [round(100 * each[1]) for each in parameters(test_traces.test_corrupted_logs_are_refused) if len(each) == 2]
    assert f"the tests demand {rates[0]}, {rates[1]} and {rates[2]}" in FLOWING
