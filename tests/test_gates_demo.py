"""The demo with a device: the workers drop the host's tensors while a device still reads them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DEMO = [sys.executable, "-c", "from arena.tools.cli import main; main()", "demo", "--json"]


def test_the_demo_copies_to_a_simulated_device_and_verifies_there() -> None:
    options = ["--device", "sim", "--workers", "2", "--sizes", "320x240", "--seconds", "0.5", "--transport", "arena"]
    done = subprocess.run([*DEMO, *options], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["slots_leaked"], told["wrong"]) == (True, 0, [])


@pytest.mark.gpu
def test_the_demo_copies_to_a_gpu_and_verifies_there() -> None:
    torch = pytest.importorskip("torch")
    for package in ("click", "skimage"):
        pytest.importorskip(package)
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device on this machine")
    options = ["--device", "cuda", "--workers", "2", "--sizes", "1", "--seconds", "2", "--transport", "arena"]
    done = subprocess.run([*DEMO, *options], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]
