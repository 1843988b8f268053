"""The words in which a protocol is stated for z3: states as relations, actions as guards and changes, conjuncts.

The style is that of Ivy and of EPR ("effectively propositional" logic).  A *sort* is an unbounded set of
things (slots, ranks, ...), a *relation* says which of them stand in which relationship, and every formula
quantifies over whole sorts, so what is proved holds for any number of them.  The only functions go from a
thing to what it belongs to (a grant to its slot), never back, which keeps the solver's task decidable.

A state is one copy of all relations.  An action relates two states, `now` and the next one: it lists its
guards and, per relation that changes, what the relation is afterwards.  Everything else stays as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Generic, TypeAlias, TypeVar

import z3

# z3 has no type hints of its own; these names say which of its objects is meant.
Formula: TypeAlias = Any
Term: TypeAlias = Any
Sort: TypeAlias = Any
Body: TypeAlias = Callable[..., Formula]
"""A relation as a function of its arguments: what an action says a relation becomes."""


def forall(sorts: Sort | Sequence[Sort], body: Body) -> Formula:
    """`body` holds of all things of these sorts; its parameters name the variables."""
    variables = _fresh(sorts, body)
    return z3.ForAll(variables, body(*variables))


def exists(sorts: Sort | Sequence[Sort], body: Body) -> Formula:
    """`body` holds of some things of these sorts."""
    variables = _fresh(sorts, body)
    return z3.Exists(variables, body(*variables))


def _fresh(sorts: Sort | Sequence[Sort], body: Body) -> list[Term]:
    listed = [sorts] if isinstance(sorts, z3.SortRef) else list(sorts)
    names = list(inspect.signature(body).parameters)
    return [z3.FreshConst(sort, name) for sort, name in zip(listed, names, strict=True)]


def both(*parts: Formula) -> Formula:
    """All of `parts` hold."""
    return z3.And(*parts)


def either(*parts: Formula) -> Formula:
    """At least one of `parts` holds."""
    return z3.Or(*parts)


def implies(premise: Formula, *consequences: Formula) -> Formula:
    """Where `premise` holds, so do all `consequences`."""
    return z3.Implies(premise, z3.And(*consequences))


def no(formula: Formula) -> Formula:
    """`formula` does not hold."""
    return z3.Not(formula)


def nothing(*_: Term) -> Formula:
    """The empty relation."""
    return z3.BoolVal(False)


@dataclass(frozen=True)
class Relation:
    """One relation of one state; calling it gives the formula that it holds of the arguments."""

    name: str
    sorts: tuple[Sort, ...]
    says: str
    symbol: Any

    def __call__(self, *arguments: Term) -> Formula:
        return self.symbol(*arguments)

    def plus(self, *element: Term) -> Body:
        """This relation with one more element."""
        return lambda *arguments: z3.Or(self(*arguments), _same(arguments, element))

    def minus(self, *element: Term) -> Body:
        """This relation without one element."""
        return lambda *arguments: z3.And(self(*arguments), z3.Not(_same(arguments, element)))

    def where(self, keep: Body) -> Body:
        """The part of this relation that satisfies `keep`."""
        return lambda *arguments: z3.And(self(*arguments), keep(*arguments))

    def union(self, more: Body) -> Body:
        """This relation and everything that satisfies `more`."""
        return lambda *arguments: z3.Or(self(*arguments), more(*arguments))


def _same(left: Sequence[Term], right: Sequence[Term]) -> Formula:
    return z3.And(*[a == b for a, b in zip(left, right, strict=True)])


class relation:
    """Declares a relation of a `State` class: its sorts, and how a line of a counterexample says it."""

    def __init__(self, *sorts: Sort, says: str) -> None:
        self.sorts = sorts
        self.says = says

    def __set_name__(self, owner: type[State], name: str) -> None:
        self.name = name

    def __get__(self, state: State, owner: type[State]) -> Relation:
        return state.relations[self.name]


class State:
    """One copy of every declared relation; `suffix` tells the copies (now, next) apart."""

    def __init__(self, suffix: str = "") -> None:
        self.relations: dict[str, Relation] = {
            declared.name: Relation(
                declared.name,
                declared.sorts,
                declared.says,
                z3.Function(declared.name + suffix, *declared.sorts, z3.BoolSort()),
            )
            for declared in vars(type(self)).values()
            if isinstance(declared, relation)
        }

    def __iter__(self) -> Iterator[Relation]:
        return iter(self.relations.values())


@dataclass(frozen=True)
class Step:
    """What an action asks for and does: named guards, and what each changed relation becomes."""

    guards: Mapping[str, Formula]
    changes: Mapping[str, Body]

    def without_guard(self, name: str) -> Step:
        """The same step with one guard forgotten: a seeded fault."""
        return replace(self, guards=_without(self.guards, name))

    def without_change(self, name: str) -> Step:
        """The same step with one change forgotten: a seeded fault."""
        return replace(self, changes=_without(self.changes, name))

    def with_guard(self, name: str, formula: Formula) -> Step:
        """The same step with another formula for a guard, or with one guard more."""
        return replace(self, guards={**self.guards, name: formula})

    def with_change(self, name: str, body: Body) -> Step:
        """The same step with another outcome for one relation."""
        return replace(self, changes={**self.changes, name: body})

    def formula(self, now: State, after: State) -> Formula:
        """The step as one formula over two states: guards, changes, and nothing else moves."""
        parts = list(self.guards.values())
        for old, new in zip(now, after, strict=True):
            becomes = self.changes.get(old.name, old)
            variables = [z3.FreshConst(sort) for sort in old.sorts]
            same = new(*variables) == becomes(*variables)
            parts.append(z3.ForAll(variables, same) if variables else same)
        return z3.And(*parts)


def _without(mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name not in mapping:
        raise KeyError(name)
    return {key: value for key, value in mapping.items() if key != name}


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Conjunct(Generic[S]):
    """One named part of the invariant, or one safety property; `words` says it in a sentence.

    `existential` marks a conjunct that says "there is a ...".  It is a premise only for its own proof: used
    everywhere it would send the solver looking for ever new witnesses.
    """

    name: str
    words: str
    formula: Callable[[S], Formula]
    existential: bool = False


@dataclass(frozen=True)
class Action(Generic[S]):
    """One named action.  `part_of` is the protocol function it is a case of; None: the environment's doing."""

    name: str
    words: str
    actor: str
    part_of: str | None
    parameters: tuple[tuple[str, Sort], ...]
    build: Callable[..., Step]

    def constants(self) -> list[Term]:
        """One constant per parameter: the things that this action is about."""
        return [z3.Const(name, sort) for name, sort in self.parameters]

    def step(self, now: S) -> Step:
        """The action's guards and changes over the state `now`."""
        return self.build(now, *self.constants())

    def edited(self, edit: Callable[..., Step]) -> Action[S]:
        """The action with its step rewritten by `edit(step, now, *parameters)`."""
        return replace(self, build=lambda now, *things: edit(self.build(now, *things), now, *things))


