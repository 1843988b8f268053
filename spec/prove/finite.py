"""Evaluates a conjunct on one finite structure: the same formula that z3 proves, compiled to plain Python.

A structure names the things of each sort and says which relations hold of them.  Because the very formulas
of the proof are compiled, nothing has to be written twice when a conjunct is held against an explicit state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
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


Predicate = Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Evaluator:
    """The conjuncts of a theory, ready to be evaluated on structures."""

    predicates: Mapping[str, Predicate]

    def violated(self, structure: Structure) -> list[str]:
        """The names of the conjuncts that do not hold of the structure."""
        return [
            name
            for name, holds in self.predicates.items()
            if not holds(structure.things, structure.relations, structure.functions)
        ]


def evaluator(theory: Theory[Any]) -> Evaluator:
    """Compiles every conjunct of the theory."""
    now = theory.state()
    return Evaluator({each.name: _compiled(each, now) for each in theory.conjuncts.values()})


def _compiled(conjunct: Conjunct[Any], now: Any) -> Predicate:
    source = f"lambda things, relations, functions: {_source(conjunct.formula(now), [])}"
    predicate: Predicate = eval(compile(source, f"<{conjunct.name}>", "eval"))
    return predicate


def _source(node: Formula, bound: list[str]) -> str:
    """Python source for a formula; `bound` are the variables in scope, the innermost last."""
    if z3.is_quantifier(node):
        names = [f"v{len(bound) + number}" for number in range(node.num_vars())]
        loops = " ".join(f"for {name} in things[{node.var_sort(number).name()!r}]" for number, name in enumerate(names))
        return f"{'all' if node.is_forall() else 'any'}({_source(node.body(), bound + names)} {loops})"
    if z3.is_var(node):
        place: int = z3.get_var_index(node)
        return bound[-1 - place]
    parts = [_source(child, bound) for child in node.children()]
    kind: int = node.decl().kind()
    if kind in _OPERATORS:
        return _OPERATORS[kind](parts)
    if kind != z3.Z3_OP_UNINTERPRETED:
        raise NotImplementedError(f"no Python for {node.decl()}")
    arguments = f"({' '.join(part + ',' for part in parts)})"
    name: str = node.decl().name()
    return f"{arguments} in relations[{name!r}]" if z3.is_bool(node) else f"functions[{name!r}][{arguments}]"


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
