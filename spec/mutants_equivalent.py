"""Mutants that nothing can notice, and why: they change nothing that the protocol promises."""

from __future__ import annotations

from spec.mutants_python import Mutant

# (the end of a path, a part of what was changed) -> the reason
EQUIVALENT: dict[tuple[str, str], str] = {
    ("slots.py", "__init__: 0 -> 1 in self.offsets"): "a slot's offset is set by its claim, before anybody asks for it",
    ("slots.py", "__init__: 0 -> 1 in self.lengths"): "a slot's length is set by its claim, before anybody asks for it",
    ("slots.py", "adopt: 0 -> 1 in self.required"): "nobody asks what an object's slot requires: its hold words decide",
}


def reason(mutant: Mutant) -> str:
    """Why a mutant is equivalent; empty where it is not known to be."""
    for (path, part), why in EQUIVALENT.items():
        if mutant.path.endswith(path) and part in mutant.what:
            return why
    return ""
