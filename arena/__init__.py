"""arena: the shared-memory data plane of an LLM inference engine."""

from arena import errors
from arena.cache import CacheHandle, CacheReader, ObjectCache, Uncached
from arena.config import ArenaConfig
from arena.offload import SharedOffloadRegion
from arena.queue import Handle, MessageQueue
from arena.statistics import CacheStatistics, Statistics

__all__ = [
    "ArenaConfig",
    "CacheHandle",
    "CacheReader",
    "CacheStatistics",
    "Handle",
    "MessageQueue",
    "ObjectCache",
    "SharedOffloadRegion",
    "Statistics",
    "Uncached",
    "errors",
]
