"""Message slots: how a tensor's memory goes from the writer to every reader and comes back.

The writer claims a free slot, copies a tensor into it, publishes it, and sends one message that names the slots of all
its tensors. Each reader leases them, drops its last view, waits for its device where that still reads the memory, and
releases: it stores the slot's generation into its own done word. When every *required* reader has done so the slot is
free again. Readers may die at any moment; the writer then takes them out of every required set.

**A generation number is one bit here.** The code compares a generation with the slot's current one and does nothing
else with it, and a claim makes every older reference stale for ever. So a reference only has to remember whether it is
still `current`. This is exact as long as the counter does not wrap (u64), and it makes the number of states finite
while the number of messages stays unbounded.

State, actions, properties, and faults (deliberately wrong versions of the actions) are in the `message_slots_*` modules
beside this one.
"""

from __future__ import annotations

from spec.model import Model
from spec.models.message_slots_actions import ACTIONS, admit, drop_reader, expire, leave, orphan_dma_complete, skip
from spec.models.message_slots_faults import VARIANTS
from spec.models.message_slots_loans import LOANS
from spec.models.message_slots_properties import DRAIN, INVARIANTS, SOMETIMES, rejoined
from spec.models.message_slots_state import Config, State, columns, initial, reader_keys, renumber
from spec.models.message_slots_views import VIEWS
from spec.symmetry import canonicaliser

__all__ = ["VARIANTS", "VIEWS", "Config", "State", "model"]


def model(config: Config) -> Model:
    """The model of one instance."""
    extra = (
        *((leave, drop_reader) if config.leave else ()),
        *((skip,) if config.skip else ()),
        *((expire, orphan_dma_complete) if config.quarantine else ()),
        *(LOANS if config.loans else ()),
        *config.changed,
    )
    actions = {each.name: each for each in (*ACTIONS, *extra) if each.name not in config.without}
    return Model(
        name="message_slots",
        config=config,
        initial=(initial(config),),
        actions=tuple(actions.values()),
        domains={"slot": range(config.slots), "reader": range(config.readers), "gated": (False, True)},
        invariants=INVARIANTS,
        drain=DRAIN,
        sometimes=tuple(each for each in SOMETIMES if each is not rejoined or admit.name in actions),
        canonical=canonicaliser(reader_keys, columns, renumber) if config.symmetric else None,
    )
