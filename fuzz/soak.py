"""Everything at once, for as long as told: readers that hold, leave, are killed, stopped and come back; then a plot."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

from arena import ArenaConfig, Handle, MessageQueue
from arena.errors import AttachError, Cancelled
from fuzz import belongings, messages
from fuzz.session import Failure, Session, expect
from fuzz.workers import LIMIT_S, Pool, Side, Worker

ARENA = ArenaConfig(capacity_bytes=4 << 20, slots=64, divert_bytes=4096)
CHUNKS = 64
EVENT_S = 0.15
SAMPLE_S = 0.5
GROWTH_MAX_BYTES = 24 << 20
HELD_MAX = 8


@dataclass
class Sample:
    """The soak at one moment."""

    seconds: float
    messages_per_s: float
    writer_mib: float
    readers_mib: float
    arena_mib: float
    slots_busy: int
    descriptors: int
    kills: int


def soak(session: Session) -> None:
    """N readers under load with kills, rejoins, stops and shutdowns; memory and throughput over time, as plot and table."""
    if session.seconds is None:
        session.seconds = 30.0
    n_readers = int(session.options.get("readers", 3))
    with Pool() as pool:
        with MessageQueue(n_readers, n_readers, None, messages.CHUNK_BYTES, CHUNKS, arena=ARENA) as queue:
            samples = _Soak(session, pool, queue, n_readers).run()
        expect(not belongings.files_of([*pool.pids, os.getpid()]), f"files left: {belongings.files_of(pool.pids)}")
    _report(session, samples)
    _judge(session, samples)


class _Soak:
    def __init__(self, session: Session, pool: Pool, queue: MessageQueue, n_readers: int) -> None:
        self._session, self._pool, self._queue, self._n_readers = session, pool, queue, n_readers
        self._rng = session.rng("events")
        self._readers: dict[int, Worker] = {}
        self._number = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._kills = 0

    def run(self) -> list[Sample]:
        for rank in range(self._n_readers):
            self._start(rank)
        events = threading.Thread(target=self._make_events, daemon=True)
        self._queue.wait_until_ready(LIMIT_S)
        events.start()
        samples = []
        try:
            samples = self._send_and_sample()
        finally:
            self._over.set()
            events.join(2 * LIMIT_S)
        if self._failure is not None:
            raise self._failure
        self._finish()
        return samples

    def _start(self, rank: int) -> None:
        worker = self._pool.take()
        worker.start(read, self._queue.export_handle(), rank, self._rng.randrange(2**32))
        self._readers[rank] = worker

    # ---- the writer -------------------------------------------------------------------------------------------

    def _send_and_sample(self) -> list[Sample]:
        samples: list[Sample] = []
        started = last = time.monotonic()
        sent = 0
        while not self._session.over() and self._failure is None:
            self._queue.enqueue(messages.build(self._number, self._queue), LIMIT_S)
            self._number += 1
            now = time.monotonic()
            if now - last >= SAMPLE_S:
                samples.append(self._sample(now - started, (self._number - sent) / (now - last)))
                sent, last = self._number, now
                self._session.counts["messages"] = self._number
                self._session.count("samples")
        return samples

    def _sample(self, seconds: float, rate: float) -> Sample:
        now = self._queue.statistics()
        readers = sum(belongings.private_bytes(worker.pid) for worker in [*self._readers.values()])
        return Sample(
            seconds, rate, belongings.private_bytes() / 2**20, readers / 2**20, now.bytes_in_use / 2**20,
            now.slots_total - now.slots_free, len(os.listdir("/proc/self/fd")), self._kills,
        )  # fmt: skip

    # ---- what happens to readers ------------------------------------------------------------------------------

    def _make_events(self) -> None:
        try:
            while not self._over.wait(self._rng.random() * 2 * EVENT_S):
                self._event()
        except BaseException as error:
            self._failure = error

    def _event(self) -> None:
        rank = self._rng.randrange(self._n_readers)
        worker = self._readers[rank]
        chance = self._rng.random()
        if chance < 0.55:
            worker.signal(signal.SIGKILL)
            self._pool.end(worker)
            self._kills += 1
            self._session.count("kills")
            self._start(rank)
        elif chance < 0.8:
            worker.signal(signal.SIGSTOP)
            time.sleep(self._rng.random() * 0.1)
            worker.signal(signal.SIGCONT)
            self._session.count("stops")
        else:
            worker.tell("leave")
            worker.result()
            self._pool.give_back(worker)
            self._session.count("leaves and rejoins")
            self._start(rank)
        self._pool.fork_ahead()

    def _finish(self) -> None:
        """All readers get what is left, and drop it: everything comes back."""
        self._queue.wait_until_ready(LIMIT_S)
        for _ in range(2):
            self._queue.enqueue({"number": -1}, LIMIT_S)
        for worker in self._readers.values():
            worker.result()
        deadline = time.monotonic() + LIMIT_S
        while (now := self._queue.statistics()).slots_free < now.slots_total or now.bytes_in_use:
            expect(time.monotonic() < deadline, f"not drained: {now}")
            self._queue.reap()
            time.sleep(0.01)
        expect(now.deaths_total <= self._kills, f"{now.deaths_total} deaths were seen, {self._kills} readers were killed")


def read(side: Side, handle: Handle, rank: int, seed: int) -> int:
    """Reads, holds some, checks all; leaves when told."""
    rng, n, last = Random(seed), 0, -1
    held: list[Any] = []
    try:
        with MessageQueue.create_from_handle(handle, rank) as queue:
            while not side.heard():
                try:
                    message: Any = queue.dequeue(0.5)
                except TimeoutError:
                    continue
                if message["number"] < 0:
                    break
                expect(last < 0 or message["number"] == last + 1, f"message {message['number']} came after {last}")
                expect(not messages.wrong(message), messages.wrong(message))
                last, n = message["number"], n + 1
                held.append(message)
                while len(held) > rng.randrange(HELD_MAX):
                    old = held.pop(rng.randrange(len(held)))
                    expect(not messages.wrong(old), f"held, and changed: {messages.wrong(old)}")
                    del old
                del message
            held.clear()
            if side.heard():
                side.hear()
    except (AttachError, Cancelled) as error:
        raise Failure(f"reader {rank}: {error}") from error
    return n


# ---- afterwards -----------------------------------------------------------------------------------------------------


def _report(session: Session, samples: list[Sample]) -> None:
    """A table of ten lines, and a plot in the directory that was named."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*[field.name.replace("_", " ") for field in fields(Sample)], box=None)
    for sample in samples[:: max(1, len(samples) // 10)]:
        table.add_row(*[f"{value:.1f}" if isinstance(value, float) else str(value) for value in astuple(sample)])
    Console(stderr=True).print(table)
    output = session.options.get("output")
    if output is not None:
        _plot(samples, Path(output) / "soak.png")


def _plot(samples: list[Sample], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, sharex=True, figsize=(8, 8))
    seconds = [sample.seconds for sample in samples]
    for axis, names, unit in (
        (axes[0], ("messages_per_s",), "messages/s"),
        (axes[1], ("writer_mib", "readers_mib", "arena_mib"), "MiB"),
        (axes[2], ("slots_busy", "descriptors"), ""),
    ):
        for name in names:
            axis.plot(seconds, [getattr(sample, name) for sample in samples], label=name.replace("_", " "))
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower right")
    axes[2].set_xlabel(f"seconds ({samples[-1].kills} kills)")
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)


def _judge(session: Session, samples: list[Sample]) -> None:
    """The last third against the middle one: the writer's own memory and descriptors must not have grown."""
    expect(samples, "too short for a sample")
    third = max(1, len(samples) // 3)
    middle, end = samples[third : 2 * third] or samples, samples[-third:]

    def median(of: list[Sample], name: str) -> float:
        return float(statistics.median(getattr(sample, name) for sample in of))

    grown_mib = median(end, "writer_mib") - median(middle, "writer_mib")
    session.count("KiB grown", int(1024 * grown_mib))
    session.count("percent of the throughput", round(100 * median(end, "messages_per_s") / median(middle, "messages_per_s")))
    expect(grown_mib * 2**20 < GROWTH_MAX_BYTES, f"the writer's own memory grew by {grown_mib:.1f} MiB")
    expect(median(end, "descriptors") <= median(middle, "descriptors") + 8, "descriptors grow")
