"""The ring and its parking protocol: nobody spins, and yet nobody sleeps through a wake-up.

One writer publishes records, each reader reads all of them at its own pace. Whoever has nothing to do *parks*: it sets
its park word, looks once more, and sleeps on that word. Whoever makes something happen stores it, looks at the other's
park word, and wakes it if the word is set. Both sides do the same: **store mine, fence, load yours**. So at least one
of the two sees the other; with either fence missing both may miss.

Readers may join, be shut down, leave and die; sleeps end by a wake, for no reason, or at the end of a slice; the writer
may die, too.

The state is in `ring_state`, the writer's steps in `ring_writer`, the readers' in `ring_reader`, what must hold in
`ring_properties`, seeded faults in `ring_faults` and `ring_variants`.

What is abstracted: a record has no length (so no wrap markers), reading it is one step, and the writer's other threads
are serialised by its lock. A closed reader that has left is followed no further, a joiner only once it is admitted:
deaths in those two states belong to the membership model.
"""

from __future__ import annotations

from spec.model import Action, Model
from spec.models.ring_properties import DRAIN, INVARIANTS, SOMETIMES
from spec.models.ring_reader import (
    READER_ACTIONS,
    join,
    last_look,
    leave,
    reader_death,
    see_closed,
    shutdown,
    shutdown_unpark,
    shutdown_wake,
    wake_reader_spuriously,
)
from spec.models.ring_state import Config, State, initial
from spec.models.ring_variants import VARIANTS
from spec.models.ring_views import VIEWS
from spec.models.ring_writer import (
    WRITER_ACTIONS,
    admit,
    drop_dead,
    drop_left,
    wake_writer_spuriously,
    writer_death,
)

__all__ = ["VARIANTS", "VIEWS", "Config", "State", "model"]


def actions_of(config: Config) -> tuple[Action, ...]:
    """The actions that the configuration allows, faulty ones in the place of right ones."""
    absent: set[Action] = set()
    if not config.shutdown:
        absent |= {shutdown, shutdown_unpark, shutdown_wake, see_closed, leave, drop_left}
    if not config.leave:
        absent |= {leave, drop_left}
    if not config.deaths:
        absent |= {reader_death, writer_death, drop_dead, last_look, join, admit}
    if not config.rejoin:
        absent |= {join, admit}
    if not config.spurious:
        absent |= {wake_reader_spuriously, wake_writer_spuriously}
    instead = dict(config.changed)
    chosen = (instead.get(each, each) for each in (*WRITER_ACTIONS, *READER_ACTIONS) if each not in absent)
    return tuple(each for each in chosen if each is not None) + config.added


def model(config: Config) -> Model:
    """The model of one instance."""
    right = not config.changed and not config.added
    return Model(
        name="ring",
        config=config,
        initial=(initial(config),),
        actions=actions_of(config),
        domains={"reader": range(config.readers)},
        invariants=INVARIANTS,
        drain=DRAIN,
        sometimes=SOMETIMES if right else (),
    )
