"""A mapping, a device that must have nothing to complain of, and no earlier warning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from device_support import SEED, Memory
from pinning_support import ROWS

from arena.device import pinning as module
from arena.device.pinning import WARN_EVERY_S
from arena.device.simulated import SimulatedDevice
from arena.ratelimit import RateLimit


@pytest.fixture(autouse=True)
def _no_earlier_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warnings", RateLimit(WARN_EVERY_S))


@pytest.fixture
def memory() -> Memory:
    return Memory(ROWS)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    device = SimulatedDevice(SEED)
    yield device
    assert device.violations == []
