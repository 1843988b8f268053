"""Whole queues in one process, at random, against the model: an enqueue, a dequeue or a drop is a run of its steps.

After each rule the bytes of the segment, abstracted as in the lockstep of the slots, must be the model's state, the free
slots must be as many, and every tensor that anybody still holds must have the values that were sent.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support import Unpicklable, queue_of

from arena import ArenaConfig
from arena.protocol.slots import Grant
from spec.model import Action
from spec.models import message_slots_actions as actions
from spec.models.message_slots_state import LEASED, Config, State, initial
from spec.refine import Reference, SlotsPrivate, message_slots, observable_slots, words_of

N_READERS, N_SLOTS, PAGE_OF_FLOATS = 3, 4, 1024
ARENA = ArenaConfig(capacity_bytes=1 << 20, slots=N_SLOTS, divert_bytes=4096)


class Queues(RuleBasedStateMachine):
    """The model's state, and a queue that is meant to be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.writer, self.readers = self.stack.enter_context(queue_of(N_READERS, arena=ARENA))
        for reader in self.readers:
            reader.wait_until_ready(10)
        self.config = Config(slots=N_SLOTS, readers=N_READERS, tensors=N_SLOTS, queue=1000)
        self.state: State = initial(self.config)
        self.sent: list[list[float]] = []
        self.taken = [0] * N_READERS
        self.held: list[dict[int, torch.Tensor]] = [{} for _ in range(N_READERS)]  # by slot
        self.slots = self.writer._end.slots
        self.words = words_of(self.writer._end.segment)

    def does(self, action: Action, *args: Any) -> None:
        after = action(self.config, self.state, *args)
        assert after is not None, f"the model does not allow {action.name}{args}"
        self.state = after

    def claim_and_fill(self, slots: list[int]) -> None:
        for slot in slots:
            self.does(actions.claim, slot)
            self.does(actions.copy)
            self.does(actions.publish)

    @rule(count=st.integers(0, 3))
    def enqueue(self, count: int) -> None:
        values = [float(len(self.sent) * 10 + each) for each in range(count)]
        before = list(self.slots.generations)
        self.writer.enqueue([torch.full((PAGE_OF_FLOATS,), value) for value in values], timeout=10)
        claimed = [slot for slot in range(N_SLOTS) if self.slots.generations[slot] != before[slot]]
        claimed.sort(key=lambda slot: self.slots.offsets[slot])  # in order: the lowest free extent is taken first
        self.claim_and_fill(claimed)
        if claimed:
            self.does(actions.enqueue)
        self.sent.append(values)

    @rule(count=st.integers(1, 3))
    def fail_to_enqueue(self, count: int) -> None:
        before = list(self.slots.generations)
        with pytest.raises(ValueError, match="not this one"):
            self.writer.enqueue([*[torch.zeros(PAGE_OF_FLOATS) for _ in range(count)], Unpicklable()], timeout=10)
        self.claim_and_fill([slot for slot in range(N_SLOTS) if self.slots.generations[slot] != before[slot]])
        if self.state.pending:
            self.does(actions.abort)

    @precondition(lambda self: any(count < len(self.sent) for count in self.taken))
    @rule(row=st.integers(0, N_READERS - 1))
    def dequeue(self, row: int) -> None:
        if self.taken[row] == len(self.sent):
            return
        waiting = len(self.state.queues[row])
        message = self.readers[row].dequeue(timeout=10)
        values = self.sent[self.taken[row]]
        self.taken[row] += 1
        assert [float(tensor[0]) for tensor in message] == values
        in_arena = [tensor for tensor in message if self.slot_of(row, tensor) is not None]
        if in_arena:
            assert waiting
            self.does(actions.receive, row)
            for tensor in in_arena:
                slot = self.slot_of(row, tensor)
                self.does(actions.lease, row, slot)
                self.held[row][slot] = tensor

    def slot_of(self, row: int, tensor: torch.Tensor) -> int | None:
        """The slot that a tensor lies in; None for one with memory of its own."""
        offset = tensor.data_ptr() - self.readers[row]._end.segment.data_address
        busy = [slot for slot in range(N_SLOTS) if self.slots.states[slot] and self.slots.offsets[slot] == offset]
        return busy[0] if busy else None

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from([row for row in range(N_READERS) if self.held[row]]))
        slot = data.draw(st.sampled_from(sorted(self.held[row])))
        del self.held[row][slot]
        self.does(actions.drop, row, slot, False)
        self.does(actions.release, row, slot)

    @invariant()
    def agree(self) -> None:
        references = [
            {slot: Reference(LEASED, Grant(slot, self.slots.generations[slot])) for slot in held} for held in self.held
        ]
        private = SlotsPrivate(
            self.slots.states, self.slots.required, self.writer._end.ring.members, [], [True] * N_READERS, references,
            lambda slot: True,
        )  # fmt: skip
        found = observable_slots(self.config, message_slots(self.config, self.words, private))
        found = found._replace(queues=tuple(tuple(message for message in queue if message) for queue in found.queues))
        assert found == observable_slots(self.config, self.state)
        free = sum(self.config.is_free(self.config, self.state, slot) for slot in range(N_SLOTS))
        assert self.writer.statistics().slots_free == free
        for held in self.held:
            for tensor in held.values():
                assert bool((tensor == tensor[0]).all())

    def teardown(self) -> None:
        self.held = []
        self.stack.close()


@pytest.mark.parametrize("examples", [8, pytest.param(300, marks=pytest.mark.deep)])
def test_a_queue_does_what_the_model_does(examples: int) -> None:
    run_state_machine_as_test(
        Queues,
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, database=None, print_blob=True,
            phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
