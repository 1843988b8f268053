"""Evaluates a conjunct on one finite structure: the same formula that z3 proves, compiled to plain Python.

A structure names the things of each sort and says which relations hold of them.  Because the very formulas
of the proof are compiled, nothing has to be written twice when a conjunct is held against an explicit state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import z3

from spec.prove.logic import Conjunct, Formula, Theory

Thing = Hashable


@dataclass(frozen=True)
class Structure:
    """One state as things and relations.  A relation is the set of the tuples that it holds of."""

    things: Mapping[str, tuple[Thing, ...]]
    relations: Mapping[str, frozenset[tuple[Thing, ...]]]
    functions: Mapping[str, Mapping[tuple[Thing, ...], Thing]]

    def part(self, name: str) -> Any:
        """One sort, relation or function, by its name in compiled conjuncts."""
        kind, _, rest = name.partition("_")
        kinds: dict[str, Mapping[str, Any]] = {
            "things": self.things,
            "relation": self.relations,
            "function": self.functions,
        }
        return kinds[kind].get(rest, {})

    def hashable_parts(self) -> dict[str, Hashable]:
        """Every part by the same name, in a form that can be compared."""
        return {
            **{f"things_{name}": things for name, things in self.things.items()},
            **{f"relation_{name}": held for name, held in self.relations.items()},
            **{f"function_{name}": frozenset(table.items()) for name, table in self.functions.items()},
        }


@dataclass(frozen=True)
class _Predicate:
    """One conjunct as a Python function of the parts of a structure that it speaks of."""

    uses: tuple[str, ...]
    holds: Callable[..., bool]
    known: dict[tuple[Hashable, ...], bool] = field(default_factory=dict)

    def __call__(self, structure: Structure, parts: Mapping[str, Hashable]) -> bool:
        """Many states agree in the few parts that one conjunct speaks of: each combination is evaluated once."""
        key = tuple([parts.get(name) for name in self.uses])  # a function of no things is left out
        if key not in self.known:
            self.known[key] = self.holds(*[structure.part(name) for name in self.uses])
        return self.known[key]


@dataclass(frozen=True)
class Evaluator:
    """The conjuncts of a theory, ready to be evaluated on structures."""

    predicates: Mapping[str, _Predicate]

    def violated(self, structure: Structure) -> list[str]:
        """The names of the conjuncts that do not hold of the structure."""
        parts = structure.hashable_parts()
        return [name for name, holds in self.predicates.items() if not holds(structure, parts)]


def evaluator(theory: Theory[Any]) -> Evaluator:
    """Compiles every conjunct of the theory."""
    now = theory.state()
    return Evaluator({each.name: _compiled(each, now) for each in theory.conjuncts.values()})


def _compiled(conjunct: Conjunct[Any], now: Any) -> _Predicate:
    source = _source(conjunct.formula(now), [])
    uses = tuple(sorted(set(re.findall(r"\b(?:things|relation|function)_\w+", source))))
    return _Predicate(uses, eval(compile(f"lambda {', '.join(uses)}: {source}", f"<{conjunct.name}>", "eval")))


def _source(node: Formula, bound: list[str]) -> str:
    """Python source for a formula; `bound` are the variables in scope, the innermost last."""
    if z3.is_quantifier(node):
        names = [f"v{len(bound) + number}" for number in range(node.num_vars())]
        loops = " ".join(f"for {name} in things_{node.var_sort(number).name()}" for number, name in enumerate(names))
        return f"{'all' if node.is_forall() else 'any'}({_source(node.body(), bound + names)} {loops})"
    if z3.is_var(node):
        place: int = z3.get_var_index(node)
        return bound[-1 - place]
    parts = [_source(child, bound) for child in node.children()]
    kind: int = node.decl().kind()
    if kind in _OPERATORS:
        return _OPERATORS[kind](parts)
    if kind != z3.Z3_OP_UNINTERPRETED:
        raise ValueError(f"{node.decl()}: an operator without Python here: add it to _OPERATORS")
    arguments = f"({' '.join(part + ',' for part in parts)})"
    name: str = node.decl().name()
    return f"({arguments} in relation_{name})" if z3.is_bool(node) else f"function_{name}[{arguments}]"


_OPERATORS: dict[int, Callable[[list[str]], str]] = {
    z3.Z3_OP_TRUE: lambda parts: "True",
    z3.Z3_OP_FALSE: lambda parts: "False",
    z3.Z3_OP_AND: lambda parts: f"({' and '.join(parts)})",
    z3.Z3_OP_OR: lambda parts: f"({' or '.join(parts)})",
    z3.Z3_OP_NOT: lambda parts: f"(not {parts[0]})",
    z3.Z3_OP_IMPLIES: lambda parts: f"(not {parts[0]} or {parts[1]})",
    z3.Z3_OP_EQ: lambda parts: f"({parts[0]} == {parts[1]})",
    z3.Z3_OP_DISTINCT: lambda parts: f"({parts[0]} != {parts[1]})",
    z3.Z3_OP_ITE: lambda parts: f"({parts[1]} if {parts[0]} else {parts[2]})",
}
