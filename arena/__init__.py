"""arena: the shared-memory data plane of an LLM inference engine."""

from arena import errors
from arena.config import ArenaConfig
from arena.queue import Handle, MessageQueue
from arena.statistics import Statistics

__all__ = ["ArenaConfig", "Handle", "MessageQueue", "Statistics", "errors"]
