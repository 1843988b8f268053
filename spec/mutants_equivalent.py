"""Mutants that no detector can notice, and why: they change nothing that the protocol promises. They are tried anyway."""

from __future__ import annotations

from spec.mutants_python import Mutant

SHORT_CUT = "a short cut: the table of outcomes says the same of 0"
NOT_ASKED = "nobody asks what an object's slot requires: its hold words decide"
FINISHED = "of a process that has finished nobody asks whether it is to fail"
TWO_NAMES = "swaps the names of two steps that are possible together"
# (the end of a path, a part of what was changed) -> the reason
EQUIVALENT: dict[tuple[str, str], str] = {
    ("slots.py", "__init__: 0 -> 1 in self.offsets"): "a slot's offset is set by its claim, before anybody asks for it",
    ("slots.py", "__init__: 0 -> 1 in self.lengths"): "a slot's length is set by its claim, before anybody asks for it",
    ("slots.py", "__init__: 1 -> 2 in self._fd"): "any negative number means: no file to write to",
    ("slots.py", "claim: 1 -> 2 in generation ="): "a generation is another than before; by how much, nobody asks",
    ("slots.py", "adopt: 0 -> 1 in self.required"): NOT_ASKED,
    ("slots.py", "adopt: without: self.required"): NOT_ASKED,
    ("ring.py", "wait: 0 -> 1 in return Outcome.OK if code == 0"): SHORT_CUT,
    ("ring.py", "send_plain: 0 -> 1 in return Outcome.OK if code == 0"): SHORT_CUT,
    ("members.py", "_excuse_the_left: self._ring.members >> row & 1 -> BitOr"): "what is excused may be excused again",
    ("eviction.py", "choose: 0 -> 1 in least"): "a free range costs nothing, and is what is chosen among victims, too",
    ("eviction.py", "choose: 1 -> 2 in least"): "one round more of the search",
    ("eviction.py", "choose: 1 -> 2 in places = [Victim"): "any negative age means: free",
    ("eviction.py", "piece.of.age >= oldest -> Gt"): "the search finds one number less, which then means the same victims",
    ("eviction.py", "cost < best[0] -> LtE"): "of two that cost the same, either will do",
    ("message_slots_actions.py", "outdated: False -> True"): "only deliberate faults have an older reference in a queue",
    ("message_slots_actions.py", "drop: negated: if gated"): TWO_NAMES,
    ("object_slots_actions.py", "drop: negated: if gated"): TWO_NAMES,
    ("object_slots_state.py", "initial: True -> False in reader"): "who begins dead is reclaimed, and another one admitted",
    ("object_slots_actions.py", "scan: False -> True in return with_slot"): "the next eviction forgets it",
    ("ring_state.py", "initial: 1 -> 2 in (RUNNING,)"): "a park word more than there are processes: nobody's",
    ("ring_reader.py", "leave: 0 -> 1"): "a reader that has left has no position: nobody asks for it",
    ("ring_reader.py", "reader_death: cursor is not None"): "a store lost by a death: as if it had died one step earlier",
    ("rendezvous_state.py", "holds: process < len"): "nobody has that number",
    ("rendezvous_steps.py", "record_in_place_of: 1 -> 2"): "a dead member's record counts for nothing, there or not",
    ("rendezvous_steps.py", "close_entry: False -> True"): FINISHED,
    ("rendezvous_steps.py", "dead: False -> True"): FINISHED,
    ("rendezvous_meeting.py", "opened: state.entries + 1 -> Sub"): "an entry has another number than any before",
    ("rendezvous_meeting.py", "opened: 1 -> 2"): "an entry has another number than any before",
    ("membership_actions.py", "unpark_joiner: False -> True"): "who gives up has seen the death of all who look at it",
}


def reason(mutant: Mutant) -> str:
    """Why a mutant is equivalent; empty where it is not known to be."""
    for (path, part), why in EQUIVALENT.items():
        if mutant.path.endswith(path) and part in mutant.what:
            return why
    return ""
