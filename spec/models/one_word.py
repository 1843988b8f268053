"""Why a reader has two words per slot: a design with one, which serves as `done` and as `hold`, breaks.

One slot, one reader. The slot carries a message (the reader has to store the message's generation when it has released
it) or an object (the reader stores the generation that it holds, and 0 when it lets go). A reader may try any handle
of an object that it has ever had, whatever the slot carries by now.

With one word a stale handle's get erases the `done` of a message, so that the slot is never free again; or a `done`
that is left over from a message reads as a hold, so that an object never drains. With two words neither happens. Both
tests of the writer are tried: does the word *name the evicted generation*, or is it *not 0*?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spec.model import Model, Variant, action, invariant

FREE, MESSAGE, OBJECT, DRAINING = "free", "message", "object", "draining"  # what the slot carries
UNREAD, LEASED, RELEASED = "unread", "leased", "released"  # the reader's part in the message, or NOTHING
CHECKED, ANNOUNCED = "generation seen", "announced"  # a get in flight, or NOTHING
CURRENT, STALE, NOTHING = "current", "stale", "-"  # what a word names


@dataclass(frozen=True)
class Config:
    """How many words, and how they are tested."""

    words: int = 2
    exact: bool = True  # the object is held if the word names its generation; otherwise if it is not 0
    precheck: bool = False  # a get looks at the generation before it stores the word
    threads: int = 1  # with two, a finalizer may release a message between the steps of a get


class State(NamedTuple):
    """Everything there is."""

    carries: str
    message: str
    get: str
    done: str
    hold: str
    handle: bool  # the reader has once had a handle


def with_done(config: Config, state: State, label: str) -> State:
    """Store into the done word; with one word that is the hold word, too."""
    return state._replace(done=label, hold=label if config.words == 1 else state.hold)


def with_hold(config: Config, state: State, label: str) -> State:
    """Store into the hold word; with one word that is the done word, too."""
    return state._replace(hold=label, done=label if config.words == 1 else state.done)


def aged(label: str) -> str:
    """What a word names after the generation has moved on."""
    return NOTHING if label == NOTHING else STALE


@action("writer")
def publish_message(config: Config, state: State) -> State | None:
    """A message takes the free slot, with a new generation."""
    if state.carries != FREE:
        return None
    return state._replace(carries=MESSAGE, message=UNREAD, done=aged(state.done), hold=aged(state.hold))


@action("writer")
def put_object(config: Config, state: State) -> State | None:
    """An object takes the free slot, with a new generation, and the reader gets a handle."""
    if state.carries != FREE:
        return None
    return State(OBJECT, NOTHING, state.get, aged(state.done), aged(state.hold), handle=True)


@action("writer")
def free_message(config: Config, state: State) -> State | None:
    """The done word names the message's generation: the slot is free."""
    if state.carries != MESSAGE or state.done != CURRENT:
        return None
    return state._replace(carries=FREE, message=NOTHING)


@action("writer")
def evict(config: Config, state: State) -> State | None:
    """The object's generation moves on; a hold of the evicted one still counts as current while the slot drains."""
    return state._replace(carries=DRAINING, done=aged(state.done)) if state.carries == OBJECT else None


@action("writer")
def scan(config: Config, state: State) -> State | None:
    """The hold word does not hold the object: the slot is free."""
    held = state.hold == CURRENT if config.exact else state.hold != NOTHING
    if state.carries != DRAINING or held:
        return None
    return state._replace(carries=FREE, done=aged(state.done), hold=aged(state.hold))


def message_thread_runs(config: Config, state: State) -> bool:
    """With one thread, nothing else happens in the middle of a get."""
    return state.get == NOTHING or config.threads > 1


@action("reader")
def lease_message(config: Config, state: State) -> State | None:
    """Lease the slot of the message."""
    if state.carries != MESSAGE or state.message != UNREAD or not message_thread_runs(config, state):
        return None
    return state._replace(message=LEASED)


@action("reader")
def release_message(config: Config, state: State) -> State | None:
    """Store the message's generation into the done word."""
    if state.carries != MESSAGE or state.message != LEASED or not message_thread_runs(config, state):
        return None
    return with_done(config, state._replace(message=RELEASED), CURRENT)


@action("reader")
def check_generation(config: Config, state: State) -> State | None:
    """get with a look first: the slot carries the handle's object."""
    if not config.precheck or state.get != NOTHING or not state.handle or state.carries != OBJECT:
        return None
    return state._replace(get=CHECKED)


@action("reader")
def announce_checked(config: Config, state: State) -> State | None:
    """Store the generation that was seen, which may be gone by now."""
    if state.get != CHECKED:
        return None
    return with_hold(config, state._replace(get=ANNOUNCED), CURRENT if state.carries == OBJECT else STALE)


@action("reader")
def announce_stale(config: Config, state: State) -> State | None:
    """get of an old handle: store its generation."""
    if config.precheck or state.get != NOTHING or not state.handle:
        return None
    return with_hold(config, state._replace(get=ANNOUNCED), STALE)


@action("reader")
def let_go(config: Config, state: State) -> State | None:
    """The get misses, or its lease ends: store 0."""
    if state.get != ANNOUNCED:
        return None
    return with_hold(config, state._replace(get=NOTHING), NOTHING)


@invariant("S4")
def no_leak(config: Config, state: State) -> str | None:
    """A released message frees its slot, and an object that nobody holds drains."""
    if state.get != NOTHING:
        return None
    if state.message == RELEASED and state.done != CURRENT:
        return "the reader has released the message, and its done word is lost"
    if state.carries == DRAINING and not config.exact and state.hold != NOTHING:
        return "the object never drains: a done word that was left over reads as a hold"
    return None


def model(config: Config) -> Model:
    """The model of one design."""
    checked = (check_generation, announce_checked) if config.precheck else (announce_stale,)
    return Model(
        name="one_word",
        config=config,
        initial=(State(FREE, NOTHING, NOTHING, NOTHING, NOTHING, handle=False),),
        actions=(
            publish_message, put_object, free_message, evict, scan, lease_message, release_message, *checked, let_go,
        ),
        invariants=(no_leak,),
    )  # fmt: skip


VARIANTS: dict[str, Variant] = {
    "one-word-any": Variant(
        "one word, any word holds: a left-over done reads as a hold", Config(words=1, exact=False), "S4", 6
    ),
    "one-word-exact": Variant("one word, exact test: a stale get erases a done", Config(words=1), "S4", 8),
    "one-word-checked": Variant("one word, generation seen first: right in one thread", Config(words=1, precheck=True)),
    "one-word-checked-threads": Variant(
        "one word, generation seen first, two threads: a finalizer releases a message in between",
        Config(words=1, precheck=True, threads=2),
        "S4",
        9,
    ),
    "two-words-any": Variant("two words, any word holds: right", Config(exact=False)),
    "two-words-threads": Variant("two words, exact test, two threads: right", Config(threads=2)),
}
