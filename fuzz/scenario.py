"""What a writer and a reader do in a match: every kind of message, holds, waits, an abort, a full ring, a shutdown.

Both can be armed: before their k-th access to a shared word a signal hits them.  A signal that raises (SIGUSR1) is met as a
user would meet it: the call is made again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from arena import Handle, MessageQueue
from arena.errors import AttachError, Cancelled, WriterDied
from arena.shm.native import lib
from fuzz import belongings, messages, planted
from fuzz.workers import LIMIT_S, Side

T = TypeVar("T")

OUT_OF_BAND = len(messages.KINDS) - 1  # the first message that a stopped reader can hold up
BEFORE_HALF = OUT_OF_BAND - 1  # one that is cut short is one more
AFTER_HALF = 14
POLL_S = 0.2


@dataclass(frozen=True)
class Arm:
    """A signal before a step.

    Attributes:
        role: ``writer``, ``reader`` (from its admission on) or ``joiner`` (from before it attaches).
        rank: of the reader.
        at: the step.
        signal: its number.
    """

    role: str
    rank: int
    at: int
    signal: int

    def __str__(self) -> str:
        who = self.role if self.role == "writer" else f"{self.role} {self.rank}"
        return f"{signal.Signals(self.signal).name} before step {self.at} of {who}"


class Interrupted(Exception):
    """What the handler of SIGUSR1 raises."""


@dataclass
class Report:
    """What a writer or reader did and saw.

    Attributes:
        numbers: of the messages received, or sent without doubt.
        doubtful: of those whose enqueue was interrupted.
        interrupted: how often a call was.
        ended: why it stopped: ``end``, or the name of an error.
        wrong: what was not as it must be.
        left: what it still had after the end.
        steps: how many steps it took while armed.
        deaths: how many readers the writer saw die.
    """

    numbers: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    interrupted: int = 0
    ended: str = ""
    wrong: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    deaths: int = 0

    def insist(self, call: Callable[..., T], *arguments: Any) -> T:
        """Calls again what was interrupted."""
        while True:
            try:
                return call(*arguments)
            except Interrupted:
                self.interrupted += 1

    def check(self, message: Any) -> None:
        found = messages.wrong(message)
        if found:
            self.wrong.append(found)


def _raise(number: int, frame: FrameType | None) -> None:
    if frame is not None and frame.f_code is Report.insist.__code__:
        return  # between two calls: there is nothing to interrupt, and nobody here to catch it
    raise Interrupted


def arm_now(arm: Arm | None) -> None:
    """From here on this process is armed."""
    if arm is None:
        lib.arena_steps_arm(-1, 0)
    else:
        lib.arena_steps_arm(arm.at, arm.signal)


@contextmanager
def _handled(report: Report) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, _raise)
    try:
        yield
    finally:
        report.steps = lib.arena_steps_taken()
        lib.arena_steps_arm(-1, 0)
        signal.signal(signal.SIGUSR1, before)


# ---- a reader -------------------------------------------------------------------------------------------------------


def read(side: Side, handle: Handle, rank: int, arm: Arm | None, fault: str = "") -> Report:
    """Reads until the end of the match; says ``joined`` and ``half``.  A fault is one that the canary plants."""
    report = Report()
    before = belongings.own()
    with _handled(report):
        arm_now(arm if arm is not None and arm.role == "joiner" else None)
        _Reading(side, report, handle, rank, arm, fault).run()
    report.left = belongings.more_than(before)
    return report


class _Reading:
    def __init__(
        self, side: Side, report: Report, handle: Handle, rank: int, arm: Arm | None, fault: str
    ) -> None:
        self.side, self.report, self.handle, self.rank, self.arm = side, report, handle, rank, arm
        self.fault = fault
        self.held: list[Any] = []

    def run(self) -> None:
        report = self.report
        try:
            queue = report.insist(MessageQueue.create_from_handle, self.handle, self.rank)
        except (AttachError, WriterDied) as error:
            report.ended = type(error).__name__
            return
        try:
            report.insist(queue.wait_until_ready, LIMIT_S)
            report.insist(self.side.say, "joined")
            if self.arm is not None and self.arm.role == "reader":
                arm_now(self.arm)
            while not report.ended:
                report.insist(self._one, queue)
        except (WriterDied, Cancelled) as error:
            report.ended = type(error).__name__
        report.insist(self._look_at_held)
        report.insist(queue.shutdown)

    def _one(self, queue: MessageQueue) -> None:
        try:
            message: Any = queue.dequeue(POLL_S)
        except TimeoutError:
            return
        if planted.is_lost(self.fault, message["number"]):
            return
        self.report.numbers.append(message["number"])
        if self.fault:
            planted.plant(self.fault, message)
        self.report.check(message)
        mark = message.pop("mark", "")
        if message["number"] % 3 != 1:
            self.held.append(message)
        del message
        if len(self.held) > 5:
            self.report.check(self.held[0])
            del self.held[0]
        if mark == "half":
            self._look_at_held()
            self.side.say("half")
        if mark == "end":
            self.report.ended = "end"

    def _look_at_held(self) -> None:
        for message in self.held:
            self.report.check(message)
        self.held.clear()


# ---- the writer -----------------------------------------------------------------------------------------------------


def write(side: Side, n_readers: int, arm: Arm | None) -> Report:
    """Writes a whole match; says its handle and ``half``, and goes on when it is told to."""
    report = Report()
    before = belongings.own()
    with _handled(report):
        queue = MessageQueue(n_readers, n_readers, None, messages.CHUNK_BYTES, messages.CHUNKS, arena=messages.ARENA)
        side.say(queue.export_handle())
        arm_now(arm)
        _Writing(side, report, queue).run()
        del queue
    report.left = belongings.more_than(before)
    report.ended = "end"
    return report


class _Writing:
    def __init__(self, side: Side, report: Report, queue: MessageQueue) -> None:
        self.side, self.report, self.queue = side, report, queue
        self.number = 0

    def run(self) -> None:
        queue, report = self.queue, self.report
        report.insist(queue.wait_until_ready, LIMIT_S)
        for _ in range(BEFORE_HALF - 2):
            report.insist(self._send, "")
        report.insist(self._abort)
        for _ in range(2):  # a reader whose dequeue is interrupted loses a message
            report.insist(self._send, "half")
        report.insist(self.side.say, "half")
        report.insist(self.side.hear)
        report.insist(queue.reap)
        report.insist(queue.wait_until_ready, LIMIT_S)
        for _ in range(AFTER_HALF):
            report.insist(self._send, "")
        for _ in range(2):
            report.insist(self._send, "end")
        self._drain()
        report.deaths = report.insist(queue.statistics).deaths_total
        report.insist(queue.shutdown)

    def _send(self, mark: str) -> None:
        """One message, in doubt until enqueue has returned; cut short, it is called again and sends the next one."""
        number, self.number = self.number, self.number + 1
        self.report.doubtful.append(number)
        message = messages.build(number, self.queue)
        if mark:
            message["mark"] = mark
        if number >= OUT_OF_BAND and message["kind"] != "out of band":
            message["filler"] = bytes(3 * messages.CHUNK_BYTES // 4)  # fills the ring
        self.queue.enqueue(message, LIMIT_S)
        self.report.numbers.append(number)
        self.report.doubtful.remove(number)

    def _abort(self) -> None:
        """A message that cannot be pickled, after two of its buffers have their slots."""
        try:
            self.queue.enqueue({"a": messages.large(1), "b": messages.large(2), "c": lambda: 0}, LIMIT_S)
        except Interrupted:
            raise
        except Exception:
            return
        self.report.wrong.append("a lambda was pickled")

    def _drain(self) -> None:
        """All slots and bytes must come back, once the readers have dropped what they have."""
        deadline, pause_s = time.monotonic() + LIMIT_S / 2, 0.001
        while True:
            self.report.insist(self.queue.reap)
            now = self.report.insist(self.queue.statistics)
            if now.slots_free == now.slots_total and now.bytes_in_use == 0:
                return
            if time.monotonic() > deadline:
                lost = now.slots_total - now.slots_free
                self.report.wrong.append(f"{lost} slots and {now.bytes_in_use} bytes do not come back: {now.readers}")
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)  # each look takes many steps
