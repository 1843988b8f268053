"""How to write a model: a state, named actions, and what must hold.

A state is an immutable named record. An action is a function that returns the next state, or None where its guard
does not hold. A model puts them together with the values that the actions range over::

    class Light(NamedTuple):
        colour: str
        cars: int

    @action("controller")
    def switch(config, state):
        return state._replace(colour="red" if state.colour == "green" else "green")

    @action("car {car}", over=("car",), edge="[light.colour]", progress=False)
    def arrive(config, state, car):
        if state.cars == config.room:  # the guard
            return None
        return state._replace(cars=state.cars + 1)  # the effect

    @invariant("ROOM")
    def no_overflow(config, state):
        return f"{state.cars} cars" if state.cars > config.room else None  # the complaint, or None

    model = Model("light", config, (Light("red", 0),), (switch, arrive), {"car": range(2)}, (no_overflow,))

With fixed arguments an action is deterministic; a choice is one more thing to range over. So a run is a list of
actions with arguments, and a run can be replayed, in the model and in the code that the model describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

State = Any  # a NamedTuple of hashable values; every model has its own
Config = Any  # a frozen dataclass: the sizes of the instance and the fault switches; every model has its own


@dataclass(frozen=True, eq=False)
class Action:
    """One kind of step. Made by the decorator `action`; calling it applies it."""

    name: str
    effect: Callable[..., State | None]
    actor: str
    over: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    progress: bool = True
    environment: bool = False
    part_of: str = ""
    defensive: bool = False

    def __call__(self, config: Config, state: State, *args: Any) -> State | None:
        return self.effect(config, state, *args)

    @property
    def meaning(self) -> str:
        """What the step is, in words: the docstring of its function."""
        return (self.effect.__doc__ or "").strip()

    @property
    def function(self) -> str | None:
        """The function of the code that performs this action; None for a step that no code of ours performs."""
        return None if self.environment else self.part_of or self.name


def action(
    actor: str,
    *,
    over: Sequence[str] = (),
    edge: str | Sequence[str] = (),
    progress: bool = True,
    environment: bool = False,
    part_of: str = "",
    defensive: bool = False,
    name: str = "",
) -> Callable[[Callable[..., State | None]], Action]:
    """Declare an action.

    `actor` says who acts and may name an argument ("reader {reader}"). `over` names the domains of the arguments.
    `edge` names the memory-order edges of which this step is one end. `progress=False` marks a step that nobody may
    count on: a death, a new message, a joiner. `environment=True` marks a step that no function of the code performs,
    `part_of` one that is a part of the named function. `defensive=True` marks a step that is there in case the world is
    not as modelled: no run of the correct model takes it. `name` is the name where it is not the function's, as
    in the changed action of a fault.
    """
    edges = (edge,) if isinstance(edge, str) else tuple(edge)

    def declare(effect: Callable[..., State | None]) -> Action:
        return Action(
            name or effect.__name__, effect, actor, tuple(over), edges, progress, environment, part_of, defensive
        )

    return declare


class Step(NamedTuple):
    """An action with its arguments: one possible step."""

    action: Action
    args: tuple[Any, ...]

    def __str__(self) -> str:
        named = ", ".join(f"{name}={value}" for name, value in zip(self.action.over, self.args, strict=True))
        return f"{self.action.name}({named})"

    @property
    def actor(self) -> str:
        """Who takes the step, such as "writer" or "reader 1"."""
        return self.action.actor.format(**dict(zip(self.action.over, self.args, strict=True)))


@dataclass(frozen=True)
class Invariant:
    """A named statement about every state; `complaint` returns what is wrong, or None."""

    name: str
    complaint: Callable[[Config, State], str | None]

    @property
    def meaning(self) -> str:
        """The statement in words."""
        return (self.complaint.__doc__ or "").strip()


def invariant(name: str) -> Callable[[Callable[[Config, State], str | None]], Invariant]:
    """Declare a named invariant from a function that returns a complaint or None."""
    return lambda complaint: Invariant(name, complaint)


@dataclass(frozen=True)
class Sometimes:
    """A named situation that some reachable state must show; otherwise the model says less than it seems to."""

    name: str
    holds: Callable[[Config, State], bool]


def sometimes(name: str) -> Callable[[Callable[[Config, State], bool]], Sometimes]:
    """Declare a situation that must be reachable."""
    return lambda holds: Sometimes(name, holds)


@dataclass(frozen=True)
class Drain:
    """From every state where `demanded` holds, progress steps alone can lead to a state where `good` holds.

    This is what weak fairness needs: there is always a way out that waits for nobody's good will.
    """

    name: str
    demanded: Callable[[Config, State], bool]
    good: Callable[[Config, State], bool]


@dataclass(frozen=True)
class Model:
    """One instance of a protocol: the initial states, the actions and what must hold.

    `deadlocks` are asked only in states in which no progress step is possible. `canonical` maps a state to the one
    that stands for all states that differ from it only in the numbering of equal things (see `spec.symmetry`).
    """

    name: str
    config: Config
    initial: tuple[State, ...]
    actions: tuple[Action, ...]
    domains: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    invariants: tuple[Invariant, ...] = ()
    deadlocks: tuple[Invariant, ...] = ()
    drain: Drain | None = None
    sometimes: tuple[Sometimes, ...] = ()
    canonical: Callable[[State], State] | None = None

    def steps(self) -> tuple[Step, ...]:
        """Every action with every choice of arguments, always in the same order."""
        return tuple(
            Step(each, args) for each in self.actions for args in product(*(self.domains[name] for name in each.over))
        )

    def successors(self, state: State) -> Iterator[tuple[Step, State]]:
        """The steps that are possible in `state`, each with the state that it leads to."""
        for step in self.steps():
            after = step.action.effect(self.config, state, *step.args)
            if after is not None:
                yield step, after

    def complaint(self, state: State) -> tuple[str, str] | None:
        """The first invariant that `state` breaks, as (name, complaint), or None."""
        for each in self.invariants:
            found = each.complaint(self.config, state)
            if found is not None:
                return each.name, found
        return None


@dataclass(frozen=True)
class Variant:
    """A changed configuration and what becomes of it.

    `breaks` is the name of the property that fails and `steps` the length of the shortest counterexample; both are
    None where the change does no harm.
    """

    summary: str
    config: Config
    breaks: str | None = None
    steps: int | None = None


def put(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """A copy of `items` with one item replaced."""
    return (*items[:index], value, *items[index + 1 :])
