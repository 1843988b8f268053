"""What a check of a model must find."""

from __future__ import annotations

from spec import story
from spec.checker import check
from spec.model import Model, Variant


def holds(model: Model, *, drain: bool = True) -> tuple[int, int]:
    """Checks an instance that must be right, and returns its numbers of states and transitions."""
    result = check(model, drain=drain)
    assert result.violation is None, story.as_text(result.violation)
    assert result.complete
    assert not result.dead_actions, result.dead_actions
    assert not result.never_seen, result.never_seen
    assert result.undrainable == (0 if drain else None)
    return result.states, result.transitions


def breaks_as_said(model: Model, variant: Variant) -> None:
    """Checks the model of a variant: it breaks what the variant says, in as many steps, or nothing."""
    result = check(model)
    assert result.complete or result.violation is not None
    found = None if result.violation is None else (result.violation.name, result.violation.steps)
    assert found == (None if variant.breaks is None else (variant.breaks, variant.steps))
