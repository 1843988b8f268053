"""Object slots: how readers look up objects that the writer may evict at any moment, and never see a reused slot.

The writer puts an object into a free slot and gives out handles (slot, generation). A reader that *gets* a handle
stores the generation into its hold word of the slot, and then looks whether the slot still has that generation: a hit,
or a miss. A lease ends when its last view is gone and the device is done with it; the last lease of a slot clears the
word. To *evict* the writer moves the generation on, and then waits, without blocking anything else, until it has seen
every reader's word different from the evicted generation. Until then the slot is draining and is not used.

State, actions, properties and faults are in the `object_slots_*` modules beside this one. `spec.models.one_word` shows
why a reader has two words per slot, `done` for message slots and `hold` for these.

What is abstracted: the process's lock makes get and release one step each (a get is two, with the lock held in
between), the odd generation of a closed slot is left out (a handle can be tried only once it was given out), and the
generation never wraps (u64).
"""

from __future__ import annotations

from spec.model import Action, Model
from spec.models.object_slots_actions import ACTIONS, QUARANTINE_ACTIONS, miss_live, share, writer_death
from spec.models.object_slots_properties import DRAIN, INVARIANTS, SOMETIMES
from spec.models.object_slots_state import LABELS, Config, State, initial
from spec.models.object_slots_variants import VARIANTS
from spec.models.object_slots_views import VIEWS

__all__ = ["VARIANTS", "VIEWS", "Config", "State", "model"]


def actions_of(config: Config) -> tuple[Action, ...]:
    """The actions that the configuration allows, faulty ones in the place of right ones."""
    right = ACTIONS + (QUARANTINE_ACTIONS if config.quarantine else ())
    absent: set[Action] = set()
    if not config.writer_dies:
        absent.add(writer_death)
    if config.leases == 1:
        absent |= {share, miss_live}
    instead = dict(config.changed)
    chosen = (instead.get(each, each) for each in right if each not in absent)
    return tuple(each for each in chosen if each is not None) + config.added


def model(config: Config) -> Model:
    """The model of one instance."""
    return Model(
        name="object_slots",
        config=config,
        initial=(initial(config),),
        actions=actions_of(config),
        domains={
            "slot": range(config.slots),
            "reader": range(config.readers),
            "label": LABELS,
            "gated": (False, True),
        },
        invariants=INVARIANTS,
        drain=DRAIN,
        sometimes=SOMETIMES,
    )
