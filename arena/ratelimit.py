"""One line in a while, however often something happens."""

from __future__ import annotations

import time


class RateLimit:
    """Says yes once per key and ``period_s``."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next: dict[str, float] = {}

    def allows(self, key: str) -> bool:
        """Whether to speak now."""
        now = time.monotonic()
        if now < self._next.get(key, 0.0):
            return False
        self._next[key] = now + self._period_s
        return True
