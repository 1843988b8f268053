"""What is tried out before libzmq is asked is given back, wherever a signal handler's exception comes."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from functools import partial

import pytest
from cut_support import interrupted_at
from support import wait_until

from arena.errors import CapacityError
from arena.shm import shortage


def threads() -> int:
    """Of this process, as the kernel counts them."""
    return len(os.listdir("/proc/self/task"))


def descriptors() -> set[str]:
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


@pytest.mark.parametrize("probe", [shortage.require_threads, shortage.require_descriptors])
def test_a_probe_that_is_cut_short_anywhere_keeps_nothing_and_raises_nothing_else(
    probe: Callable[[int, str], None],
) -> None:
    """An error of its own, a KeyError of ``threading`` for one, would hide the handler's."""
    before, place = (threads(), descriptors(), threading.enumerate()), 0
    while interrupted_at(place, partial(probe, 3, "a test")):
        wait_until(lambda: threads() <= before[0], "the probe's threads end")
        assert (descriptors(), threading.enumerate()) == before[1:], place
        place += 1
    assert place >= 2


def test_a_probe_finds_what_there_is() -> None:
    shortage.require_threads(3, "a test")
    shortage.require_descriptors(3, "a test")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with pytest.raises(CapacityError, match=rf"a test takes {limit} descriptors, and \d+ are left of {limit}"):
        shortage.require_descriptors(limit, "a test")
