"""The inductive proofs: they go through, their sizes are pinned, and every seeded fault breaks them where it should."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from spec.prove.command import command
from spec.prove.logic import Step, Theory, both
from spec.prove.message_slots import MESSAGE_SLOTS
from spec.prove.mutants import MUTANTS, Mutant
from spec.prove.necessity import redundant_conjuncts, unmissed_changes, unmissed_guards
from spec.prove.object_slots import OBJECT_SLOTS
from spec.prove.proof import first_failure, prove

THEORIES: list[Theory[Any]] = [MESSAGE_SLOTS, OBJECT_SLOTS]
FAULTS = [mutant for mutants in MUTANTS.values() for mutant in mutants.values()]


def named(value: Any) -> str:
    return f"{value.theory.name}-{value.name}" if isinstance(value, Mutant) else value.name


@pytest.mark.parametrize(
    ("theory", "conjuncts", "actions", "conditions"),
    [(MESSAGE_SLOTS, 39, 21, 39 * 22 + 5), (OBJECT_SLOTS, 38, 23, 38 * 24 + 6)],
    ids=["message_slots", "object_slots"],
)
def test_proved(theory: Theory[Any], conjuncts: int, actions: int, conditions: int) -> None:
    proof = prove(theory)
    assert [(each.action, each.goal, each.verdict) for each in proof.failed] == []
    assert proof.impossible == ()
    assert (proof.conjuncts, proof.actions, len(proof.conditions)) == (conjuncts, actions, conditions)


@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_fault_breaks_a_named_conjunct(fault: Mutant) -> None:
    proof = prove(fault.apply(), only=fault.touched)
    assert {(each.action, each.goal) for each in proof.failed} == fault.breaks
    for each in proof.failed:
        assert each.verdict == "fails"
        assert each.counterexample is not None
        assert each.counterexample.before


def test_fault_names_what_it_edits() -> None:
    for fault in FAULTS:
        assert fault.touched <= set(fault.apply().actions), fault.name
        assert fault.touched, fault.name


def test_counterexample_in_words() -> None:
    fault = MUTANTS["message_slots"]["early_done"]
    (failure,) = prove(fault.apply(), only=fault.touched).failed
    assert failure.counterexample is not None
    lines = failure.counterexample.lines()
    assert lines[0] == "where grant is grant 0, reader is reader 0"
    assert "before: reader 0 has views of grant 0" in lines
    assert "after:  the done word of rank 0 has the generation of grant 0" in lines
    assert "after:  a device of reader 0 reads grant 0" in lines


def test_impossible_action_is_reported() -> None:
    def never(step: Step, now: Any, *_: Any) -> Step:
        return step.with_guard("never", both(now.writer_alive(), ~now.writer_alive()))

    theory = MESSAGE_SLOTS.with_actions({"copy": MESSAGE_SLOTS.actions["copy"].edited(never)})
    proof = prove(theory, only=["copy"])
    assert proof.failed == ()
    assert proof.impossible == ("copy",)
    assert not proof.proved


@pytest.mark.parametrize("theory", THEORIES, ids=named)
def test_a_needed_conjunct_is_missed(theory: Theory[Any]) -> None:
    key = "reference_is_owed" if theory is MESSAGE_SLOTS else "held_is_not_reused"
    failure = first_failure(theory.without_conjunct(key))
    assert failure is not None


def test_forgetting_what_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        MESSAGE_SLOTS.actions["claim"].step(MESSAGE_SLOTS.state()).without_guard("no such guard")


# ---- the command ---------------------------------------------------------------------------------


def test_command_reports_success_as_data() -> None:
    result = CliRunner().invoke(command, ["--model", "object_slots", "--json"])
    data = json.loads(result.output)
    assert result.exit_code == 0
    assert data["proved"]
    assert data["models"][0]["conditions"] == 918


def test_command_shows_a_counterexample_and_fails() -> None:
    result = CliRunner().invoke(command, ["--model", "message_slots", "--mutant", "release_again"])
    assert result.exit_code == 1
    assert "release_again does not keep owed_has_a_reference" in result.output
    assert "no longer: the done word of rank 0" in result.output


def test_command_refuses_a_fault_of_another_model() -> None:
    result = CliRunner().invoke(command, ["--model", "object_slots", "--mutant", "join_any"])
    assert result.exit_code == 2
    assert "no fault named join_any" in result.output


# ---- what the proof could do without -------------------------------------------------------------

# Conjuncts that follow from the others; they stay because they make the others' meaning plain.
REDUNDANT = {
    "message_slots": {
        "current_is_of_its_slot", "used_has_a_stage", "stage_filling_or_pending", "one_open_claim",
        "complete_means_used",
    },
    "object_slots": {
        "newest_is_of_its_slot", "used_has_a_stage", "stage_filling_or_live", "stage_filling_or_draining",
        "complete_means_used", "seen_word_names_one",
    },
}  # fmt: skip

# Guards that safety does not need.  "... is alive": the dead do nothing, whoever forbids it.  The rest matter for
# progress or sense: nobody admits who has left; a message has no half-filled slot; a count is zero or it is not.
UNMISSED_GUARDS = {
    "message_slots": {
        ("enqueue", "no claim is open"), ("admit", "entry is claimed"), ("admit", "joiner is alive and stays"),
        ("dma_stop", "grant is in_dma"),
    },
    "object_slots": {
        ("scan_ends", "object is draining"), ("announce", "lease is new"), ("recheck_misses", "generation differs"),
        ("release_one", "lease is finished"), ("dma_stop", "lease is in_dma"),
    },
}  # fmt: skip

# Changes without which nothing bad happens, only less: a copy that is never complete is never published, a quarantine
# that never ends never frees.  ("reclaim", "done"): no guarantee needs a dead reader's done row to be zeroed.
UNMISSED_CHANGES = {
    "message_slots": {
        ("copy", "complete"), ("admit", "counted"), ("drop_reader", "counted"), ("reclaim", "taken"),
        ("reclaim", "done"), ("expire", "quarantined"), ("join", "alive"), ("leave", "left"), ("dma_stop", "in_dma"),
        ("writer_death", "writer_alive"),
    },
    "object_slots": {
        ("copy", "complete"), ("scan", "cleared"), ("reclaim", "taken"), ("expire", "quarantined"), ("join", "alive"),
        ("share", "viewed"), ("release_one", "finished"), ("flush", "seen"), ("dma_stop", "in_dma"),
        ("writer_death", "writer_alive"),
    },
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("theory", THEORIES, ids=named)
def test_every_other_conjunct_is_needed(theory: Theory[Any]) -> None:
    assert set(redundant_conjuncts(theory)) == REDUNDANT[theory.name]


@pytest.mark.deep
@pytest.mark.parametrize("theory", THEORIES, ids=named)
def test_every_other_guard_is_missed(theory: Theory[Any]) -> None:
    unmissed = {(action, guard) for action, guard in unmissed_guards(theory) if not guard.endswith("is alive")}
    assert unmissed == UNMISSED_GUARDS[theory.name]


@pytest.mark.deep
@pytest.mark.parametrize("theory", THEORIES, ids=named)
def test_every_other_change_is_missed(theory: Theory[Any]) -> None:
    assert set(unmissed_changes(theory)) == UNMISSED_CHANGES[theory.name]
