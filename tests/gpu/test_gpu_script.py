"""What can be said of `run.sh` without a GPU: it ends in time, and it says what it lacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import measure
import pytest
import ready
import torch

HERE = Path(__file__).parent
SCRIPT = HERE / "run.sh"
STEP = re.compile(r'\bby (\d+) "\$python"')
KILL_S, EIGHT_MINUTES = 5, 480


def test_each_step_is_over_before_the_next_one_s_time_and_the_last_within_eight_minutes() -> None:
    text = SCRIPT.read_text()
    assert f"timeout -k {KILL_S} " in text
    ends = [int(end) for end in STEP.findall(text)]
    assert len(ends) == text.count('"$python"') >= 5
    assert all(end + KILL_S < later for end, later in zip(ends, [*ends[1:], EIGHT_MINUTES], strict=True))


def test_all_that_is_missing_is_named_at_once() -> None:
    told = subprocess.run([sys.executable, "-S", HERE / "ready.py"], capture_output=True, text=True)
    assert told.returncode == 1
    assert all(f"the Python package {package}" in told.stderr for package in ready.PACKAGES.values())
    assert "Traceback" not in told.stderr


def test_an_old_setuptools_and_no_compiler_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "version", lambda name: "68.1.2")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert {"setuptools 77 or later, and not 68.1.2", "a C compiler"} <= set(ready.lacking())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device")
def test_without_a_device_the_script_says_so_and_does_not_succeed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    told = subprocess.run([SCRIPT, tmp_path / "figures"], env=environment, capture_output=True, text=True)
    assert told.returncode == 1
    assert "a CUDA or ROCm device that torch" in told.stderr
    assert (told.stdout, list((tmp_path / "figures").iterdir())) == ("", [])


def test_figures_that_fail_leave_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Iterator[measure.Row]:
        yield {"figure": 1}
        raise EOFError  # as when a reader's process has ended

    monkeypatch.setattr(measure, "SECTIONS", {"first": fails, "second": lambda: iter([{"figure": 2}])})
    monkeypatch.setattr(measure, "N_GPUS", 1)
    monkeypatch.setattr(measure, "environment", dict)
    monkeypatch.setattr(sys, "argv", ["measure.py", "--json", str(tmp_path / "gpu.json")])
    assert measure.main() == 1
    assert json.loads((tmp_path / "gpu.json").read_text()) == {
        "environment": {},
        "first": [{"figure": 1}, {"failed": "EOFError: "}],
        "second": [{"figure": 2}],
    }
