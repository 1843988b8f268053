"""Scenarios of the object cache, registered like those of `scenarios.py`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arena.bench import readers
from arena.bench.harness import Figure, Sample, figure, interleaved, ratio, timed
from arena.bench.peers import shared_buffer
from arena.bench.scenarios import SEND_TIMEOUT_S, Bench, image, megabytes
from arena.tools.transports import (
    ArenaEndpoint,
    ArenaReader,
    ArenaWriter,
    Endpoint,
    OutOfBandWriter,
    Reader,
    Writer,
)

SMALL_BYTES = 1_000_000


class CacheQueueReader(ArenaReader):
    """The reading end of a queue with a cache in its arena: a message that is a handle becomes its object."""

    def __init__(self, handle: Any, rank: int) -> None:
        super().__init__(handle, rank)
        self.cache = self._queue.cache_reader()

    def receive(self, timeout_s: float) -> Any:
        from arena import CacheHandle

        message = super().receive(timeout_s)
        if message is not None and isinstance(message[1], CacheHandle):
            return message[0], self.cache.get(message[1])
        return message


@dataclass(frozen=True)
class CacheQueueEndpoint(ArenaEndpoint):
    """The queue's handle and the rank."""

    def open(self) -> Reader:
        return CacheQueueReader(self.handle, self.rank)


class CacheQueueWriter(ArenaWriter):
    """A queue with a cache in its arena."""

    def __init__(self, n_workers: int) -> None:
        super().__init__(n_workers)
        self.cache = self.queue.object_cache()

    def endpoint(self, rank: int) -> Endpoint:
        return CacheQueueEndpoint(self.queue.export_handle(), rank)


def time_gets(context: readers.Context, name: str, handles: list[Any], rounds: int) -> list[list[int]]:
    """Nanoseconds of each get, in turns; each object is dropped before the next one."""
    end = context.ends[name]
    if not isinstance(end, CacheQueueReader):
        raise TypeError(f"{name} has no cache")
    times: list[list[int]] = [[] for _ in handles]
    for _ in range(rounds):
        for handle, taken in zip(handles, times, strict=True):
            start_ns = time.monotonic_ns()
            value = end.cache.get(handle)
            taken.append(time.monotonic_ns() - start_ns)
            del value
    return times


def cache_get(bench: Bench) -> Iterator[Figure]:
    """A get must not depend on the object's size."""
    sizes = (bench.scale.large_bytes, SMALL_BYTES)
    writer = CacheQueueWriter(1)
    with bench.pool.connected(writer, 1):
        handles = [writer.cache.put(str(nbytes), image(nbytes)) for nbytes in sizes]
        large, small = bench.pool.call(1, time_gets, "queue", handles, 20 * bench.scale.rounds)[0]
    yield figure(f"get {megabytes(sizes[0])}", [taken / 1e3 for taken in large], "us", None)
    ratios = [a / b for a, b in zip(large, small, strict=True)]
    yield figure(f"get {megabytes(sizes[0])} ÷ get {megabytes(sizes[1])}", ratios, "x", 1.5)


def cache_put(bench: Bench) -> Iterator[Figure]:
    """A put is one copy."""
    from arena import ObjectCache

    nbytes = bench.scale.large_bytes
    source = image(nbytes)
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(shared_buffer(nbytes, warm=True))
        cache = stack.enter_context(ObjectCache(2 * nbytes, n_readers=0))
        samples = interleaved(
            [
                lambda: {"memcpy": timed(lambda: target.copy_from(source))},
                lambda: {"put": timed(lambda: cache.put("key", source))},
            ],
            bench.scale.rounds,
        )
    yield ratio(f"put {megabytes(nbytes)} ÷ memcpy", samples["put"], samples["memcpy"], limit=1.10, one_thread=True)


def cache_repeat(bench: Bench) -> Iterator[Figure]:
    """An image that all readers have seen, by its handle, against sending it again: as engines do, and through the arena."""
    count, nbytes = bench.scale.readers_many, bench.scale.large_bytes
    source = image(nbytes)
    arena, zmq = CacheQueueWriter(count), OutOfBandWriter(count)
    with bench.pool.connected(arena, count, "arena"), bench.pool.connected(zmq, count, "zmq"):
        arena.cache.put("image", source)

        def arrival(name: str, writer: Writer, end: str, body: Callable[[], object]) -> dict[str, Sample]:
            with bench.pool.following(writer, count, end):
                writer.send((True, None), SEND_TIMEOUT_S)
                bench.pool.answers(count)  # all of them wait
                sent = timed(lambda: writer.send((True, body()), SEND_TIMEOUT_S))
                return {name: sent.until(max(bench.pool.answers(count)))}

        samples = interleaved(
            [
                lambda: arrival("handle", arena, "arena", lambda: arena.cache.get_handle("image")),
                lambda: arrival("arena", arena, "arena", lambda: source),
                lambda: arrival("zmq", zmq, "zmq", lambda: source),
            ],
            bench.scale.rounds,
        )
    name = f"a repeated image of {megabytes(nbytes)} until the last of {count} readers has it"
    yield figure(name, [sample.wall_ns / 1e3 for sample in samples["handle"]], "us", None)
    yield ratio(f"{name} ÷ sending it again, pickled over zmq", samples["handle"], samples["zmq"], limit=0.01)
    yield ratio(f"{name} ÷ sending it again through the arena", samples["handle"], samples["arena"], limit=None)


CACHE_SCENARIOS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    scenario.__name__: scenario for scenario in (cache_get, cache_put, cache_repeat)
}
