"""Membership: how readers join, how the writer waits for all of them, and what a death or a leave leaves behind.

Every rank has an entry in the member table: one word with a state, a pid and a start time. A process that wants to read
swaps its rank's word from EMPTY to JOINING and waits. The *writer* admits it, between two messages, and wakes it; from
then on it is required to release what the writer sends. A process may also leave (it takes no more messages but still
owes what it has leased) or die (the writer, once a pidfd has proved it, clears all that hangs on the entry, and then
the entry, so that a new process may take the rank as a new incarnation).

The handshake: the writer waits until every rank is a member; a time-out names the ranks that are missing.

State, actions, properties and faults are in the `membership_*` modules beside this one.
"""

from __future__ import annotations

from spec.model import Action, Model
from spec.models.membership_actions import HANDSHAKE, LEAVING, MESSAGES, OBJECTS
from spec.models.membership_faults import VARIANTS
from spec.models.membership_properties import DRAIN, INVARIANTS, SOMETIMES, SOMETIMES_LEFT
from spec.models.membership_state import Config, State, initial
from spec.models.membership_views import VIEWS

__all__ = ["VARIANTS", "VIEWS", "Config", "State", "model"]


def actions_of(config: Config) -> tuple[Action, ...]:
    """The actions that the configuration allows, faulty ones in the place of right ones."""
    right: tuple[Action, ...] = HANDSHAKE
    right += LEAVING if config.leave else ()
    right += MESSAGES if config.messages else ()
    right += OBJECTS if config.objects else ()
    instead = dict(config.changed)
    chosen = (instead.get(each, each) for each in right)
    return tuple(each for each in chosen if each is not None) + config.added


def model(config: Config) -> Model:
    """The model of one instance."""
    return Model(
        name="membership",
        config=config,
        initial=(initial(config),),
        actions=actions_of(config),
        domains={"rank": range(config.readers)},
        invariants=INVARIANTS,
        drain=DRAIN,
        sometimes=SOMETIMES + (SOMETIMES_LEFT if config.leave else ()),
    )
