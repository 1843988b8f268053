"""The copy into the arena: every byte, no other byte, for each loop that a size and a number of threads choose."""

from __future__ import annotations

import numpy as np
import pytest

from arena.shm.native import ffi, lib

GUARD = 4096
SIZES = [1, 63, 64, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 8191, (4 << 20) + 12345, (24 << 20) - 1, (24 << 20) + 65]


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_copy_writes_every_byte_and_no_other(nbytes: int, threads: int) -> None:
    rng = np.random.default_rng(nbytes)
    source = rng.integers(0, 256, nbytes + 2 * GUARD, dtype=np.uint8)
    for to, start in ((GUARD, GUARD), (GUARD + 1, GUARD + 17), (GUARD + 63, GUARD - 64)):
        target = np.full(nbytes + 3 * GUARD, 0xA5, dtype=np.uint8)
        lib.arena_copy(
            ffi.from_buffer("char[]", target) + to, ffi.from_buffer("char[]", source) + start, nbytes, threads
        )
        expected = np.full_like(target, 0xA5)
        expected[to : to + nbytes] = source[start : start + nbytes]
        assert np.array_equal(target, expected), (to, start)
