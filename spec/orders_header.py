"""Reads the memory orders out of csrc/arena_atomics.h, as text."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from spec.orders_machine import ORDERS, RELAXED

HEADER = Path(__file__).parent.parent / "csrc" / "arena_atomics.h"

# A comment, then a function; the comment of a group of functions stands before the first one.
_FUNCTION = re.compile(
    r"(?P<comments>(?:/\*(?:(?!\*/).)*\*/\s*)*)"
    r"static\s+inline\s+\w+\s+arena_(?P<stem>\w+?)_(?P<suffix>" + "|".join(sorted(ORDERS, key=len, reverse=True)) + r")"
    r"\s*\([^)]*\)\s*\{(?P<body>[^}]*)\}",
    re.DOTALL,
)
_LABEL = re.compile(r"\[([a-z]+(?:\.[a-z]+)?)\]")
_TOKEN = re.compile(r"memory_order_(\w+)")
_JUSTIFICATION = re.compile(r"Stronger than needed:\s*(.*?)\.(?:\s|$)", re.DOTALL)


@dataclass(frozen=True)
class Access:
    """One function of the header: its order, the edges it is an end of, and the reason if it is stronger than needed."""

    function: str
    stem: str
    order: str
    labels: tuple[str, ...]
    justification: str | None
    complaints: tuple[str, ...]


def accesses(text: str) -> dict[str, Access]:
    """Every function of the header by its site name: the stem, with its edge where the stem is not unique."""
    found = [_access(match) for match in _FUNCTION.finditer(text)]
    stems = Counter(each.stem for each in found)
    return {each.stem if stems[each.stem] == 1 else f"{each.stem}[{_first(each.labels)}]": each for each in found}


def declared(text: str) -> int:
    """How many functions the header defines, understood or not."""
    return len(re.findall(r"^static\s+inline\b", text, re.MULTILINE))


def _first(labels: tuple[str, ...]) -> str:
    return labels[0] if labels else "no edge"


def _access(match: re.Match[str]) -> Access:
    comment = re.sub(r"\s*\*?/?\n\s*\*\s?|/\*|\*/", " ", match["comments"])
    tokens = _TOKEN.findall(match["body"])
    function = f"arena_{match['stem']}_{match['suffix']}"
    complaints = []
    if not tokens or tokens[0] != match["suffix"]:
        complaints.append(f"{function} says {match['suffix']} in its name and {tokens[:1]} in its body")
    if any(token != RELAXED for token in tokens[1:]):
        complaints.append(f"{function} has a failure order other than relaxed, for which no program asks")
    reason = _JUSTIFICATION.search(comment)
    return Access(
        function=function,
        stem=match["stem"],
        order=tokens[0] if tokens else match["suffix"],
        labels=tuple(dict.fromkeys(_LABEL.findall(comment))),
        justification=" ".join(reason[1].split()) if reason else None,
        complaints=tuple(complaints),
    )
