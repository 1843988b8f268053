"""Small faults in the C sources: each memory order weakened, each store and fence dropped, each guard negated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from spec.mutants_python import Mutant

WEAKER = {  # in the order in which the operations can carry them
    "store": {"seq_cst": ("release", "relaxed"), "release": ("relaxed",)},
    "load": {"seq_cst": ("acquire", "relaxed"), "acquire": ("relaxed",)},
    "other": {"seq_cst": ("acq_rel", "relaxed"), "acq_rel": ("acquire", "release", "relaxed")},
}
FUNCTION = re.compile(r"static inline [\w ]+?(arena_\w+)\([^)]*\) \{\n(.*?)\n\}", re.S)
GUARD = re.compile(r"\bif \(")
STORE = re.compile(r"^\s+(arena_\w+_store_\w+|arena_park_exchange_relaxed|arena_fence_\w+)\(.*\);.*$", re.M)


def mutants_of_header(path: str, text: str) -> Iterator[Mutant]:
    """Of the file of atomics: each order weakened, each store and each fence dropped."""
    for match in FUNCTION.finditer(text):
        name, body = match.group(1), match.group(2)
        line = text[: match.start()].count("\n") + 1
        kind = "store" if "_store_" in name else "load" if "_load_" in name else "other"
        for order in re.finditer(r"memory_order_(\w+)", body):
            for weaker in WEAKER[kind].get(order.group(1), ()):
                start, end = match.start(2) + order.start(1), match.start(2) + order.end(1)
                changed = text[:start] + weaker + text[end:]
                yield Mutant(path, line, f"{name}: {order.group(1)} -> {weaker}", partial(str, changed))
        if kind == "store" or "_fence_" in name:
            changed = text[: match.start(2)] + "    (void)0;" + text[match.end(2) :]
            yield Mutant(path, line, f"{name}: dropped", partial(str, changed))


def mutants_of_code(path: str, text: str) -> Iterator[Mutant]:
    """Of a file that uses them: each guard negated, each store dropped."""
    for match in GUARD.finditer(text):
        end = closing(text, match.end() - 1)
        line = text[: match.start()].count("\n") + 1
        condition = text[match.end() : end]
        if "__builtin_expect(arena_trace_on" in condition:
            continue
        changed = f"{text[: match.end()]}!({condition}){text[end:]}"
        yield Mutant(path, line, f"negated: if ({condition[:60]})", partial(str, changed))
    for match in STORE.finditer(text):
        line = text[: match.start()].count("\n") + 1
        changed = text[: match.start()] + text[match.end() :]
        yield Mutant(path, line, f"without: {match.group(0).strip()[:70]}", partial(str, changed))


def closing(text: str, opening: int) -> int:
    """The place of the bracket that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError(f"no closing bracket after {opening}")
