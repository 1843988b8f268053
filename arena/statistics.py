"""A queue in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ReaderStatistics:
    """One reader: its rank, its process (0 if none has joined), whether that lives, and the bytes it has yet to read."""

    rank: int
    pid: int
    alive: bool
    lag: int


@dataclass(frozen=True)
class Statistics:
    """A queue in numbers, at one moment.  Buffers are counted once their message is published, however often it was tried.

    Attributes:
        slots_total: of the slot table.
        slots_free: of these, what nobody holds.
        bytes_capacity: of the data area.
        bytes_in_use: of these, what extents take, whole pages.
        messages_total: messages published.
        diverted_total: buffers that went through the arena.
        loaned_total: of these, what lay in a loan and was not copied.
        bytes_copied: bytes of the others, each copied once.
        fallback_total: buffers that did not go through the arena, by reason: ``small``, ``no_arena``, ``oversize``,
            ``no_slot``, ``no_extent``, ``no_memory``, and ``unsupported:`` with what was in the way.
        out_of_band_total: messages that were too large for the ring.
        deaths_total: readers that died.
        readers: one entry per rank.
        slots_quarantined: of the busy slots, what only a dead reader's device may still be reading.
    """

    slots_total: int
    slots_free: int
    bytes_capacity: int
    bytes_in_use: int
    messages_total: int
    diverted_total: int
    loaned_total: int
    bytes_copied: int
    fallback_total: Mapping[str, int]
    out_of_band_total: int
    deaths_total: int
    readers: tuple[ReaderStatistics, ...]
    slots_quarantined: int = 0


@dataclass(frozen=True)
class LeaseStatistics:
    """A reader's leases in numbers, at one moment.

    Attributes:
        rank: the reader's.
        leases_open: what it holds: by live tensors, by gates and by quarantine.
        gates_open: of these, what no tensor holds any more and a device may still read.
        quarantined: of these, what stays taken because the device cannot say whether it still reads it.
        pinned_bytes: how much of the data area is pinned in this process.
        reason_unpinned: why memory that is used is not pinned; None when nothing stands in the way.
    """

    rank: int
    leases_open: int
    gates_open: int
    quarantined: int
    pinned_bytes: int
    reason_unpinned: str | None


@dataclass(frozen=True)
class CacheStatistics:
    """A cache in numbers, at one moment.

    Attributes:
        objects: in the cache.
        objects_held: of these, what ``hold`` keeps from eviction.
        slots_total: how many extents it may have.
        slots_draining: of these, what is evicted and still in a reader's use.
        bytes_capacity: how much it may have.
        bytes_in_use: of the objects in the cache, whole pages.
        bytes_draining: of those that are evicted and still in a reader's use.
        puts_total: objects stored.
        bytes_copied: of these, once each.
        evictions_total: objects that went to make room.
        hits_total: lookups by key that found something.
        misses_total: those that did not.
        uncached_total: puts that stored nothing, by reason: see ``Uncached``.
        readers: one entry per rank.
    """

    objects: int
    objects_held: int
    slots_total: int
    slots_draining: int
    bytes_capacity: int
    bytes_in_use: int
    bytes_draining: int
    puts_total: int
    bytes_copied: int
    evictions_total: int
    hits_total: int
    misses_total: int
    uncached_total: Mapping[str, int]
    readers: tuple[ReaderStatistics, ...]
