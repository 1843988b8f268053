"""What if a finalizer runs twice? A side model: one slot, one reader, and a release that is stored a second time.

The second store may come at any later time, from another thread, when the slot already has another generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spec.model import Model, Variant, action, invariant

FLAG, STORE, FORWARD = "flag", "store", "forward"
NONE, OLD, CURRENT = "-", "old", "current"  # which generation of the slot something means


@dataclass(frozen=True)
class Config:
    """The done word: a boolean flag, a generation that is stored, or a generation that only moves forward."""

    done_word: str = FORWARD


class State(NamedTuple):
    """The slot, its message, the reader's lease, and the second store that is still to come."""

    published: bool
    done: str
    message: str
    lease: str
    late: str


AGED = {NONE: NONE, OLD: OLD, CURRENT: OLD}


@action("writer", progress=False)
def send(config: Config, state: State) -> State | None:
    """Claim the free slot, fill it, publish it and send the message; all older references go stale."""
    if (state.published and state.done != CURRENT) or state.message != NONE:
        return None
    return State(True, NONE if config.done_word == FLAG else OLD, CURRENT, AGED[state.lease], AGED[state.late])


@action("reader")
def lease(config: Config, state: State) -> State | None:
    """Map a view of the slot that the message names."""
    return state._replace(message=NONE, lease=state.message) if state.message != NONE and state.lease == NONE else None


def stored(config: Config, state: State, generation: str) -> str:
    """The done word after a store."""
    if config.done_word == FLAG:
        return CURRENT
    return CURRENT if config.done_word == FORWARD and state.done == CURRENT else generation


@action("reader")
def release(config: Config, state: State) -> State | None:
    """Store the done word, once."""
    return state._replace(done=stored(config, state, state.lease), lease=NONE) if state.lease != NONE else None


@action("reader")
def release_twice(config: Config, state: State) -> State | None:
    """Store the done word; a second store of it is on its way."""
    if state.lease == NONE or state.late != NONE:
        return None
    return state._replace(done=stored(config, state, state.lease), lease=NONE, late=state.lease)


@action("reader")
def late_store(config: Config, state: State) -> State | None:
    """The second store arrives."""
    return state._replace(done=stored(config, state, state.late), late=NONE) if state.late != NONE else None


@invariant("S1")
def in_use_is_current(config: Config, state: State) -> str | None:
    """The slot is not used again while the reader has a view of it."""
    return "the slot is used again under a view" if state.lease == OLD else None


@invariant("S4")
def no_leak(config: Config, state: State) -> str | None:
    """When nothing is under way the slot is free."""
    quiet = (state.message, state.lease, state.late) == (NONE, NONE, NONE)
    return "the slot is never free again" if quiet and state.published and state.done != CURRENT else None


def model(config: Config) -> Model:
    """One slot and one reader."""
    return Model(
        name="double_release",
        config=config,
        initial=(State(False, NONE, NONE, NONE, NONE),),
        actions=(send, lease, release, release_twice, late_store),
        invariants=(in_use_is_current, no_leak),
    )


VARIANTS = {
    "flag": Variant("boolean done flags: a second store frees the next generation", Config(FLAG), "S1", 7),
    "store": Variant("a generation, simply stored: an old one may overwrite a newer one", Config(STORE), "S4", 7),
    "forward": Variant("a generation that only moves forward", Config(FORWARD)),
}
