"""The models and the code use the same names: every action of the slot and ring models is a function of the code.

A public function of ``arena/protocol/slots.py``, ``objects.py`` or ``ring.py`` is an action, or it is named below with
what it is instead. So neither side can grow, or lose, a step that the other one does not know of.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from arena.protocol import objects, ring, slots
from spec.models import message_slots, message_slots_state, object_slots, object_slots_state, ring_state
from spec.models import ring as ring_model

# Several actions in one call.
COMPOSED = {
    "send": {"reserve", "write", "publish", "wake_readers"},
    "send_plain": {"reserve", "write", "publish", "wake_readers"},
    "wait_room": {"park", "recheck", "sleep", "unpark"},
    "wait_members": {"park", "sleep", "unpark"},
    "wait": {"read", "park", "recheck", "sleep", "unpark"},
    "look": {"read"},
    "wait_admission": {"park", "sleep", "unpark"},
    "finish": {"advance", "wake_writer"},
}
# What the code does in several calls and the model in one step.
PART_OF = {
    "populate": "copy",
    "collect": "claim",
    "free": "claim",
    "excuse_unread": "drop_reader",
    "clear_entry": "reclaim",
    "close": "shutdown",
    "recover": "abort",
    "restore": "abort",
    "give_up": "abort",
}
# A loan may become an object's slot, whose model is another one.
ELSEWHERE = {"loan_at", "own_lease", "adopt", "held_by"}
# Changes nothing.
LOOKS = {
    "begin", "begun", "closed", "consumed", "done", "draining_bytes", "entries", "entry", "grant", "grant_to_be",
    "impossible_rows", "is_held", "is_in_hand", "is_loan", "is_mapped", "is_open", "lag", "look_due", "members", "n_slots",
    "owes", "plain", "position", "private", "quarantined", "record", "record_footprint", "usage", "watch",
    "writer_closed",
}  # fmt: skip


def functions_of(module: ModuleType) -> set[str]:
    """The public functions and methods that a module defines; records and enumerations have none that act."""
    found = callable_names(module)
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            found.add(name)
        elif inspect.isclass(value) and not issubclass(value, (tuple, int)) and hasattr(value, "__dict__"):
            found |= {each for each, member in vars(value).items() if not each.startswith("_") and callable_member(member)}
            found |= callable_names(value)
    return found


def callable_names(owner: object) -> set[str]:
    """What is written down as a name of a native call."""
    kinds = vars(owner).get("__annotations__", {})
    return {name for name, kind in kinds.items() if not name.startswith("_") and kind.startswith("Callable")}


def callable_member(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property)


def code() -> set[str]:
    return functions_of(slots) | functions_of(objects) | functions_of(ring)


def actions() -> set[str]:
    options = message_slots_state.Config(leave=True, skip=True, quarantine=True, loans=True)
    object_options = object_slots_state.Config(quarantine=True)
    models = (
        message_slots.model(options),
        object_slots.model(object_options),
        ring_model.model(ring_state.Config()),
    )
    return {each.function for model in models for each in model.actions if each.function is not None}


def test_every_action_is_a_function() -> None:
    assert actions() <= code()


def test_every_function_is_an_action_or_is_accounted_for() -> None:
    assert code() - actions() == set(COMPOSED) | set(PART_OF) | ELSEWHERE | LOOKS


def test_what_is_composed_is_composed_of_actions() -> None:
    assert set().union(*COMPOSED.values()) | set(PART_OF.values()) <= actions()


def test_no_name_is_listed_twice() -> None:
    listed = [*COMPOSED, *PART_OF, *ELSEWHERE, *LOOKS]
    assert len(listed) == len(set(listed))
    assert not set(listed) & actions()
