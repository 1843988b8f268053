"""Is each part needed?  Forgets one conjunct, guard or change at a time and looks whether the proof still goes through.

A part that can be forgotten is not wrong: a conjunct may be there for the reader, a guard may matter for
progress or for what z3 is not asked.  But a guard that nobody misses deserves a reason, so tests pin the lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spec.prove.logic import Theory
from spec.prove.proof import first_failure, prove


def redundant_conjuncts(theory: Theory[Any]) -> Iterator[str]:
    """Conjuncts without which the proof still goes through."""
    for name in theory.conjuncts:
        if first_failure(theory.without_conjunct(name)) is None:
            yield name


def unmissed_guards(theory: Theory[Any]) -> Iterator[tuple[str, str]]:
    """(action, guard): the proof goes through without the guard."""
    for action in theory.actions.values():
        for guard in action.step(theory.state()).guards:
            edited = action.edited(lambda step, *_, guard=guard: step.without_guard(guard))
            if _still_proved(theory, action.name, edited):
                yield action.name, guard


def unmissed_changes(theory: Theory[Any]) -> Iterator[tuple[str, str]]:
    """(action, relation): the proof goes through although the action leaves the relation as it was."""
    for action in theory.actions.values():
        for change in action.step(theory.state()).changes:
            edited = action.edited(lambda step, *_, change=change: step.without_change(change))
            if _still_proved(theory, action.name, edited):
                yield action.name, change


def _still_proved(theory: Theory[Any], name: str, edited: Any) -> bool:
    return not prove(theory.with_actions({name: edited}), only=[name], explain=False).failed
