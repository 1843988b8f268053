"""Small faults in Python source: every comparison, connective, guard, constant, operator and statement, one at a time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Mutant:
    """A file with one fault in it."""

    path: str
    line: int
    what: str
    make: Callable[[], str]  # a thousand are named, few are made at a time
    function: str = ""  # of Python: the file, a colon, the function's name with its class

    @property
    def text(self) -> str:
        """The whole file."""
        return self.make()

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.what}"


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


def mutants_of(path: str, source: str, functions: frozenset[str] | None = None) -> Iterator[Mutant]:
    """Every mutant of a file, or of some of its functions, function by function."""
    tree, lines = ast.parse(source), source.splitlines()
    for whole, node in functions_of(tree):
        if functions is not None and node.name not in functions:
            continue
        inside = {id(each) for statement in node.body for each in executed(statement)}
        for index, inner in enumerate(ast.walk(node)):
            if id(inner) not in inside:
                continue
            for what in edits(inner):
                line = getattr(inner, "lineno", node.lineno)
                where = f" in {lines[line - 1].strip()[:60]}" if isinstance(inner, ast.Constant) else ""
                make = partial(mutated, tree, whole, index)
                yield Mutant(path, line, f"{node.name}: {what}{where}", make, f"{path}:{whole}")


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and the methods of its classes, by name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    yield f"{node.name}.{each.name}{'=' if is_setter(each) else ''}", each


def is_setter(node: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in node.decorator_list)


def executed(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without those that say something and do nothing (see `is_said`)."""
    passive = [each for each in ast.walk(statement) if is_said(each)]
    passive += [each.annotation for each in ast.walk(statement) if isinstance(each, ast.AnnAssign)]
    skipped = {id(each) for one in passive for each in ast.walk(one)}
    return (each for each in ast.walk(statement) if id(each) not in skipped)


def is_said(node: ast.AST) -> bool:
    """What is for people: texts, such as an error's, log lines, traces, docstrings; and zip's check of lengths."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or ast.unparse(node).startswith(("log.", "trace."))
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.JoinedStr)


def mutated(tree: ast.Module, function: str, index: int) -> str:
    """The source with one node of one function changed."""
    copy = deepcopy(tree)
    inside = dict(functions_of(copy))[function]
    apply(inside, next(node for at, node in enumerate(ast.walk(inside)) if at == index))
    return ast.unparse(ast.fix_missing_locations(copy))


def edits(node: ast.AST) -> list[str]:
    """What can be done to a node, in words; `apply` does it."""
    shown = ast.unparse(node)[:60].split("\n")[0] if isinstance(node, (ast.expr, ast.stmt)) else ""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return [f"{shown} -> {COMPARISONS[type(node.ops[0])].__name__}"]
    if isinstance(node, ast.BoolOp):
        return [f"and <-> or in {shown}"]
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
        return [f"{shown} -> {OPERATORS[type(node.op)].__name__}"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [f"without the not: {shown}"]
    if isinstance(node, (ast.If, ast.IfExp)):
        return [] if is_negated_inside(node.test) else [f"negated: if {ast.unparse(node.test)[:60]}"]
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        return [f"{node.value!r} -> {changed(node.value)!r}"]
    if is_removable(node):
        return [f"without: {shown}"]
    return []


def is_negated_inside(test: ast.expr) -> bool:
    """Whether an edit of the test itself negates it: no fault is made twice."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn))
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def changed(value: int) -> int:
    return not value if isinstance(value, bool) else value + 1


def is_removable(node: ast.AST) -> bool:
    """A statement that only has an effect: a call, or a store into something that outlives the function."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return not any(isinstance(name, ast.Name) for target in node.targets for name in targets(target))
    return isinstance(node, ast.Delete)


def targets(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def apply(function: ast.AST, node: ast.AST) -> None:
    """Makes the edit in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, (ast.If, ast.IfExp)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        node.value = changed(node.value)
    else:
        replace_statement(function, node)


def replace_statement(function: ast.AST, node: ast.AST) -> None:
    for parent in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and node in block:
                block[block.index(node)] = ast.Pass()
                return
