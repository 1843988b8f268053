"""A point of view on the rendezvous, for `python -m spec picture`."""

from __future__ import annotations

from spec.models.rendezvous_state import Config, State


def process_seen(config: Config, state: State) -> str:
    """What a process does next."""
    return state.processes[0].step


VIEWS = {"process": (Config("AA", deaths=False), process_seen)}
