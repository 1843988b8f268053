"""The demo's transport with a cache: images travel as handles once the workers' cache has them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from arena.tools.transports import ArenaEndpoint, ArenaReader, ArenaWriter, Counters, Endpoint, Reader
from arena.tools.workload import Payload, Step


class CachedWriter(ArenaWriter):
    """`arena.MessageQueue` with an object cache in the same memory."""

    def __init__(self, n_workers: int) -> None:
        from arena.mirrored import MirroredCache

        super().__init__(n_workers)
        self.cache = self.queue.object_cache()
        self._sender = MirroredCache.sender(self.cache)

    def endpoint(self, rank: int) -> Endpoint:
        return CachedEndpoint(self.queue.export_handle(), rank)

    def send(self, message: object, timeout_s: float) -> None:
        """The same step, with a parcel in the place of each request's tensors."""
        if isinstance(message, Step):
            message = copy.copy(message)
            message.new_requests = [
                replace(request, payload=replace(request.payload, tensors=self._parcel(request.payload)))
                for request in message.new_requests
            ]
        super().send(message, timeout_s)

    def _parcel(self, payload: Payload) -> Any:
        """A processor's output is known by the hash of its image, here by the checksums that the request carries anyway."""
        return self._sender.pack([("/".join([payload.name, *payload.checksums.values()]), payload.tensors)])[0]

    def counters(self) -> Counters:
        counters = super().counters()
        return replace(counters, bytes_copied=counters.bytes_copied + self.cache.statistics().bytes_copied)

    def lookups(self) -> tuple[int, int]:
        """How many images were looked up, and how many of them were there."""
        statistics = self.cache.statistics()
        return statistics.hits_total + statistics.misses_total, statistics.hits_total


@dataclass(frozen=True)
class CachedEndpoint(ArenaEndpoint):
    """The queue's handle and the rank."""

    def open(self) -> Reader:
        return CachedReader(self.handle, self.rank)


class CachedReader(ArenaReader):
    """The reading end: parcels become tensors."""

    def __init__(self, handle: Any, rank: int) -> None:
        from arena.mirrored import MirroredCache

        super().__init__(handle, rank)
        self._receiver = MirroredCache.receiver(self._queue.cache_reader())

    def receive(self, timeout_s: float) -> Any:
        step = super().receive(timeout_s)
        for request in step.new_requests:
            [tensors] = self._receiver.unpack([request.payload.tensors])
            request.payload = replace(request.payload, tensors=tensors)
        return step
