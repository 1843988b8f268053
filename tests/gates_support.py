"""Random lives of pinned leases: a writer, readers with simulated devices, and everything that may come in between.

A `Schedule` is deterministic in its seed and its faults.  Every tensor has bytes of its own number, so that a slot that is
given back too early shows: in a view, or in what a device has copied.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from arena import ArenaConfig, MessageQueue
from arena.device.simulated import SimulatedDevice, SimulatedEvent, SimulatedStream
from arena.errors import DeviceBusy, DeviceError
from arena.message.gates import Gates

PAGE = 4096
CHUNK_BYTES = 16 * PAGE
STEPS = 60
ARENA = ArenaConfig(capacity_bytes=48 * PAGE, slots=4, divert_bytes=PAGE, quarantine_s=3600.0)

_BYTES = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8, generator=torch.Generator().manual_seed(7))


def content(number: int, nbytes: int) -> torch.Tensor:
    """The bytes of message ``number``."""
    start = number * 977 % (len(_BYTES) - nbytes)
    return _BYTES[start : start + nbytes]


class Device(SimulatedDevice):
    """A simulated device whose streams may be captured into a graph."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, gpus=1)
        self.captured: SimulatedStream | None = None
        self.sides = [self.new_stream(), self.new_stream()]

    def record(self, stream: SimulatedStream) -> SimulatedEvent:
        if stream is self.captured:
            raise DeviceBusy("captured")
        return super().record(stream)


@dataclass
class Held:
    """A tensor that a reader holds, and the stream that was current when it came."""

    number: int
    tensor: torch.Tensor
    stream: SimulatedStream

    @property
    def is_in_one_chunk(self) -> bool:
        """What is larger is for `to_device` alone."""
        return self.tensor.nbytes <= CHUNK_BYTES


@dataclass
class Copied:
    """What a device was asked to copy, and where to."""

    number: int
    target: torch.Tensor


@dataclass
class Side:
    """A reader's process, as far as it can be one in this one."""

    rank: int
    queue: MessageQueue
    device: Device
    unread: int = 0
    held: list[Held] = field(default_factory=list)
    copies: list[Copied] = field(default_factory=list)

    @property
    def gates(self) -> Gates:
        return gates_of(self.queue)


def gates_of(queue: MessageQueue) -> Gates:
    found: Any = queue._end
    assert isinstance(found.gates, Gates)
    return found.gates


def let_go(queue: MessageQueue, device: SimulatedDevice) -> None:
    """What the end of a process does, where a reader has only been shut down: no device is at work any more."""
    gates = gates_of(queue)
    queue.shutdown()
    device.drain()
    if gates._thread is not None:
        gates._thread.join(10)
    for address in list(gates._grants):
        gates._release(address)
    gates._finish()


class Corrupted(AssertionError):
    """Bytes, a slot or the driver's rules were violated."""


