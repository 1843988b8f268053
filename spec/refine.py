"""What the code's memory means in the words of the models: the abstraction functions.

A segment's control bytes, and the little that each process keeps to itself, determine the state of a model. Only what is
declared here is looked at, so a word that the code forgot to store cannot hide behind a variable that it did set.
`message_slots`, `object_slots` and `ring_of` are the functions; the lockstep tests run code and model side by side and
compare after every step.

**What a model's state says and nobody can see.** Two states of a model may differ in something that no later step depends
on. The code need not keep such a difference, so both sides are compared in a normal form, `observable_slots`,
`observable_objects` and `observable_ring`:

- a slot that is free is free: whether its last generation was released or aborted has no effect (the code notes it when
  it next looks for a slot);
- a done word counts only while its reader is required (the code zeroes a dead reader's words, the model leaves them);
- of a free slot of objects nothing is left but its generation; which handles are out, nobody knows; the dead count no
  leases; and a reader's store to its hold word is visible at once, as one process cannot show that it lags;
- the park word of a process that is dead, or not admitted yet, is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arena.message.codec import Record
from arena.protocol.ring import record_footprint
from arena.protocol.slots import Grant
from arena.protocol.slots import State as Owner
from arena.shm import layout
from arena.shm.layout import Layout, MemberWord
from arena.shm.native import ffi
from spec.model import put
from spec.models import message_slots_state as slots
from spec.models import object_slots_state as objects
from spec.models import ring_state as ring

PAD = 2**64 - 1  # the length of a record that only fills the rest of the ring


class Words:
    """The shared words of a segment, read from its control bytes."""

    def __init__(self, of: Layout, control: memoryview) -> None:
        self._bytes = control
        self._words = control.cast("Q")
        self._ring_offset, self._ring_bytes = of.ring_offset, of.ring_bytes
        self._slots, self._row = of.slots_offset // 8, of.row_bytes // 8
        self._done, self._hold = of.done_offset // 8, of.hold_offset // 8

    @property
    def published(self) -> int:
        return self._words[layout.HEADER_PUBLISHED // 8]

    @property
    def writer_park(self) -> int:
        return self._words[layout.HEADER_WRITER_PARK // 8] & 0xFFFFFFFF

    def member(self, row: int) -> MemberWord:
        return MemberWord.unpack(self._words[self._member(row)])

    def consumed(self, row: int) -> int:
        return self._words[self._member(row) + layout.MEMBER_CONSUMED // 8]

    def park(self, row: int) -> int:
        return self._words[self._member(row) + layout.MEMBER_PARK // 8] & 0xFFFFFFFF

    def generation(self, slot: int) -> int:
        return self._words[self._slots + slot * layout.SLOT_BYTES // 8]

    def done(self, row: int, slot: int) -> int:
        return self._words[self._done + row * self._row + slot]

    def hold(self, row: int, slot: int) -> int:
        return self._words[self._hold + row * self._row + slot]

    def records(self, start: int) -> Iterator[memoryview]:
        """The records from a position up to the published one."""
        capacity, position = self._ring_bytes, start
        while position != self.published:
            at = self._ring_offset + position % capacity
            nbytes = self._words[at // 8]
            if nbytes == PAD:
                position += capacity - position % capacity
                continue
            yield self._bytes[at + 8 : at + 8 + nbytes]
            position += record_footprint(nbytes)

    def _member(self, row: int) -> int:
        return (layout.MEMBERS_OFFSET + row * layout.MEMBER_BYTES) // 8


def words_of(segment: Any) -> Words:
    """The words of a mapped segment, as they are whenever they are asked for."""
    return Words(segment.layout, memoryview(ffi.buffer(segment.mapping.control, segment.layout.control_bytes)))


# ---- message slots --------------------------------------------------------------------------------------------------


@dataclass
class Reference:
    """What a reader's process has to do with a slot: the phase, and the grant that it got."""

    phase: str
    grant: Grant


@dataclass
class SlotsPrivate:
    """What the processes keep to themselves.

    Attributes:
        owners: the writer's `SlotWriter.states`.
        required: the writer's `SlotWriter.required`, a mask of rows for each slot.
        members: the writer's `RingWriter.members`, a mask of rows.
        message: the slots of the message under way, in order.
        alive: which rows' processes live.
        references: for each row, by slot; the writer's own, with its loans, is the last one.
        is_complete: whether a slot's extent holds the bytes of its generation.
    """

    owners: Sequence[Owner]
    required: Sequence[int]
    members: int
    message: Sequence[int]
    alive: Sequence[bool]
    references: Sequence[Mapping[int, Reference]]
    is_complete: Callable[[int], bool]


