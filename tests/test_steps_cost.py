"""The crash points can be left out of the native code, which then takes messages through as before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fuzz import steps_cost


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_with_and_without_steps(tmp_path: Path) -> None:
    with_steps, without = steps_cost.build(tmp_path)
    assert steps_cost.run(with_steps, 1000)[1] > 10
    assert steps_cost.run(without, 1000)[1] == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("left_out", [steps_cost.STEPS, steps_cost.TRACE])
def test_the_comparison_runs(left_out: str) -> None:
    with_steps, without, steps = steps_cost.compare(rounds=2, messages=1000, left_out=left_out)
    assert len(with_steps) == len(without) == 2
    assert steps > 10
