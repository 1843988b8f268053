"""The production slot code, step by step beside the model of the message slots.

Everything is in one process and in anonymous memory: a step of the model is one call of the code, and a snapshot of the
memory, with a copy of what each process keeps to itself, is a state that can be come back to.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial
from itertools import count
from typing import Any

from lockstep_walks import Mismatch, walk

from arena.message import codec
from arena.message.codec import Record
from arena.protocol.ring import Outcome, RingReader, RingWriter
from arena.protocol.slots import SlotReader, SlotWriter
from arena.shm.layout import EMPTY_WORD, PAGE, Layout, MemberWord, State
from arena.shm.native import ffi, geometry, lib
from spec.model import Step
from spec.models import message_slots_state as model_state
from spec.models.message_slots_actions import has_room
from spec.refine import Reference, SlotsPrivate, message_slots, observable_slots, words_of

PAYLOAD_BYTES = 64


class AnonymousSegment:
    """What the protocol code needs of a segment, over memory that has no file."""

    fd = -1
    writable_file = False

    def __init__(self, of: Layout) -> None:
        self.layout = of
        error = ffi.new("int *")
        self.mapping: Any = lib.arena_map(-1, geometry(of), lib.ARENA_ACCESS_SHARED, error)
        if self.mapping == ffi.NULL:
            raise OSError(error[0], "arena_map")

    @property
    def data_address(self) -> int:
        return int(ffi.cast("uintptr_t", self.mapping.data))

    def close(self) -> None:
        lib.arena_map_release(self.mapping)


def payload(slot: int, generation: int) -> bytes:
    """The bytes of one generation of a slot."""
    return struct.pack("<II", slot, generation) * (PAYLOAD_BYTES // 8)


class ReaderCode:
    """A reader's process: its ends of ring and slots, and what it holds."""

    def __init__(self, segment: Any, row: int, incarnation: int) -> None:
        self.entry = MemberWord(State.JOINING, row + 1, incarnation)
        self.ring = RingReader(segment, row, self.entry)
        self.slots = SlotReader(segment, row)
        self.alive = True
        self.references: dict[int, Reference] = {}
        self.views: dict[int, tuple[int, int]] = {}  # slot -> extent


