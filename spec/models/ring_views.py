"""Points of view on the ring, for `python -m spec picture`."""

from __future__ import annotations

from spec.models.ring_state import Config, State

PLAIN = Config(shutdown=False, deaths=False, spurious=False)


def reader_seen(config: Config, state: State) -> str:
    """What the reader does next."""
    return state.readers[0].step


def writer_seen(config: Config, state: State) -> str:
    """What the writer does next."""
    return state.writer.step


VIEWS = {"reader": (PLAIN, reader_seen), "writer": (PLAIN, writer_seen)}
