"""A counterexample told as a story: step, actor, action, and what it changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spec.checker import Moment, Violation


def changes(before: Any, after: Any, name: str = "") -> Iterator[str]:
    """The smallest named parts in which two states differ, as "slots[0].owner: free → claimed"."""
    if before == after:
        return
    if hasattr(after, "_fields") and type(before) is type(after):
        for field, old, new in zip(after._fields, before, after, strict=True):
            yield from changes(old, new, f"{name}.{field}" if name else field)
    elif _is_row(before) and _is_row(after) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changes(old, new, f"{name}[{index}]")
    else:
        yield f"{name}: {show(before)} → {show(after)}"


def _is_row(value: Any) -> bool:
    return isinstance(value, tuple) and not hasattr(value, "_fields")


def show(value: Any) -> str:
    """A value of a state, short enough to read."""
    if hasattr(value, "_fields"):
        return "(" + ", ".join(f"{field}={show(each)}" for field, each in zip(value._fields, value, strict=True)) + ")"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(show, value))) + "}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def lines(run: tuple[Moment, ...]) -> list[tuple[int, str, str, list[str]]]:
    """One (number, actor, step, changes) per step of the run."""
    told = []
    for number, (before, moment) in enumerate(pairwise(run), start=1):
        if moment.step is not None:
            told.append((number, moment.step.actor, str(moment.step), list(changes(before.state, moment.state))))
    return told


def as_text(violation: Violation) -> str:
    """The story in plain text, for logs and test failures."""
    told = [f"{violation.name} fails after {violation.steps} steps: {violation.complaint}"]
    for number, actor, step, changed in lines(violation.run):
        told.append(f"{number:3} {actor:12} {step:24} {'; '.join(changed)}")
    return "\n".join(told)


def tell(violation: Violation, console: Console) -> None:
    """Print the story."""
    title = f"{violation.name} fails after {violation.steps} steps: {violation.complaint}"
    table = Table("step", "actor", "action", "what changed", title=escape(title), title_justify="left")
    for number, actor, step, changed in lines(violation.run):
        table.add_row(str(number), escape(actor), escape(step), escape("\n".join(changed)))
    console.print(table)