class SlotCode:
    """The code under test. Each method with the name of an action performs it."""

    def __init__(self, config: model_state.Config) -> None:
        self.config = config
        self.segment = AnonymousSegment(Layout(config.readers, config.slots, PAGE, config.slots * PAGE))
        self.words = words_of(self.segment)
        self.writer = SlotWriter(self.segment)  # type: ignore[arg-type]
        self.ring = RingWriter(self.segment)  # type: ignore[arg-type]
        self.message: list[int] = []
        self.loans: dict[int, Reference] = {}  # what the writer's caller has in hand
        self._incarnations = count(1)
        self._leases: list[Any] = []
        self._expected = lru_cache(maxsize=1 << 16)(partial(expectation, config))
        self._control = ffi.buffer(self.segment.mapping.control, self.segment.layout.control_bytes)
        self._data = ffi.buffer(self.segment.mapping.data, self.segment.layout.data_bytes)
        self.readers: list[ReaderCode] = []
        for row in range(config.readers):
            self.readers.append(ReaderCode(self.segment, row, 0))
            self.admit(row)

    def close(self) -> None:
        for lease in self._leases:
            lease.drop()
        self.segment.close()

    # ---- the writer

    def claim(self, slot: int) -> None:
        """The model lets the writer take any free slot, the code takes the last of its list: put the wanted one there."""
        self.writer.collect()
        if slot in self.writer._free:
            self.writer._free.remove(slot)
            self.writer._free.append(slot)
        taken = self.writer.claim(PAYLOAD_BYTES)
        if taken != slot:
            raise Mismatch(f"claim gave {taken}, not slot {slot}")
        self.message.append(slot)

    def copy(self) -> None:
        slot = self.message[-1]
        source = ffi.from_buffer(payload(slot, self.writer.generations[slot]))
        if self.writer.copy(slot, source, 1):
            raise Mismatch("copy failed")

    def publish(self) -> None:
        self.writer.publish([self.message[-1]], self.ring.members)

    def enqueue(self) -> None:
        grants = [self.writer.grant(slot) for slot in self.message]
        filler = bytes(PAGE // self.config.queue - 8 - codec.header_bytes(len(grants), 0))  # so that `queue` records fit
        head, table = codec.pack(0, 0, [filler], grants, [], 0)
        position = self.ring.position
        parts = [head, table, filler]
        outcome = self.ring.send([ffi.from_buffer(part) for part in parts], [len(part) for part in parts])
        if outcome is not Outcome.OK:
            raise Mismatch(f"enqueue: {outcome!r}")
        self.writer.enqueue(self.message, position)
        self.message = []

    def abort(self) -> None:
        self.writer.abort(self.message)
        self.message = []

    def loan(self) -> None:
        slot = self.message.pop()
        self.writer.loan(slot)
        self.loans[slot] = Reference(model_state.LEASED, self.writer.grant(slot))

    def publish_loan(self, slot: int) -> None:
        self.writer.publish([slot], self.ring.members)
        self.message.append(slot)

    def release_loan(self, slot: int) -> None:
        """The caller's last tensor goes, as a reader's does in ``release``."""
        lib.arena_grant_drop(lib.arena_grant_open(self.segment.mapping, self.writer.loan_row, *self.loans.pop(slot).grant))

    def reclaim(self, row: int) -> None:
        self.ring.drop_reader(row)
        self.writer.reclaim(row)
        self.ring.clear_entry(row)

    def admit(self, row: int) -> None:
        reader = self.readers[row] = ReaderCode(self.segment, row, next(self._incarnations))
        if not lib.arena_member_claim(self.segment.mapping, row, EMPTY_WORD, reader.entry.pack()):
            raise Mismatch(f"the entry of reader {row} is not empty")
        self.ring.admit(row, reader.entry)
        if reader.ring.wait_admission(0) is not Outcome.OK:
            raise Mismatch(f"reader {row} does not see that it is admitted")

    def drop_reader(self, row: int) -> None:
        self.ring.drop_reader(row)
        self.writer.excuse_unread(row, self.ring.consumed(row))

    # ---- the readers

    def receive(self, row: int) -> None:
        reader = self.readers[row]
        if reader.ring.read() is not Outcome.OK:
            raise Mismatch(f"reader {row} finds no record")
        pointer, nbytes = reader.ring.record
        for grant in Record(memoryview(ffi.buffer(pointer, nbytes))).grants():
            reader.references[grant.slot] = Reference(model_state.RECEIVED, grant)
        reader.ring.finish()

    def lease(self, row: int, slot: int) -> None:
        reader = self.readers[row]
        lease = reader.slots.lease(reader.references[slot].grant)
        self._leases.append(lease)  # a restored snapshot may hold it again
        offset = lease.data - self.segment.data_address
        reader.views[slot] = offset, lease.nbytes
        reader.references[slot].phase = model_state.LEASED

    def skip(self, row: int, slot: int) -> None:
        self.readers[row].references[slot].phase = model_state.DROPPED

    def drop(self, row: int, slot: int, gated: bool) -> None:
        """The last view is gone: nothing is stored before the release."""
        reader = self.readers[row]
        del reader.views[slot]
        reader.references[slot].phase = model_state.DMA if gated else model_state.DROPPED

    def release(self, row: int, slot: int) -> None:
        """The last holder of the C grant goes. A grant is nothing but these numbers: a new one does for a restored one."""
        grant = self.readers[row].references.pop(slot).grant
        lib.arena_grant_drop(lib.arena_grant_open(self.segment.mapping, row, *grant))

    def leave(self, row: int) -> None:
        self.readers[row].ring.leave()

    # ---- the environment

    def dma_complete(self, row: int, slot: int) -> None:
        reader = self.readers[row]
        if reader.alive:
            reader.references[slot].phase = model_state.DROPPED
        else:
            del reader.references[slot]

    def reader_death(self, row: int) -> None:
        reader = self.readers[row]
        reader.alive = False
        reader.views.clear()
        reader.references = {s: held for s, held in reader.references.items() if held.phase == model_state.DMA}

    # ---- what is compared

    def take(self, step: Step) -> None:
        getattr(self, step.action.name)(*step.args)

    def state(self) -> model_state.State:
        """What can be seen of what the bytes and the private state mean."""
        return observable_slots(self.config, self.meaning())

    def meaning(self) -> model_state.State:
        private = SlotsPrivate(
            owners=self.writer.states,
            required=self.writer.required,
            members=self.ring.members,
            message=self.message,
            alive=[reader.alive for reader in self.readers] + [True] * self.config.loans,
            references=[reader.references for reader in self.readers] + [self.loans] * self.config.loans,
            is_complete=self.is_complete,
        )
        return message_slots(self.config, self.words, private)

    def is_complete(self, slot: int) -> bool:
        return self.bytes_at(self.writer.offsets[slot]) == payload(slot, self.words.generation(slot))

    def bytes_at(self, offset: int) -> bytes:
        return self._data[offset : offset + PAYLOAD_BYTES]

    def check(self, expected: model_state.State) -> None:
        """Raises Mismatch unless code and model agree on everything that can be seen."""
        found, (wanted, wanted_free, room) = self.state(), self._expected(expected)
        if found != wanted:
            raise Mismatch(difference(found, wanted))
        free = {*self.writer._free, *self.writer._released()[0]}
        if free != wanted_free:
            raise Mismatch(f"free are the slots {free} in the code and {wanted_free} in the model")
        if self.writer.usage()[0] != len(free):
            raise Mismatch(f"usage() counts {self.writer.usage()[0]} free slots, not {len(free)}")
        if (self.ring.reserve(PAGE // self.config.queue - 8) is Outcome.OK) != room:
            raise Mismatch("code and model differ on whether the ring has room")
        self.check_views()

    def check_views(self) -> None:
        """Every live view shows the bytes of its generation, and so does every loan."""
        for slot, loan in self.loans.items():
            if self.bytes_at(self.writer.offsets[slot]) != payload(*loan.grant):
                raise Mismatch(f"the loan of slot {slot} does not have the bytes of generation {loan.grant.generation}")
        for row, reader in enumerate(self.readers):
            for slot, (offset, nbytes) in reader.views.items():
                grant = reader.references[slot].grant
                if nbytes != PAYLOAD_BYTES or self.bytes_at(offset) != payload(*grant):
                    raise Mismatch(f"reader {row}'s view of slot {slot} does not show generation {grant.generation}")

    # ---- snapshots

    def snapshot(self) -> Any:
        """The control bytes, the payloads, and everything that the processes keep to themselves."""
        return (
            bytes(self._control),
            [self.bytes_at(slot * PAGE) for slot in range(self.config.slots)],
            saved(self.writer),
            bytes(ffi.buffer(self.ring._ring)),
            list(self.ring._words),
            self.message[:],
            [(slot, held.phase, held.grant) for slot, held in self.loans.items()],
            [
                (each.entry, each.alive, each.ring.admitted, bytes(ffi.buffer(each.ring._ring)),
                 [(slot, held.phase, held.grant) for slot, held in each.references.items()], each.views.copy())
                for each in self.readers
            ],
        )  # fmt: skip

    def restore(self, snapshot: Any) -> None:
        control, payloads, writer, ring, known, message, loans, readers = snapshot
        self._control[:] = control
        for slot, nbytes in enumerate(payloads):
            self._data[slot * PAGE : slot * PAGE + PAYLOAD_BYTES] = nbytes
        put_back(self.writer, writer)
        ffi.buffer(self.ring._ring)[:] = ring
        self.ring._words[0 : len(known)] = known
        self.message = message[:]
        self.loans = {slot: Reference(phase, grant) for slot, phase, grant in loans}
        for reader, (entry, alive, admitted, private, references, views) in zip(self.readers, readers):
            reader.entry = reader.ring._entry = entry
            reader.alive, reader.ring.admitted = alive, admitted
            ffi.buffer(reader.ring._ring)[:] = private
            reader.references = {slot: Reference(phase, grant) for slot, phase, grant in references}
            reader.views = views.copy()


PLAIN = (int, bool, float, str, bytes, type(None))


def saved(thing: Any) -> dict[str, Any]:
    """A copy of an object's attributes: plain values, containers of them, arrays of C, and objects made of these."""
    copies = {}
    for name, value in vars(thing).items():
        if isinstance(value, (list, dict, set)):
            copies[name] = value.copy()
        elif isinstance(value, PLAIN):
            copies[name] = value
        elif isinstance(value, ffi.CData):
            if ffi.typeof(value).kind == "array":
                copies[name] = list(value)
        elif type(value).__module__.startswith("arena.protocol"):
            copies[name] = saved(value)
    return copies


def put_back(thing: Any, copies: dict[str, Any]) -> None:
    """Makes an object what it was."""
    for name, copy in copies.items():
        value = getattr(thing, name)
        if isinstance(value, ffi.CData):
            value[0 : len(copy)] = copy
        elif isinstance(copy, dict) and not isinstance(value, dict):
            put_back(value, copy)
        elif isinstance(value, PLAIN):
            setattr(thing, name, copy)
        else:  # in place: others may hold it, too
            value.clear()
            value.extend(copy) if isinstance(value, list) else value.update(copy)


def expectation(config: model_state.Config, state: model_state.State) -> tuple[model_state.State, set[int], bool]:
    """What the model says that can be seen: its normal form, the free slots, and whether the ring has room."""
    free = {slot for slot in range(config.slots) if config.is_free(config, state, slot)}
    return observable_slots(config, state), free, has_room(config, state)


def difference(found: model_state.State, wanted: model_state.State) -> str:
    """The fields in which two states differ."""
    return "; ".join(
        f"{name}: the code means {here}, the model says {there}"
        for name, here, there in zip(found._fields, found, wanted)
        if here != there
    )


def main() -> None:
    """The sizes that take seconds: what the mutation runs ask."""
    from dataclasses import replace

    from spec.models import message_slots

    living = model_state.Config(without=("writer_death",))
    for config in (replace(living, readers=1, leave=True, skip=True), replace(living, slots=1, tensors=1, leave=True)):
        walk(message_slots.model(config), SlotCode(config))


if __name__ == "__main__":
    main()
