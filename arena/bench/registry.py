"""All scenarios by name."""

from __future__ import annotations

from arena.bench.cache_scenarios import CACHE_SCENARIOS
from arena.bench.offload import OFFLOAD_SCENARIOS
from arena.bench.scenarios import SCENARIOS

ALL_SCENARIOS = {**SCENARIOS, **CACHE_SCENARIOS, **OFFLOAD_SCENARIOS}
