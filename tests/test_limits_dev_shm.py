"""``python -m fuzz exhaustion`` with a /dev/shm that others fill, and where the kernel does not allow a small one."""

from __future__ import annotations

import os

import pytest

from fuzz import exhaustion
from fuzz.exhaustion import COMBINATIONS
from fuzz.session import Session
from fuzz.workers import Pool, Side


def test_a_small_dev_shm_that_others_fill_is_one_of_the_things_that_run_out() -> None:
    """Nothing else is short: what does not travel through the arena found no memory there."""
    case = COMBINATIONS.index(("", "", "", "", "held", "", "/dev/shm"))
    session = Session(1, runs=1, options={"first": case})
    exhaustion.exhaustion(session)
    if any("not tried" in what for what in session.counts):
        pytest.skip(str(session.counts))
    assert session.counts["no_memory"] > 0
    assert session.counts["sent"] == exhaustion.MESSAGES + 1
    assert session.counts["no /dev/shm: CapacityError"] == 1


def test_where_there_can_be_no_small_dev_shm_the_run_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustion, "_why_no_small_dev_shm", lambda pool: "unshare: Operation not permitted")
    monkeypatch.setattr(exhaustion, "_refused", lambda *_: None)
    cases: list[str] = []
    monkeypatch.setattr(exhaustion, "_one", lambda pool, rng, combination: cases.append(combination[-1]) or {})
    session = Session(1)
    exhaustion.exhaustion(session)
    assert cases == [""] * (len(COMBINATIONS) // 2)
    assert session.counts["not tried, a small /dev/shm: unshare: Operation not permitted"] == 1


def test_what_the_kernel_says_is_said() -> None:
    with Pool() as pool:
        assert "Operation not permitted" in pool.take().run(_without_rights)


def _without_rights(side: Side) -> str:
    """Of a process that may not mount: it is nobody."""
    if os.geteuid() == 0:
        os.setuid(65534)
    return exhaustion._try_small_dev_shm(side)