@dataclass
class Theory(Generic[S]):
    """A protocol stated for proof: state, initial state, actions, the invariant's conjuncts, safety."""

    name: str
    state: type[S]
    initial: Callable[[S], Formula]
    actions: dict[str, Action[S]] = field(default_factory=dict)
    conjuncts: dict[str, Conjunct[S]] = field(default_factory=dict)
    safety: dict[str, Conjunct[S]] = field(default_factory=dict)
    sorts: tuple[Sort, ...] = ()

    @cached_property
    def sort_names(self) -> tuple[str, ...]:
        """The names of the sorts."""
        return tuple(sort.name() for sort in self.sorts)

    @cached_property
    def relation_names(self) -> tuple[str, ...]:
        """The names of the relations."""
        return tuple(self.state().relations)

    def action(self, actor: str, *sorts: Sort, part_of: str | None = "") -> Callable[[Callable[..., Step]], Action[S]]:
        """Registers a function as an action; its name is the action's name and its docstring the words.

        `part_of` defaults to the action's own name; pass None for what nobody's code does (deaths, DMA).
        """

        def register(build: Callable[..., Step]) -> Action[S]:
            name = build.__name__
            names = list(inspect.signature(build).parameters)[1:]
            made: Action[S] = Action(
                name=name,
                words=_words(build),
                actor=actor,
                part_of=name if part_of == "" else part_of,
                parameters=tuple(zip(names, sorts, strict=True)),
                build=build,
            )
            self.actions[name] = made
            return made

        return register

    def conjunct(self, formula: Callable[[S], Formula]) -> Callable[[S], Formula]:
        """Registers a function as a conjunct of the invariant."""
        self.conjuncts[formula.__name__] = Conjunct(formula.__name__, _words(formula), formula)
        return formula

    def existential_conjunct(self, formula: Callable[[S], Formula]) -> Callable[[S], Formula]:
        """Registers a conjunct that says "there is": a premise of its own proof only."""
        self.conjuncts[formula.__name__] = Conjunct(formula.__name__, _words(formula), formula, existential=True)
        return formula

    def safety_property(self, formula: Callable[[S], Formula]) -> Callable[[S], Formula]:
        """Registers a function as a safety property, which the invariant must imply."""
        self.safety[formula.__name__] = Conjunct(formula.__name__, _words(formula), formula)
        return formula

    def existential_safety(self, formula: Callable[[S], Formula]) -> Callable[[S], Formula]:
        """Registers a safety property that says "there is": the existential conjuncts are its premises too."""
        self.safety[formula.__name__] = Conjunct(formula.__name__, _words(formula), formula, existential=True)
        return formula

    def apart(self, prefix: str, words: str, names: Sequence[str]) -> None:
        """Registers, for every two of these relations over the same things, that nothing is in both."""
        for first, second in combinations(names, 2):
            name = f"{prefix}_{first}_or_{second}"
            self.conjuncts[name] = Conjunct(name, f"{words}: {first} or {second}.", _not_both(first, second))

    def with_actions(self, actions: Mapping[str, Action[S]]) -> Theory[S]:
        """The same theory with some actions replaced or added."""
        return replace(self, actions={**self.actions, **actions})

    def without_conjunct(self, name: str) -> Theory[S]:
        """The same theory with one conjunct forgotten."""
        return replace(self, conjuncts=_without(self.conjuncts, name))


def _not_both(first: str, second: str) -> Callable[[State], Formula]:
    def formula(now: State) -> Formula:
        one, other = now.relations[first], now.relations[second]
        return forall_of(one, lambda *things: no(both(one(*things), other(*things))))

    return formula


def forall_of(over: Relation, body: Body) -> Formula:
    """`body` holds of all arguments that the relation `over` could take."""
    variables = [z3.FreshConst(sort) for sort in over.sorts]
    return z3.ForAll(variables, body(*variables))


def empty_except(state: State, *names: str) -> Formula:
    """Every relation of the state is empty, but for the named ones, of which nothing is said."""
    parts = []
    for each in state:
        if each.name not in names:
            parts.append(forall_of(each, lambda *things, each=each: no(each(*things))) if each.sorts else no(each()))
    return z3.And(*parts)


def _words(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function)
    if not text:
        raise TypeError(f"{function.__name__} needs a docstring: it is what a counterexample prints")
    return " ".join(text.split())
