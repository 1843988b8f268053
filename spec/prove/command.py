"""The command `prove`."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console

from spec.prove.logic import Theory
from spec.prove.message_slots import MESSAGE_SLOTS
from spec.prove.mutants import MUTANTS
from spec.prove.necessity import redundant_conjuncts
from spec.prove.object_slots import OBJECT_SLOTS
from spec.prove.proof import Proof, prove
from spec.prove.report import as_data, show

THEORIES: dict[str, Theory[Any]] = {theory.name: theory for theory in (MESSAGE_SLOTS, OBJECT_SLOTS)}
MUTANT_NAMES = sorted({name for mutants in MUTANTS.values() for name in mutants})


@click.command("prove")
@click.option("--model", "models", multiple=True, type=click.Choice(list(THEORIES)), help="Which; all by default.")
@click.option("--mutant", type=click.Choice(MUTANT_NAMES), help="Seed this design fault: the proof must fail.")
@click.option("--needed", is_flag=True, help="Also list the conjuncts that the proof could do without (a minute).")
@click.option("--json", "as_json", is_flag=True, help="Print data instead of tables.")
def command(models: tuple[str, ...], mutant: str | None, needed: bool, as_json: bool) -> None:
    """Prove the slot protocols for any number of slots, readers, restarts and messages.

    Exit code 1 if a condition fails or an action is impossible.
    """
    console = Console(quiet=as_json)
    proofs: list[Proof] = []
    data = []
    for name in models or THEORIES:
        if mutant is not None and mutant not in MUTANTS[name]:
            continue
        theory = THEORIES[name]
        if mutant is not None:
            fault = MUTANTS[name][mutant]
            console.print(f"fault {fault.name}: {fault.words}", soft_wrap=True)
            theory = fault.apply()
        proofs.append(prove(theory))
        show(console, theory, proofs[-1])
        data.append(as_data(proofs[-1]))
        if needed:
            data[-1]["redundant_conjuncts"] = list(redundant_conjuncts(theory))
            console.print("could be left out, one at a time: " + ", ".join(data[-1]["redundant_conjuncts"]))
    if not proofs:
        raise click.UsageError(f"{', '.join(models)} has no fault named {mutant}")
    proved = all(proof.proved for proof in proofs)
    if as_json:
        click.echo(json.dumps({"proved": proved, "models": data}, indent=2))
    sys.exit(0 if proved else 1)
