"""In which order may a writer set its flags? A side model, about a design that arena does not have.

One slot, boolean flags. For every tensor the writer clears `written`, copies, resets the readers' done flags, sets
`written`, and perhaps sends a message. Readers find the slot either by polling the flags or from the message.
Polling tolerates far fewer orders, which is one reason why arena's readers learn of a slot from a message alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from spec.model import Model, Variant, action, invariant, put

READERS = 2
IDLE = "idle"
POLL, MESSAGE = "poll", "message"


@dataclass(frozen=True)
class Config:
    """The writer's steps in their order, and how a reader finds the slot."""

    order: tuple[str, ...] = ("clear", "copy", "reset 0", "reset 1", "set")
    discovery: str = POLL


class State(NamedTuple):
    """The writer's next step, the flags, and what each reader does."""

    writer: str
    written: bool
    complete: bool
    done: tuple[bool, ...]
    told: tuple[bool, ...]  # a message that names the slot waits for the reader
    reading: tuple[bool, ...]


@action("writer", progress=False)
def claim(config: Config, state: State) -> State | None:
    """The slot is unused, or all have read it: its bytes are about to be overwritten."""
    if state.writer != IDLE or (state.written and not all(state.done)):
        return None
    return state._replace(writer=config.order[0], complete=False)


@action("writer")
def step(config: Config, state: State) -> State | None:
    """The next step of the writer's order."""
    if state.writer == IDLE:
        return None
    following = dict(zip(config.order, (*config.order[1:], IDLE), strict=True))
    return effect(state, state.writer)._replace(writer=following[state.writer])


def effect(state: State, name: str) -> State:
    """What one step of the writer changes."""
    if name == "copy":
        return state._replace(complete=True)
    if name in ("clear", "set"):
        return state._replace(written=name == "set")
    if name == "send":
        return state._replace(told=(True,) * READERS)
    return state._replace(done=put(state.done, int(name.removeprefix("reset ")), False))


@action("reader {reader}", over=["reader"])
def lease(config: Config, state: State, reader: int) -> State | None:
    """Start to read, if the flags or a message say so."""
    found = state.told[reader] if config.discovery == MESSAGE else state.written and not state.done[reader]
    if state.reading[reader] or not found:
        return None
    return state._replace(told=put(state.told, reader, False), reading=put(state.reading, reader, True))


@action("reader {reader}", over=["reader"])
def release(config: Config, state: State, reader: int) -> State | None:
    """Set the own done flag."""
    if not state.reading[reader]:
        return None
    return state._replace(done=put(state.done, reader, True), reading=put(state.reading, reader, False))


@invariant("S1")
def reads_complete(config: Config, state: State) -> str | None:
    """No reader reads a slot whose bytes are being overwritten."""
    return "a reader reads what the writer overwrites" if any(state.reading) and not state.complete else None


@invariant("S4")
def no_leak(config: Config, state: State) -> str | None:
    """When a message-driven slot is quiet it is free."""
    quiet = state.writer == IDLE and not any(state.reading) and not any(state.told)
    leaked = config.discovery == MESSAGE and quiet and state.written and not all(state.done)
    return "the slot is never free again" if leaked else None


def model(config: Config) -> Model:
    """One slot and two readers."""
    nobody = (False,) * READERS
    return Model(
        name="flag_orders",
        config=config,
        initial=(State(IDLE, False, False, nobody, nobody, nobody),),
        actions=(claim, step, lease, release),
        domains={"reader": range(READERS)},
        invariants=(reads_complete, no_leak),
    )


def orders(discovery: str) -> list[Config]:
    """Every order of the writer's steps, the resets taken together."""
    steps = ["clear", "copy", "reset", "set"] + (["send"] if discovery == MESSAGE else [])
    resets = tuple(f"reset {reader}" for reader in range(READERS))
    return [
        Config(tuple(name for each in order for name in (resets if each == "reset" else (each,))), discovery)
        for order in permutations(steps)
    ]


VARIANTS = {
    "reset-before-clear": Variant(
        "the done flags are reset before `written` is cleared",
        Config(("reset 0", "reset 1", "clear", "copy", "set")),
        "S1",
        13,
    ),
    "set-before-copy": Variant(
        "`written` is set before the copy", Config(("clear", "reset 0", "reset 1", "set", "copy")), "S1", 6
    ),
    "reset-after-send": Variant(
        "the message is out before the done flags are reset",
        Config(("clear", "copy", "set", "send", "reset 0", "reset 1"), MESSAGE),
        "S4",
        11,
    ),
    "message": Variant(
        "the reader learns of the slot from a message",
        Config(("clear", "copy", "reset 0", "reset 1", "set", "send"), MESSAGE),
    ),
}
