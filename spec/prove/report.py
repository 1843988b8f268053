"""A proof's outcome for people (tables and sentences) and for programs (plain data for JSON)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spec.prove.logic import Theory
from spec.prove.proof import Condition, Proof


def show(console: Console, theory: Theory[Any], proof: Proof) -> None:
    """Prints one line per action (only the failing ones if any fail), the counterexamples, and the sum."""
    table = Table(title=f"{theory.name}: an inductive invariant of {proof.conjuncts} conjuncts", title_justify="left")
    table.add_column("premise")
    table.add_column("in words")
    table.add_column("conditions", justify="right")
    table.add_column("fail", justify="right")
    for name, words, conditions in _rows(theory, proof):
        failed = sum(each.verdict != "holds" for each in conditions)
        if proof.failed and not failed:
            continue
        table.add_row(name, escape(words), str(len(conditions)), f"[red]{failed}[/red]" if failed else "0")
    console.print(table)
    for each in proof.failed:
        _show_failure(console, each)
    for name in proof.impossible:
        console.print(f"[red]{name}[/red]: no state that satisfies the invariant lets this happen", soft_wrap=True)
    console.print(summary(proof), soft_wrap=True)


def summary(proof: Proof) -> str:
    """The outcome in one sentence."""
    verdict = "proved" if proof.proved else "NOT proved"
    slowest = max((each.seconds for each in proof.conditions), default=0.0)
    return (
        f"{proof.theory}: {verdict}: {proof.conjuncts} conjuncts, {proof.actions} actions, "
        f"{len(proof.conditions)} conditions, {len(proof.failed)} failed, "
        f"{len(proof.impossible)} impossible actions, {proof.seconds:.1f} s (slowest condition {slowest:.2f} s)"
    )


def as_data(proof: Proof) -> dict[str, Any]:
    """The outcome as plain data; conditions that hold are only counted."""
    return {
        "model": proof.theory,
        "proved": proof.proved,
        "conjuncts": proof.conjuncts,
        "actions": proof.actions,
        "conditions": len(proof.conditions),
        "failed": [asdict(each) for each in proof.failed],
        "impossible_actions": list(proof.impossible),
        "seconds": round(proof.seconds, 3),
    }


def _rows(theory: Theory[Any], proof: Proof) -> Iterator[tuple[str, str, list[Condition]]]:
    yield "init", "the initial state satisfies every conjunct", [c for c in proof.conditions if c.kind == "init"]
    for action in theory.actions.values():
        conditions = [c for c in proof.conditions if c.action == action.name]
        if conditions:
            yield action.name, action.words, conditions
    yield "invariant", "the invariant implies safety", [c for c in proof.conditions if c.kind == "safety"]


def _show_failure(console: Console, condition: Condition) -> None:
    premise = {"init": "the initial state", "safety": "the invariant"}.get(condition.kind, condition.action)
    verb = "does not keep" if condition.verdict == "fails" else "is not known to keep"
    console.print(f"\n[red]{premise} {verb} {condition.goal}[/red]: {escape(condition.words)}", soft_wrap=True)
    for line in condition.counterexample.lines() if condition.counterexample else ():
        console.print("    " + escape(line), soft_wrap=True, highlight=False)
