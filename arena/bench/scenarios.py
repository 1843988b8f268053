"""One function for each promise about speed and memory: it measures, and yields the figures with their limits."""

from __future__ import annotations

import contextlib
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from arena.bench import readers
from arena.bench.harness import Figure, Sample, collector_off, figure, interleaved, ratio, timed
from arena.bench.peers import processor_clock, resident_bytes, shared_buffer
from arena.tools.transports import ArenaWriter, OutOfBandWriter, Writer

SEND_TIMEOUT_S = readers.SEND_TIMEOUT_S


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    large_bytes: int = 200_000_000
    medium_bytes: int = 16_000_000
    reader_counts: tuple[int, ...] = (1, 2, 4, 8)
    readers_many: int = 4
    rounds: int = 25
    segments: int = 5
    small_messages: int = 150
    burst_messages: int = 2000
    idle_s: float = 8.0
    resident_messages: int = 1000
    populate_bytes: int = 1 << 30
    populate_rounds: int = 5


FULL = Scale(populate_bytes=8 << 30, populate_rounds=3)

QUICK = Scale(
    large_bytes=2_000_000,
    medium_bytes=1_000_000,
    reader_counts=(1, 2),
    readers_many=2,
    rounds=3,
    segments=1,
    small_messages=10,
    burst_messages=50,
    idle_s=0.2,
    resident_messages=10,
    populate_bytes=64 << 20,
    populate_rounds=1,
)


@dataclass(frozen=True)
class Bench:
    """What a scenario works with."""

    scale: Scale = field(default_factory=Scale)
    pool: readers.Pool = field(default_factory=readers.Pool)


def megabytes(nbytes: int) -> str:
    """For the names of figures."""
    return f"{nbytes / 1e6:.0f} MB"