OWNERS = {
    Owner.FREE: slots.FREE,
    Owner.CLAIMED: slots.CLAIMED,
    Owner.PUBLISHED: slots.PUBLISHED,
    Owner.SENT: slots.PUBLISHED,
    Owner.LOANED: slots.LOANED,
}


def message_slots(config: slots.Config, words: Words, private: SlotsPrivate) -> slots.State:
    """The state of the message-slot model that the bytes and the private state mean."""
    rows, numbers = range(config.rows), range(config.slots)
    generations = [words.generation(slot) for slot in numbers]
    members = tuple([_membership(words, private, row) for row in range(config.readers)]) + (slots.LENDER,) * config.loans
    current = next((slot for slot in private.message if private.owners[slot] is Owner.CLAIMED), slots.NO_SLOT)
    return slots.State(
        writer=_writer(private, current),
        current=current,
        pending=tuple([slot for slot in private.message if private.owners[slot] is Owner.PUBLISHED]),
        slots=tuple([_slot(words, private, rows, slot, generations[slot]) for slot in numbers]),
        alive=tuple(private.alive),
        members=members,
        refs=tuple([_references(private.references[row], generations) for row in rows]),
        queues=tuple([_queue(words, row, generations) if members[row] in slots.IN_VIEW else () for row in rows]),
        quarantine=((),) * config.rows,
        orphans=((),) * config.rows,
    )


def _writer(private: SlotsPrivate, current: int) -> str:
    if current == slots.NO_SLOT:
        return slots.IDLE
    return slots.PUBLISH if private.is_complete(current) else slots.COPY


def _membership(words: Words, private: SlotsPrivate, row: int) -> str:
    has_left = words.member(row).state is layout.State.LEFT
    if private.members >> row & 1:
        return slots.LEAVING if has_left else slots.JOINED
    return slots.LEFT if has_left else slots.EMPTY


def _slot(words: Words, private: SlotsPrivate, rows: range, slot: int, generation: int) -> slots.Slot:
    required = private.required[slot]
    return slots.Slot(
        OWNERS[private.owners[slot]],
        private.is_complete(slot),
        tuple([words.done(row, slot) == generation for row in rows]),
        tuple([bool(required >> row & 1) for row in rows]),
    )


def _references(references: Mapping[int, Reference], generations: Sequence[int]) -> tuple[slots.Ref, ...]:
    row = [slots.UNUSED] * len(generations)
    for slot, reference in references.items():
        row[slot] = slots.Ref(reference.phase, reference.grant.generation == generations[slot])
    return tuple(row)


def _queue(words: Words, row: int, generations: Sequence[int]) -> tuple[slots.Message, ...]:
    messages = [Record(record).grants() for record in words.records(words.consumed(row))]
    return tuple(
        [tuple([slots.Entry(g.slot, g.generation == generations[g.slot]) for g in message]) for message in messages]
    )


def observable_slots(config: slots.Config, state: slots.State) -> slots.State:
    """The normal form: what a later step can depend on."""
    nobody = (False,) * config.rows
    seen = []
    for number, (owner, complete, done, required) in enumerate(state.slots):
        if config.is_free(config, state, number):
            seen.append(slots.Slot(slots.FREE, False, nobody, nobody))
        else:
            owed = tuple([is_done and is_required for is_done, is_required in zip(done, required, strict=True)])
            seen.append(slots.Slot(owner, complete, owed, required))
    return state._replace(slots=tuple(seen))


# ---- object slots ---------------------------------------------------------------------------------------------------


@dataclass
class ObjectsPrivate:
    """What the processes keep to themselves, of a table that carries objects only.

    Attributes:
        owners: the writer's `SlotWriter.states`.
        draining: by slot the evicted generation, and the mask of the rows that were seen without it since.
        alive: which rows' processes live.
        counts: for each row, by slot: its process's leases.
        references: for each row, by slot: its gets and leases, as a phase and a generation.
        holds_bytes_of: whether a slot's extent holds the bytes of a generation.
    """

    owners: Sequence[Owner]
    draining: Mapping[int, tuple[int, int]]
    alive: Sequence[bool]
    counts: Sequence[Sequence[int]]
    references: Sequence[Sequence[Sequence[tuple[str, int]]]]
    holds_bytes_of: Callable[[int, int], bool]


def object_slots(config: objects.Config, words: Words, private: ObjectsPrivate) -> objects.State:
    """The state of the object-slot model that the bytes and the private state mean; a living writer's."""
    return objects.State(
        True,
        tuple([_object_slot(config, words, private, slot) for slot in range(config.slots)]),
        tuple([_object_reader(config, words, private, row) for row in range(config.readers)]),
    )


def object_label(words: Words, slot: int, generation: int) -> str:
    """Which of its slot's generations that is: an eviction moves the word on by one, a claim by more."""
    if not generation:
        return objects.NOTHING
    return {0: objects.CURRENT, 1: objects.EVICTED}.get(words.generation(slot) - generation, objects.OLDER)


