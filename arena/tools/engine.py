"""The demo's engine: starts the workers, sends the waves, measures, and reports."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from arena.statistics import Statistics
from arena.tools import worker
from arena.tools.cached import CachedWriter
from arena.tools.exits import CommandFailed
from arena.tools.images import FrameSize
from arena.tools.processes import deaf_to_interrupts
from arena.tools.report import Result, Sample, summarise
from arena.tools.transports import TRANSPORTS, ArenaWriter, Writer
from arena.tools.workload import Payload, Step, payloads, renewed, wave

CACHED = "arena + cache"
STEP_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 10.0


class WorkerFailed(CommandFailed):
    """A worker raised, ended or fell silent; the text says which and why."""


class Crew:
    """The worker processes and the writers that reach them."""

    def __init__(self, n_workers: int, names: Sequence[str], device: str | None = None) -> None:
        self.n_workers = n_workers
        self._device = device
        self.writers: dict[str, Writer] = {}
        self._acknowledgements: list[Connection] = []
        self._processes: list[BaseProcess] = []
        try:
            for name in names:
                self.writers[name] = {**TRANSPORTS, CACHED: CachedWriter}[name](n_workers)
            with deaf_to_interrupts():
                self._start(names[0])
            for name, writer in self.writers.items():
                self._await_ready(name, writer)
        except BaseException:
            self.close(timeout_s=0)
            raise

    def _start(self, first: str) -> None:
        context = multiprocessing.get_context("spawn")
        for rank in range(self.n_workers):
            receiving, sending = context.Pipe(duplex=False)
            endpoints = {name: writer.endpoint(rank) for name, writer in self.writers.items()}
            process = context.Process(
                target=worker.run, args=(rank, endpoints, first, sending, self._device), name=f"worker-{rank}", daemon=True
            )
            process.start()
            sending.close()
            self._acknowledgements.append(receiving)
            self._processes.append(process)

    def _await_ready(self, name: str, writer: Writer) -> None:
        """In the order in which the workers connect; a worker that has failed is told at once."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                return writer.wait_until_ready(timeout_s=1.0)
            except TimeoutError:
                self._raise_failures()
                if time.monotonic() > deadline:
                    raise WorkerFailed(f"{name}: not all workers connected within {READY_TIMEOUT_S} s") from None

    def _raise_failures(self) -> None:
        for rank, connection in enumerate(self._acknowledgements):
            if connection.poll():
                self._read(connection, rank)

    def step(self, transport: str, step: Step) -> tuple[Sample | None, list[str]]:
        """Send one step, await every acknowledgement; the sample if it brought an image, and the wrong tensors."""
        writer = self.writers[transport]
        before, cpu_ns, start_ns = writer.counters(), time.process_time_ns(), time.monotonic_ns()
        try:
            writer.send(step, STEP_TIMEOUT_S)
        except ConnectionError:  # of a pipe that nobody reads any more
            raise self._who_ended() from None
        sent_ns = time.monotonic_ns()
        answers = self._await_acknowledgements(step.number)
        cpu_ns = time.process_time_ns() - cpu_ns
        wrong = [f"{transport}, worker {answer.rank}: {fault}" for answer in answers for fault in answer.wrong]
        if not step.new_requests:
            return None, wrong
        payload = step.new_requests[0].payload
        sample = Sample(
            payload.name,
            payload.nbytes,
            (sent_ns - start_ns) / 1e6,
            (max(answer.received_ns for answer in answers) - start_ns) / 1e6,
            cpu_ns / 1e6,
            writer.counters().since(before).bytes_copied,
        )
        return sample, wrong

    def _await_acknowledgements(self, number: int) -> list[worker.Acknowledgement]:
        waiting = {connection: rank for rank, connection in enumerate(self._acknowledgements)}
        answers = []
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while waiting:
            ready = wait(list(waiting), deadline - time.monotonic())
            if not ready:
                raise WorkerFailed(f"no answer to step {number} within {STEP_TIMEOUT_S} s from {[*waiting.values()]}")
            for connection in [each for each in waiting if each in ready]:
                answers.append(self._read(connection, waiting.pop(connection)))
        return answers

    def _who_ended(self) -> WorkerFailed:
        ended = wait(self._acknowledgements, EXIT_TIMEOUT_S)
        ranks = [str(rank) for rank, connection in enumerate(self._acknowledgements) if connection in ended]
        return WorkerFailed(f"worker {', '.join(ranks)} ended without a word")

    @staticmethod
    def _read(connection: Connection, rank: int) -> worker.Acknowledgement:
        try:
            answer = connection.recv()
        except EOFError:
            raise WorkerFailed(f"worker {rank} ended without a word") from None
        if isinstance(answer, worker.Failure):
            raise WorkerFailed(f"worker {answer.rank} failed: {answer.text}")
        if not isinstance(answer, worker.Acknowledgement):
            raise WorkerFailed(f"worker {rank} answered with {answer!r:.100}")
        return answer

    def close(self, timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Let the workers end, end those that do not, release the transports."""
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for writer in self.writers.values():
            writer.close()
        for connection in self._acknowledgements:
            connection.close()


@contextlib.contextmanager
def crew(n_workers: int, names: Sequence[str], device: str | None = None) -> Iterator[Crew]:
    """A `Crew` that is gone afterwards; at once if something went wrong."""
    running = Crew(n_workers, names, device)
    try:
        yield running
    except BaseException:
        running.close(timeout_s=0)
        raise
    running.close()


Progress = Callable[[str, float], object]
"""Called with what is being done and the part of the whole that is done."""


def run(
    n_workers: int,
    seconds: float,
    sizes: Sequence[FrameSize],
    seed: int,
    names: Sequence[str],
    progress: Progress,
    *,
    repeat: bool = False,
    device: str | None = None,
) -> Result:
    """The main job: the same waves of requests over every transport, in turns, for each size.

    With `repeat`, half of the images of each wave have been sent before, and half are new.
    """
    result = Result(n_workers, seed)
    rng = random.Random(seed)
    progress("starting the workers", 0.0)
    with crew(n_workers, names, device) as running:
        turns = _Turns(running, names, rng, result)
        for index, size in enumerate(sizes):
            progress(f"{size}: preparing images", index / len(sizes))
            images = payloads(size, seed + index)
            if repeat:
                for name in names:
                    turns.wave(name, images)
            deadline = time.monotonic() + seconds / len(sizes)
            looked = _lookups(running)
            before = {name: writer.counters() for name, writer in running.writers.items()}
            samples: dict[str, list[Sample]] = {name: [] for name in names}
            for number in itertools.count():
                shown = renewed(images, number) if repeat else images
                for name in names:
                    left = max(0.0, deadline - time.monotonic()) * len(sizes) / seconds
                    progress(f"{size}: {name}", (index + 1 - left) / len(sizes))
                    samples[name] += turns.wave(name, shown)
                if time.monotonic() > deadline:
                    break
            for name in names:
                counters = running.writers[name].counters().since(before[name])
                result.rows.append(summarise(str(size), name, samples[name], counters))
            lookups, hits = _lookups(running)
            result.lookups += lookups - looked[0]
            result.hits += hits - looked[1]
        turns.finish()
        result.slots_leaked = _slots_leaked(running)
    return result


class _Turns:
    """Sends waves by turns; a step tells the workers where the next one comes from, so it is held back till then."""

    def __init__(self, running: Crew, names: Sequence[str], rng: random.Random, result: Result) -> None:
        self._crew, self._rng, self._result = running, rng, result
        self._names = names
        self._number = 0

    def wave(self, name: str, images: Sequence[Payload]) -> list[Sample]:
        """One wave over one transport, after which the workers listen to the transport that comes next."""
        samples = []
        following = self._names[(self._names.index(name) + 1) % len(self._names)]
        for step in (steps := list(wave(images, self._number, self._rng))):
            step.then_listen_to = following if step is steps[-1] else None
            sample, wrong = self._crew.step(name, step)
            self._result.wrong += wrong
            if sample is not None:
                samples.append(sample)
        self._number += len(steps)
        self._result.tensors_verified += 2 * self._crew.n_workers * sum(len(image.tensors) for image in images)
        return samples

    def finish(self) -> None:
        """Tell the workers that this was all."""
        step = next(wave([], self._number, self._rng))
        step.last = True
        self._crew.step(self._names[0], step)


def _lookups(running: Crew) -> tuple[int, int]:
    writer = running.writers.get(CACHED)
    return writer.lookups() if isinstance(writer, CachedWriter) else (0, 0)


def _slots_leaked(running: Crew) -> int | None:
    writer = running.writers.get("arena")
    if not isinstance(writer, ArenaWriter):
        return None
    figures: Statistics = writer.queue.statistics()
    return figures.slots_total - figures.slots_free