class Schedule:
    """One random life; `run` raises Corrupted when something is wrong."""

    def __init__(self, seed: int, *, quarantine: bool = True, forks: bool = False) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self._stack = ExitStack()
        readers = self.random.choice([1, 1, 2])
        arena = ARENA if quarantine else ArenaConfig(**{**_fields(ARENA), "quarantine_s": 0.0})
        self.writer = self._stack.enter_context(MessageQueue(readers, readers, None, 1 << 18, 4, arena=arena))
        self.number = 0
        self.dead: list[Side] = []
        self.sides = [self._join(rank) for rank in range(readers)]
        self.forks = forks
        self.writer.wait_until_ready(10)

    def _join(self, rank: int) -> Side:
        device = Device(self.random.randrange(1 << 30))
        return Side(rank, MessageQueue.create_from_handle(self.writer.export_handle(), rank, device=device), device)

    def run(self) -> None:
        actions = [
            (self.send, 16), (self.receive, 16), (self.drop, 12), (self.copy, 8), (self.copy_and_tell, 4),
            (self.copy_in_the_first_stream, 6), (self.copy_drop_and_look, 4), (self.advance, 10), (self.flush, 10),
            (self.change_stream, 8), (self.write_from_device, 4), (self.capture, 2), (self.hold_up, 3), (self.die, 1),
            (self.end_quarantine, 1),
        ]  # fmt: skip
        if self.forks:
            actions.append((self.fork, 1))
        calls, weights = zip(*actions, strict=True)
        failure = None
        try:
            for _ in range(STEPS):
                call: Callable[[Side], None] = self.random.choices(calls, weights)[0]
                call(self.random.choice(self.sides))
                self._look()
            self._end()
        except Corrupted as wrong:
            failure = str(wrong)
        finally:  # the exception is gone by now, and its frames, which hold tensors
            self._clean_up()
        if failure is not None:
            raise Corrupted(failure)

    # ---- what may happen --------------------------------------------------------------------------------------

    def send(self, side: Side) -> None:
        pages = self.random.choice([1, 1, 1, 1, 1, 2, 3, 20])
        with suppress(TimeoutError):
            self.writer.enqueue((self.number, content(self.number, pages * PAGE - self.random.randrange(64))), 0)
            for each in self.sides:
                each.unread += 1
        self.number += 1

    def receive(self, side: Side) -> None:
        if side.unread:
            number, tensor = side.queue.dequeue(10)
            side.unread -= 1
            side.held.append(Held(number, tensor, side.device.current_stream()))

    def drop(self, side: Side) -> None:
        if side.held:
            side.held.pop(self.random.randrange(len(side.held)))

    def copy(self, side: Side) -> None:
        if held := self._any(side):
            stream = self.random.choice([None, *side.device.sides])
            with suppress(DeviceError):
                side.copies.append(Copied(held.number, side.queue.to_device(held.tensor, "sim:0", stream=stream)))

    def copy_and_tell(self, side: Side) -> None:
        if (held := self._any(side)) and held.is_in_one_chunk:
            stream = self.random.choice(side.device.sides)
            self._copy(side, held, stream)
            side.queue.record_use(held.tensor, stream)

    def copy_in_the_first_stream(self, side: Side) -> None:
        """In the stream that was current when the tensor came: nobody is told."""
        if (held := self._any(side)) and held.is_in_one_chunk:
            self._copy(side, held, held.stream)
            if self.random.random() < 0.5:
                side.held.remove(held)

    def copy_drop_and_look(self, side: Side) -> None:
        """In the stream that is current when the end of the lease is noticed: nobody is told."""
        if (held := self._any(side)) and held.is_in_one_chunk:
            with side.device.stream(self.random.choice(side.device.sides)):
                self._copy(side, held, side.device.current_stream())
                side.held.remove(held)
                del held
                side.queue.flush_releases()

    def write_from_device(self, side: Side) -> None:
        """The device writes the same bytes into the memory that it holds: seen only if that is somebody else's by then."""
        if (held := self._any(side)) and held.is_in_one_chunk and side.gates._may_be_read(*side.gates._range(held.tensor)):
            source, stream = held.tensor.clone(), self.random.choice(side.device.sides)
            side.device.copy_back(source, held.tensor, stream)
            side.queue.record_use(held.tensor, stream)
            side.copies.append(Copied(held.number, source))

    def advance(self, side: Side) -> None:
        """The dead's devices are at work too, until their quarantine ends."""
        side = self.random.choice([side, side, *self.dead])
        if self.random.random() < 0.8:
            for _ in range(self.random.randint(1, 3)):
                side.device.step()
        else:
            side.device.advance(self.random.choice([0.001, 0.01]))

    def flush(self, side: Side) -> None:
        side.queue.flush_releases()

    def change_stream(self, side: Side) -> None:
        side.device._set_current(self.random.choice([side.device._defaults[0], *side.device.sides]))

    def capture(self, side: Side) -> None:
        side.device.captured = None if side.device.captured else self.random.choice(side.device.sides)

    def hold_up(self, side: Side) -> None:
        side.device.delay(self.random.choice([*side.device.sides, side.device.current_stream()]), 0.05)

    def die(self, side: Side) -> None:
        """Its views and everything that it would have done are gone; what its device does goes on, for a while."""
        end: Any = self.writer._end
        end.members._bury(side.rank)
        self.dead.append(side)
        self.sides[side.rank] = self._join(side.rank)
        self.writer.wait_until_ready(10)

    def end_quarantine(self, side: Side) -> None:
        """By then what the dead had begun is over: that is what the time is for."""
        for each in self.dead:
            each.device.drain()
        self._expire()

    def fork(self, side: Side) -> None:
        """A child drops everything that it inherited, and ends: nothing of that concerns its parent."""
        child = os.fork()
        if not child:
            code = 1
            try:
                for each in self.sides:
                    each.held.clear()
                    each.queue.shutdown()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise Corrupted(f"seed {self.seed}: a forked child ended with {status}")

    # ---- what must hold ---------------------------------------------------------------------------------------

    def _any(self, side: Side) -> Held | None:
        return self.random.choice(side.held) if side.held else None

    def _copy(self, side: Side, held: Held, stream: SimulatedStream) -> None:
        target = torch.empty_like(held.tensor)
        side.device.copy(held.tensor, target, stream)
        side.copies.append(Copied(held.number, target))

    def _look(self) -> None:
        for side in self.sides:
            for held in side.held:
                self._check(held.number, held.tensor, f"a view of reader {side.rank}")

    def _check(self, number: int, tensor: torch.Tensor, what: str) -> None:
        if not numpy.array_equal(tensor.numpy(), content(number, tensor.nbytes).numpy()):  # torch would start threads
            raise Corrupted(f"seed {self.seed}: {what} does not show message {number}")

    def _end(self) -> None:
        """The devices of the dead stop, all others finish: every byte is right and every slot is free."""
        for side in self.dead:
            side.device.drain()
        self._look()
        for side in self.sides:
            side.device.captured = None
            while side.unread:
                self.receive(side)
            side.held.clear()
            for _ in range(2):  # the first look marks, the second one sees the marks passed
                side.queue.flush_releases()
                side.device.drain()
            if waiting := side.queue.flush_releases():
                raise Corrupted(f"seed {self.seed}: {waiting} leases of reader {side.rank} are lost")
            for copied in side.copies:
                self._check(copied.number, copied.target, f"a copy of reader {side.rank}")
        self._expire()
        statistics = self.writer.statistics()
        if (statistics.slots_free, statistics.bytes_in_use) != (statistics.slots_total, 0):
            raise Corrupted(f"seed {self.seed}: {statistics.slots_total - statistics.slots_free} slots are lost")
        for side in self.sides:
            side.queue.shutdown()
            if side.device.violations or side.device.registered:
                raise Corrupted(f"seed {self.seed}: {side.device.violations}, registered {side.device.registered}")

    def _expire(self) -> None:
        end: Any = self.writer._end
        end.slots._fences.update(dict.fromkeys(end.slots._fences, 0.0))

    def _clean_up(self) -> None:
        """However it went: what a process's end gives back."""
        for side in [*self.sides, *self.dead]:
            side.held.clear()
            side.device.captured = None
            let_go(side.queue, side.device)
        self._stack.close()


def _fields(config: ArenaConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}
