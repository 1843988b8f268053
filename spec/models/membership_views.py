"""A point of view on membership, for `python -m spec picture`."""

from __future__ import annotations

from spec.models.membership_state import JOINED, LEFT, Config, ReaderStep, State, WriterStep


def entry_seen(config: Config, state: State) -> str | None:
    """The entry, whether its process lives, and what the writer knows of it."""
    rank = state.ranks[0]
    if state.writer.step == WriterStep.DEAD:
        return None
    alive = "dead" if rank.step == ReaderStep.DEAD else ""
    known = "counts as a member" if rank.member and rank.word == LEFT else ""
    asleep = "asleep" if rank.step == ReaderStep.ASLEEP else ""
    waits = "not running yet" if rank.word == JOINED and not (alive or asleep) and rank.step != ReaderStep.RUNNING else ""
    return ", ".join(filter(None, (rank.word, alive, asleep, waits, known)))


VIEWS = {"entry": (Config(messages=False, objects=False), entry_seen)}