def image(nbytes: int) -> torch.Tensor:
    """A tensor whose pages are all its own."""
    return torch.arange(nbytes // 4, dtype=torch.int32)


def enqueue(bench: Bench) -> Iterator[Figure]:
    """A large tensor to 1, 2, 4 and 8 readers; the number of readers must not matter."""
    name = f"enqueue {megabytes(bench.scale.large_bytes)} ÷ memcpy"
    values = []
    for count in bench.scale.reader_counts:
        copies = _copies(bench, bench.scale.large_bytes, count)
        one = ratio(f"{name}, {count} readers", copies.sent, copies.memcpy, limit=1.10, one_thread=True)
        values.append(one.value)
        yield one
    yield figure("the same, most ÷ least over the numbers of readers", [max(values) / min(values)], "x", 1.10)


def arrival(bench: Bench) -> Iterator[Figure]:
    """Until the last reader holds the large tensor."""
    count = bench.scale.readers_many
    copies = _copies(bench, bench.scale.large_bytes, count)
    name = f"{megabytes(bench.scale.large_bytes)} until the last of {count} readers holds it ÷ memcpy"
    yield ratio(name, copies.arrived, copies.memcpy, limit=1.15)


def medium(bench: Bench) -> Iterator[Figure]:
    """The size at which the C library does not use streaming stores yet."""
    count = bench.scale.readers_many
    copies = _copies(bench, bench.scale.medium_bytes, count, rounds=4 * bench.scale.rounds)
    name = megabytes(bench.scale.medium_bytes)
    yield ratio(f"enqueue {name} ÷ memcpy, {count} readers", copies.sent, copies.memcpy, limit=1.10, one_thread=True)
    yield ratio(f"{name} until the last of {count} readers holds it ÷ memcpy", copies.arrived, copies.memcpy, limit=None)


def threads(bench: Bench) -> Iterator[Figure]:
    """Two threads copy one tensor: by as much sooner as the machine's memory, which others may use, has room for two."""
    from arena import ArenaConfig

    copies = _copies(bench, bench.scale.large_bytes, 1, config=ArenaConfig(copy_threads=2))
    name = f"enqueue {megabytes(bench.scale.large_bytes)} with two copy threads ÷ memcpy"
    yield ratio(name, copies.sent, copies.memcpy, limit=0.75)
    halves = _halves(bench.scale.large_bytes, bench.scale.rounds)
    yield ratio("the same memcpy by two threads, half each ÷ memcpy", halves["halves"], halves["memcpy"], limit=None)


def _halves(nbytes: int, rounds: int) -> dict[str, list[Sample]]:
    """The least that two threads can take here: each a plain memcpy of half, the threads waiting for it already."""
    source = image(nbytes)
    halves = [slice(0, nbytes // 8), slice(nbytes // 8, None)]
    with shared_buffer(nbytes // 2, warm=True) as low, shared_buffer(nbytes - nbytes // 2, warm=True) as high:
        with ThreadPoolExecutor(2) as pool, shared_buffer(nbytes, warm=True) as target:

            def copy_halves() -> None:
                parts = zip((low, high), halves, strict=True)
                wait([pool.submit(buffer.copy_from, source[half]) for buffer, half in parts])

            return interleaved(
                [lambda: {"memcpy": timed(lambda: target.copy_from(source))}, lambda: {"halves": timed(copy_halves)}],
                rounds,
            )


class _Copies(NamedTuple):
    memcpy: list[Sample]
    sent: list[Sample]
    arrived: list[Sample]


def _copies(bench: Bench, nbytes: int, count: int, *, rounds: int | None = None, config: Any = None) -> _Copies:
    """Per round: one memcpy; an enqueue until it returns; the same until the last reader has it."""
    source = image(nbytes)
    writer = ArenaWriter(count, config)
    with shared_buffer(nbytes, warm=True) as target, bench.pool.connected(writer, count):
        with bench.pool.following(writer, count):

            def send() -> dict[str, Sample]:
                sent = timed(lambda: writer.send((True, source), SEND_TIMEOUT_S))
                return {"sent": sent, "arrived": sent.until(max(bench.pool.answers(count)))}

            samples = interleaved(
                [lambda: {"memcpy": timed(lambda: target.copy_from(source))}, send], rounds or bench.scale.rounds
            )
    return _Copies(samples["memcpy"], samples["sent"], samples["arrived"])


def loan(bench: Bench) -> Iterator[Figure]:
    """Memory of the arena that the writer has filled in place."""
    nbytes = bench.scale.large_bytes
    writer = ArenaWriter(1)
    with bench.pool.connected(writer, 1), bench.pool.following(writer, 1):

        def publish() -> dict[str, Sample]:
            lent = writer.queue.loan((nbytes,), torch.uint8)
            lent.fill_(1)
            published = timed(lambda: writer.send((True, lent), SEND_TIMEOUT_S))
            bench.pool.answers(1)
            return {"published": published}

        samples = interleaved([publish], bench.scale.rounds)["published"]
    yield figure(f"publish a loan of {megabytes(nbytes)}", [sample.wall_ns / 1e6 for sample in samples], "ms", 0.5)


def view(bench: Bench) -> Iterator[Figure]:
    """A reader's time from asking to having a tensor must not depend on the tensor's size."""
    sizes = (bench.scale.large_bytes, 1_000_000)
    sources = [image(nbytes) for nbytes in sizes]
    writer = ArenaWriter(1)
    in_a_row = 4
    times: dict[int, list[int]] = {nbytes: [] for nbytes in sizes}
    with bench.pool.connected(writer, 1):
        for _ in range(bench.scale.rounds):
            for source in sources * in_a_row:
                writer.send((False, source), SEND_TIMEOUT_S)
            told = bench.pool.call(1, readers.time_receives, "queue", len(sizes) * in_a_row, False)[0]
            for index, nbytes in enumerate(sizes):
                times[nbytes] += told[len(sizes) + index :: len(sizes)]
    ratios = [large / small for large, small in zip(*times.values(), strict=True)]
    yield figure(f"dequeue to view, {megabytes(sizes[0])} ÷ {megabytes(sizes[1])}", ratios, "x", 1.5)


def small(bench: Bench) -> Iterator[Figure]:
    """A message of about 1 KB, one at a time and back to back, against pipes and ZMQ."""
    count, scale = bench.scale.readers_many, bench.scale
    body = {f"request-{index}": [index, index * 0.5, f"block-{index}"] for index in range(20)}
    body["pad"] = ["x" * (1024 - len(pickle.dumps(body)) - 20)]
    ours, zmq = ArenaWriter(count), OutOfBandWriter(count)
    with bench.pool.connected(ours, count, "arena"), bench.pool.connected(zmq, count, "zmq"):
        writers: dict[str, Writer] = {"arena": ours, readers.PIPE: bench.pool.pipes(count), "zmq": zmq}
        alone: dict[str, list[float]] = {name: [] for name in writers}
        burst: dict[str, list[float]] = {name: [] for name in writers}
        with collector_off():
            for number in range(scale.rounds):
                for name in list(writers)[:: 1 if number % 2 else -1]:
                    with bench.pool.following(writers[name], count, name):
                        alone[name].append(_one_at_a_time(bench, writers[name], body))
                        burst[name].append(_back_to_back(bench, writers[name], body))
    for title, times, limits in (
        (f"1 KB message to the last of {count} readers", alone, {readers.PIPE: 1.0, "zmq": None}),
        (f"1 KB messages back to back, {count} readers", burst, {readers.PIPE: 0.6, "zmq": None}),
    ):
        yield figure(title, times["arena"], "us", None)
        for peer, limit in limits.items():
            ratios = [a / b for a, b in zip(times["arena"], times[peer], strict=True)]
            yield figure(f"{title} ÷ {peer}", ratios, "x", limit)


def _one_at_a_time(bench: Bench, writer: Writer, body: object) -> float:
    """Median microseconds until the last reader has a message, every reader waiting for it."""
    times = []
    for _ in range(bench.scale.small_messages):
        sent = timed(lambda: writer.send((True, body), SEND_TIMEOUT_S))
        times.append(sent.until(max(bench.pool.answers(bench.scale.readers_many))).wall_ns / 1e3)
        time.sleep(0.0003)
    return statistics.median(times)


def _back_to_back(bench: Bench, writer: Writer, body: object) -> float:
    """Microseconds per message until the last reader has all."""

    def burst() -> None:
        for number in reversed(range(bench.scale.burst_messages)):
            writer.send((number == 0, body), SEND_TIMEOUT_S)

    sent = timed(burst)
    answered = sent.until(max(bench.pool.answers(bench.scale.readers_many)))
    return answered.wall_ns / 1e3 / bench.scale.burst_messages


def idle(bench: Bench) -> Iterator[Figure]:
    """Processor time of those who wait, in percent of one core."""
    writer = ArenaWriter(1)
    with bench.pool.connected(writer, 1), bench.pool.following(writer, 1):
        time.sleep(0.2)
        clock = processor_clock(bench.pool.pids(1)[0])
        before_ns = time.clock_gettime_ns(clock)
        time.sleep(bench.scale.idle_s)
        used_ns = time.clock_gettime_ns(clock) - before_ns
    yield figure("processor of an idle reader", [used_ns / bench.scale.idle_s / 1e7], "%", 0.1)

    parked = ArenaWriter(1, max_chunk_bytes=1 << 16, max_chunks=1)
    with bench.pool.connected(parked, 1):
        count = _fill(parked)
        sample = timed(lambda: _send_in_vain(parked, bench.scale.idle_s))
        bench.pool.call(1, readers.time_receives, "queue", count, True)
    yield figure("processor of a parked writer", [100 * sample.cpu_ns / sample.wall_ns], "%", 0.1)


def _fill(writer: Writer) -> int:
    """Send until the ring is full; the number of messages."""
    count = 0
    with contextlib.suppress(TimeoutError):
        while True:
            writer.send((False, bytes(4096)), 0.01)
            count += 1
    return count


def _send_in_vain(writer: Writer, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        writer.send((False, bytes(4096)), timeout_s)


def resident(bench: Bench) -> Iterator[Figure]:
    """Memory that the traffic of many messages leaves resident, two in flight."""
    source = image(9_000_000)
    with contextlib.ExitStack() as stack:
        before = [resident_bytes(), *bench.pool.call(1, readers.resident)]
        writer = ArenaWriter(1)
        stack.enter_context(bench.pool.connected(writer, 1))
        with bench.pool.following(writer, 1, keep=1):
            for _ in range(bench.scale.resident_messages):
                writer.send((True, source), SEND_TIMEOUT_S)
                bench.pool.answers(1)
        after = [resident_bytes(), *bench.pool.call(1, readers.resident)]
    for who, grown in zip(("writer", "reader"), (b - a for a, b in zip(before, after, strict=True)), strict=True):
        name = f"resident memory of the {who} after {bench.scale.resident_messages} x 9 MB, above before"
        yield figure(name, [grown / 1e6], "MB", 64)


def overhead(bench: Bench) -> Iterator[Figure]:
    """What an enqueue of a small message costs over pickling it, when nobody has to be woken."""
    body = {f"request-{index}": [index, index * 0.5, f"block-{index}"] for index in range(20)}
    writer = ArenaWriter(1)
    pickled_us, extra_us = [], []
    with bench.pool.connected(writer, 1):
        for _ in range(bench.scale.rounds):
            samples = interleaved(
                [
                    lambda: {"sent": timed(lambda: writer.queue.enqueue((False, body)))},
                    lambda: {"pickled": timed(lambda: pickle.dumps((False, body), protocol=5))},
                ],
                bench.scale.small_messages,
                warm_up=0,
            )
            medians = {name: statistics.median(s.wall_ns for s in taken) for name, taken in samples.items()}
            pickled_us.append(medians["pickled"] / 1e3)
            extra_us.append((medians["sent"] - medians["pickled"]) / 1e3)
            bench.pool.call(1, readers.time_receives, "queue", bench.scale.small_messages, True)
    yield figure("pickle.dumps of a message without large tensors", pickled_us, "us", None)
    yield figure("enqueue of the same, over pickle.dumps", extra_us, "us", 10)


def cold(bench: Bench) -> Iterator[Figure]:
    """The first large tensor of a new queue, all of whose pages are still to be taken."""
    nbytes = bench.scale.large_bytes
    source = image(nbytes)

    def first_send() -> dict[str, Sample]:
        writer = ArenaWriter(1)
        with bench.pool.connected(writer, 1):
            sent = timed(lambda: writer.send((False, source), SEND_TIMEOUT_S))
            bench.pool.call(1, readers.time_receives, "queue", 1, True)
        return {"sent": sent}

    def first_copy() -> dict[str, Sample]:
        with shared_buffer(nbytes, warm=False) as target:

            def populate_and_copy() -> None:
                target.populate()
                target.copy_from(source)

            return {"copied": timed(populate_and_copy)}

    samples = interleaved([first_send, first_copy], bench.scale.segments, warm_up=1)
    yield ratio(
        f"cold first {megabytes(nbytes)} ÷ (populate + memcpy)", samples["sent"], samples["copied"], 1.0, one_thread=True
    )


def lease(bench: Bench) -> Iterator[Figure]:
    """What holding a slot costs a reader, per tensor: the lease, its view and its release; then with all of unpickling."""
    in_a_row, cost_us = 20, []
    with contextlib.closing(ArenaWriter(1)) as writer:
        one = _one_lease(writer)
        with collector_off():
            for _ in range(20 * bench.scale.rounds):
                cost_us.append(timed(lambda: [one() for _ in range(in_a_row)]).wall_ns / in_a_row / 1e3)
    yield figure("a tensor's lease: view and release", cost_us, "us", 5)
    yield from _unpickled_tensors(bench)


def _one_lease(writer: ArenaWriter) -> Callable[[], None]:
    """What a reader does for a granted slot; nobody reads in this process, so its row of the slot is free to be used."""
    from arena.message.tensors import DLPACK, rebuild_tensor
    from arena.protocol.slots import SlotReader
    from arena.shm.native import capsules
    from arena.writer import WriterEnd

    lent = writer.queue.loan((1 << 16,), torch.bfloat16)
    end = cast(WriterEnd, writer.queue._end)
    slot, _ = cast("tuple[int, int]", end.slots.loan_at(lent.data_ptr(), lent.nbytes))
    grant, reader = end.slots.grant(slot), SlotReader(end.segment, 0)

    def one() -> None:
        lease = reader.lease(grant)
        make = partial(capsules.of_lease, lease, 0, lease.nbytes)
        tensor = rebuild_tensor(make, DLPACK[torch.bfloat16], lent.shape, None)
        lease.drop()
        del tensor

    return one


def _unpickled_tensors(bench: Bench) -> Iterator[Figure]:
    """A reader's cost per tensor of a message of many: found in it, unpickled, viewed, released."""
    tensors, in_a_row = 64, 4
    full = [image(128 << 10) for _ in range(tensors)]
    writer = ArenaWriter(1)
    cost_us = []
    with bench.pool.connected(writer, 1):
        for _ in range(bench.scale.rounds):
            for _ in range(in_a_row):
                writer.send((False, full), SEND_TIMEOUT_S)
                writer.send((False, []), SEND_TIMEOUT_S)
            told = bench.pool.call(1, readers.time_receives, "queue", 2 * in_a_row, True)[0]
            cost_us.append((statistics.median(told[::2]) - statistics.median(told[1::2])) / tensors / 1e3)
    yield figure("the same, unpickled out of a message of 64 tensors", cost_us, "us", None)


SCENARIOS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    scenario.__name__: scenario
    for scenario in (
        enqueue, arrival, medium, threads, loan, view, small, idle, resident, overhead, cold, lease,
    )
}  # fmt: skip
