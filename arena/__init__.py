"""arena: the shared-memory data plane of an LLM inference engine."""

from arena import errors
from arena.cache import CacheHandle, CacheReader, ObjectCache, Uncached
from arena.config import ArenaConfig
from arena.hashing import object_key
from arena.mirrored import MirroredCache
from arena.offload import SharedOffloadRegion
from arena.queue import Handle, MessageQueue
from arena.statistics import CacheStatistics, LeaseStatistics, Statistics

__version__ = "0.1.0"

__all__ = [
    "ArenaConfig",
    "CacheHandle",
    "CacheReader",
    "CacheStatistics",
    "Handle",
    "LeaseStatistics",
    "MessageQueue",
    "MirroredCache",
    "ObjectCache",
    "SharedOffloadRegion",
    "Statistics",
    "Uncached",
    "__version__",
    "errors",
    "object_key",
]