def _object_slot(config: objects.Config, words: Words, private: ObjectsPrivate, slot: int) -> objects.Slot:
    generation = words.generation(slot)
    is_open = generation > 0 and generation % 2 == 0  # to the readers: a handle may match
    evicted, clear = private.draining.get(slot, (None, 0))
    if private.owners[slot] is Owner.FREE:
        owner, of = objects.FREE, None
    elif evicted is not None:
        owner, of = objects.DRAINING, evicted
    else:
        owner, of = (objects.LIVE, generation) if is_open else (objects.FILLING, generation + 1)
    if is_open and owner != objects.LIVE:
        owner = f"{owner}, and open"  # no state of the model
    complete = of is not None and private.holds_bytes_of(slot, of)
    return objects.Slot(owner, complete, tuple([bool(clear >> row & 1) for row in range(config.readers)]), objects.NOTHING)


def _object_reader(config: objects.Config, words: Words, private: ObjectsPrivate, row: int) -> objects.Reader:
    member = objects.EMPTY if words.member(row).state is layout.State.EMPTY else objects.JOINED
    holds = []
    for slot in range(config.slots):
        word = object_label(words, slot, words.hold(row, slot))
        found = [objects.Reference(phase, object_label(words, slot, g)) for phase, g in private.references[row][slot]]
        count = private.counts[row][slot] if private.alive[row] else 0
        holds.append(objects.Hold(word, count, word, tuple(sorted(found))))
    return objects.Reader(private.alive[row], member, tuple(holds))


def observable_objects(state: objects.State) -> objects.State:
    """The normal form: what can be seen."""
    seen = [
        objects.Slot(owner, complete and owner != objects.FREE, clear, objects.NOTHING)
        for owner, complete, clear, *_ in state.slots
    ]
    readers = [
        each._replace(
            holds=tuple([hold._replace(counted=hold.counted if each.alive else 0, visible=hold.word) for hold in each.holds])
        )
        for each in state.readers
    ]
    return state._replace(slots=tuple(seen), readers=tuple(readers))


# ---- ring -----------------------------------------------------------------------------------------------------------


@dataclass
class RingPrivate:
    """What the processes keep to themselves: where each is in its code, and how far shutdown() has come.

    Attributes:
        writer_step, reader_steps: a `WriterStep` and a `ReaderStep` each. A process in `futex_wait` is ASLEEP here; the
            abstraction finds out from its park word whether it has been woken.
        position: the writer's `RingWriter.position`.
        members: the writer's `RingWriter.members`.
        reader_positions: each reader's own, in bytes.
        closed, shutdown: of each reader.
        record_bytes: what one record takes; the model counts records.
    """

    writer_step: str
    reader_steps: Sequence[str]
    position: int
    members: int
    reader_positions: Sequence[int]
    closed: Sequence[bool]
    shutdown: Sequence[int]
    record_bytes: int


def ring_of(config: ring.Config, words: Words, private: RingPrivate) -> ring.State:
    """The state of the ring model that the bytes and the private state mean; all store buffers are empty."""
    rows = range(config.readers)
    members = tuple([bool(private.members >> row & 1) for row in rows])
    park = [words.park(row) for row in rows]
    readers = []
    for row in rows:
        step = private.reader_steps[row]
        if step == ring.ReaderStep.ASLEEP and not park[row]:  # whoever takes the flag wakes: see wake_if_parked
            step = ring.ReaderStep.LOOK
        position = 0 if step in ring.WITHOUT_POSITION else private.reader_positions[row] // private.record_bytes
        readers.append(ring.Reader(step, position, (), private.closed[row], private.shutdown[row]))
    writer_step = private.writer_step
    if writer_step == ring.WriterStep.ASLEEP and not words.writer_park:
        writer_step = ring.WriterStep.RESERVE
    state = ring.State(
        ring.Writer(writer_step, 0, private.position // private.record_bytes, (), members),
        tuple(readers),
        words.published // private.record_bytes,
        (*park, words.writer_park),
        tuple([words.consumed(row) // private.record_bytes if members[row] else None for row in rows]),
    )
    return observable_ring(state)


def observable_ring(state: ring.State) -> ring.State:
    """The normal form: what a later step can depend on."""
    nobodys = ring.DEAD | {ring.ReaderStep.JOINING, ring.ReaderStep.GONE}
    for row, reader in enumerate(state.readers):
        if reader.step in nobodys:
            state = ring.with_park_word(state, row, ring.RUNNING)
            state = state._replace(readers=put(state.readers, row, ring.Reader(reader.step, 0)))
    if state.writer.step == ring.WriterStep.DEAD:
        state = ring.with_park_word(state, len(state.readers), ring.RUNNING)
    return ring.normal(state)
