"""The production ring, call by call beside the model of ring and parking.

One process is sequentially consistent, so the model's store buffers are flushed within each call here: what a late store
can do is the business of `python -m spec orders` and of the model alone. A call of the code is the run of all model
steps that are parts of it (`Action.function`). Nobody really sleeps: whoever calls `sleep` is asleep until its park word is
taken, which is what a futex does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from lockstep_slots import AnonymousSegment
from lockstep_walks import Mismatch, walk

from arena.protocol.ring import Outcome, RingReader, RingWriter
from arena.shm.layout import EMPTY_WORD, PAGE, Layout, MemberWord, State
from arena.shm.native import ffi, lib
from spec.model import Model, Step
from spec.models import ring_state as model_state
from spec.models.ring_reader import flush_reader
from spec.models.ring_state import SHUTDOWN_DONE, ReaderStep, WriterStep
from spec.models.ring_writer import flush_writer
from spec.refine import RingPrivate, observable_ring, ring_of, words_of

ONE_CALL = {"wake_readers", "park", "read", "wake_writer", "shutdown", "leave", "last_look"}
PARTS = {"leave": {"leave", "wake_writer"}}  # the code wakes the writer in the same call


def calls(model: Model, state: model_state.State) -> Iterator[tuple[Step, model_state.State]]:
    """The calls that are possible in a state without stores under way, and where they lead once theirs are not either."""
    for step, after in model.successors(state):
        function = step.action.function
        if function in ONE_CALL:
            after = rest_of_call(model, step, PARTS.get(function, {function}), after)
        yield step, flushed(model, after)


def rest_of_call(model: Model, first: Step, functions: set[str], state: model_state.State) -> model_state.State:
    while True:
        state = flushed(model, state)
        following = [
            after
            for step, after in model.successors(state)
            if step.actor == first.actor and step.action.function in functions and step.action.progress
        ]
        if not following or (first.action.function == "read" and state.readers[first.args[0]].step == ReaderStep.LOOK):
            return state
        (state,) = following


def flushed(model: Model, state: model_state.State) -> model_state.State:
    """All stores have reached memory."""
    while state.writer.buffer:
        state = flush_writer(model.config, state)
    for row in range(model.config.readers):
        while state.readers[row].buffer:
            state = flush_reader(model.config, state, row)
    return state


class RingCode:
    """The code under test, and where each process is in it."""

    def __init__(self, config: model_state.Config) -> None:
        self.config = config
        self.segment = AnonymousSegment(Layout(config.readers, 1, PAGE, PAGE))
        self.words = words_of(self.segment)
        self.footprint = PAGE // config.capacity
        self.nbytes = self.footprint - 8
        self.writer = RingWriter(self.segment)  # type: ignore[arg-type]
        self._control = ffi.buffer(self.segment.mapping.control, self.segment.layout.control_bytes)
        self.writer_step = WriterStep.IDLE
        self.steps = [ReaderStep.DEAD] * config.readers
        self.shutdowns = [0] * config.readers
        self.readers: list[RingReader] = []
        for row in range(config.readers):
            self.readers.append(self.new_reader(row))
            self.join(row)
            self.admit(row)
        self.send_one()

    def send_one(self) -> None:
        """So that no position is 0: a word that was never stored must not look right."""
        self.writer.send([ffi.from_buffer(bytes(self.nbytes))], [self.nbytes])
        for reader in self.readers:
            reader.read()
            reader.finish()

    def close(self) -> None:
        self.segment.close()

    def new_reader(self, row: int) -> RingReader:
        return RingReader(self.segment, row, MemberWord(State.JOINING, row + 1, 1))  # type: ignore[arg-type]

    # ---- the writer

    def call_enqueue(self) -> None:
        self.writer_step = WriterStep.RESERVE

    def reserve(self) -> None:
        outcome = self.writer.reserve(self.nbytes)
        self.writer_step = {Outcome.OK: WriterStep.WRITE, Outcome.NO_ROOM: WriterStep.PARK}[outcome]

    def write(self) -> None:
        self.writer.write([ffi.from_buffer(bytes(self.nbytes))], [self.nbytes])
        self.writer_step = WriterStep.PUBLISH

    def publish(self) -> None:
        self.writer.publish(self.nbytes)
        self.writer_step = WriterStep.WAKE_FENCE

    def wake_readers(self) -> None:
        self.writer.wake_readers()
        self.writer_step = WriterStep.IDLE

    def writer_park(self) -> None:
        self.writer.park()
        self.writer_step = WriterStep.RECHECK

    def writer_recheck(self) -> None:
        outcome = self.writer.recheck(self.nbytes)
        after = {Outcome.OK: WriterStep.UNPARK_TO_WRITE, Outcome.NO_ROOM: WriterStep.SLEEP}
        self.writer_step = after.get(outcome, WriterStep.UNPARK)

    def writer_sleep(self) -> None:
        self.writer.sleep(0)
        self.writer_step = WriterStep.ASLEEP

    def writer_unpark(self) -> None:
        self.writer.unpark()
        self.writer_step = WriterStep.WRITE if self.writer_step == WriterStep.UNPARK_TO_WRITE else WriterStep.RESERVE

    def wake_writer_spuriously(self) -> None:
        self.writer_step = WriterStep.UNPARK

    end_writer_slice = wake_writer_spuriously

    def drop_dead(self, row: int) -> None:
        self.writer.drop_reader(row)
        self.writer.clear_entry(row)

    def drop_left(self, row: int) -> None:
        self.writer.drop_reader(row)

    def admit(self, row: int) -> None:
        self.writer.admit(row, self.readers[row]._entry)
        if self.readers[row].wait_admission(0) is not Outcome.OK:
            raise Mismatch(f"reader {row} is not admitted")
        self.steps[row] = ReaderStep.IDLE

    def writer_death(self) -> None:
        self.writer_step = WriterStep.DEAD

    # ---- the readers

    def call_dequeue(self, row: int) -> None:
        self.steps[row] = ReaderStep.LOOK

    def read(self, row: int) -> None:
        reader = self.readers[row]
        if reader.closed:
            self.steps[row] = ReaderStep.END
        else:
            self.steps[row] = ReaderStep.ADVANCE if reader.read() is Outcome.OK else ReaderStep.PARK

    def advance(self, row: int) -> None:
        self.readers[row].advance()
        self.steps[row] = ReaderStep.CURSOR_FENCE

    def wake_writer(self, row: int) -> None:
        self.readers[row].wake_writer()
        self.steps[row] = ReaderStep.IDLE

    def reader_park(self, row: int) -> None:
        self.readers[row].park()
        self.steps[row] = ReaderStep.RECHECK

    def reader_recheck(self, row: int) -> None:
        nothing = self.readers[row].recheck() is Outcome.EMPTY
        self.steps[row] = ReaderStep.SLEEP if nothing else ReaderStep.UNPARK

    def reader_sleep(self, row: int) -> None:
        self.readers[row].sleep(0)
        self.steps[row] = ReaderStep.ASLEEP

    def reader_unpark(self, row: int) -> None:
        self.readers[row].unpark()
        self.steps[row] = ReaderStep.LOOK

    def wake_reader_spuriously(self, row: int) -> None:
        self.steps[row] = ReaderStep.UNPARK

    def last_look(self, row: int) -> None:
        """The end of a slice: first the writer's life, then the ring."""
        if self.writer_step != WriterStep.DEAD or self.readers[row].last_look() is Outcome.OK:
            self.steps[row] = ReaderStep.UNPARK
        else:
            self.steps[row] = ReaderStep.WRITER_DIED

    def shutdown(self, row: int) -> None:
        self.readers[row].shutdown()
        self.shutdowns[row] = SHUTDOWN_DONE

    def leave(self, row: int) -> None:
        self.readers[row].leave()
        self.steps[row] = ReaderStep.GONE

    def reader_death(self, row: int) -> None:
        self.steps[row], self.shutdowns[row] = ReaderStep.DEAD, 0

    def join(self, row: int) -> None:
        reader = self.readers[row] = self.new_reader(row) if self.readers[row:] else self.readers[row]
        if not lib.arena_member_claim(self.segment.mapping, row, EMPTY_WORD, reader._entry.pack()):
            raise Mismatch(f"the entry of reader {row} is not empty")
        self.steps[row] = ReaderStep.JOINING

    # ---- what is compared

    def take(self, step: Step) -> None:
        """The call that a step begins."""
        action = step.action
        name = action.name if action.environment or action.function == "drop_reader" else action.function
        if name in ("park", "recheck", "sleep", "unpark"):
            name = f"{step.actor.split()[0]}_{name}"
        getattr(self, str(name))(*step.args)
        self.settle()

    def settle(self) -> None:
        """Whoever slept and was woken goes on."""
        if self.writer_step == WriterStep.ASLEEP and not self.words.writer_park:
            self.writer_step = WriterStep.RESERVE
        for row, step in enumerate(self.steps):
            if step == ReaderStep.ASLEEP and not self.words.park(row):
                self.steps[row] = ReaderStep.LOOK

    def check(self, expected: model_state.State) -> None:
        """Raises Mismatch unless code and model agree on everything that can be seen."""
        private = RingPrivate(
            writer_step=self.writer_step,
            reader_steps=self.steps,
            position=self.writer.position,
            members=self.writer.members,
            reader_positions=[int(reader._ring.position) for reader in self.readers],
            closed=[reader.closed for reader in self.readers],
            shutdown=self.shutdowns,
            record_bytes=self.footprint,
        )
        found, wanted = ring_of(self.config, self.words, private), observable_ring(expected)
        if found != wanted:
            fields = zip(found._fields, found, wanted)
            raise Mismatch("; ".join(f"{name}: code {one}, model {other}" for name, one, other in fields if one != other))

    def snapshot(self) -> Any:
        return (
            bytes(self._control), bytes(ffi.buffer(self.writer._ring)), list(self.writer._words), self.writer_step,
            self.steps[:], self.shutdowns[:], [bytes(ffi.buffer(reader._ring)) for reader in self.readers],
        )  # fmt: skip

    def restore(self, snapshot: Any) -> None:
        self._control[:], ffi.buffer(self.writer._ring)[:], words, self.writer_step, steps, shutdowns, readers = snapshot
        self.writer._words[0 : len(words)] = words
        self.steps, self.shutdowns = steps[:], shutdowns[:]
        for reader, private in zip(self.readers, readers):
            ffi.buffer(reader._ring)[:] = private


def main() -> None:
    """The sizes that take seconds: what the mutation runs ask."""
    from spec.models import ring

    calm = model_state.Config(readers=2, shutdown=False, deaths=False, spurious=False)
    for config in (model_state.Config(capacity=2), calm):
        with closing(RingCode(config)) as code:
            print(walk(ring.model(config), code, calls))


if __name__ == "__main__":
    main()
