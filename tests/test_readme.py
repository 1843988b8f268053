"""What the README shows runs as it stands, and its tables are complete."""

from __future__ import annotations

import array
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import example, queue_of

import arena
from arena import errors

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = ROOT / "examples" / "engine_and_workers.py"
ASYNCIO = ROOT / "examples" / "asyncio_queue.py"


def test_the_example_runs_without_a_word_on_stderr() -> None:
    assert sorted(example(EXAMPLE).splitlines()) == [
        "1 buffer went through the arena",
        "worker 0: request 7, (3, 1344, 1344), mean 0.500",
        "worker 1: request 7, (3, 1344, 1344), mean 0.500",
    ]


def test_the_readme_shows_the_example_that_runs() -> None:
    assert f"```python\n{EXAMPLE.read_text().rstrip()}\n```" in README


def test_the_example_of_asyncio_runs_and_is_shown() -> None:
    shown = [f"worker {rank}: request {request}, mean {request}.0" for rank in range(2) for request in range(2)]
    ends = [f"worker {rank}: the engine has shut down" for rank in range(2)]
    assert sorted(example(ASYNCIO).splitlines()) == sorted(shown + ends)
    assert f"```python\n{ASYNCIO.read_text().rstrip()}\n```" in (ROOT / "docs" / "asyncio.md").read_text()


def test_every_public_error_is_explained() -> None:
    public = {name for name in vars(errors) if isinstance(getattr(errors, name), type)} - {"ArenaError"}
    assert not {name for name in public if f"`{name}`" not in README}


def test_every_fallback_reason_is_explained() -> None:
    sources = " ".join((ROOT / "arena" / name).read_text() for name in ("message/tensors.py", "message/pickling.py"))
    reasons = set(re.findall(r'(?:return|reason =) "([a-z_]+)"', sources))
    assert reasons >= {"dtype", "expanded"}
    assert not {reason for reason in reasons if f"`unsupported:{reason}`" not in README}


@pytest.mark.parametrize("page", ["README.md", "docs/devices.md"])
def test_the_quarantine_s_default_is_told_and_that_it_is_undecided(page: str) -> None:
    """Once `tests/gpu/run.sh` has been run on a GPU, its result is to stand there instead."""
    text = (ROOT / page).read_text()
    assert f"quarantine_s={arena.ArenaConfig().quarantine_s}" in text
    assert re.search("[Uu]ndecided|not decided", text)
    assert "tests/gpu/run.sh" in text


def test_the_version_is_the_distribution_s() -> None:
    assert f'version = "{arena.__version__}"' in (ROOT / "pyproject.toml").read_text()


N = 1 << 18
DIVERTED: dict[str, tuple[Any, type]] = {
    "tensor": (torch.zeros(N), torch.Tensor),
    "strided tensor": (torch.zeros(N, 2)[:, 1], torch.Tensor),
    "array": (np.zeros(N), np.ndarray),
    "Fortran": (np.zeros((2, N), order="F"), np.ndarray),
    "from bytes": (np.frombuffer(bytes(N), np.uint8), np.ndarray),
    "buffer": (pickle.PickleBuffer(bytearray(N)), np.ndarray),
    "buffer of array.array": (pickle.PickleBuffer(array.array("b", bytes(N))), np.ndarray),
    "read-only buffer": (pickle.PickleBuffer(bytes(N)), memoryview),
}
PICKLED: dict[str, Any] = {
    "strided": np.zeros((N, 2))[:, 1],
    "objects": np.array([None] * N),
    "dates": np.zeros(N, "M8[s]"),
    "subclass": np.ma.masked_array(np.zeros(N)),
    "bytes": bytes(N),
    "bytearray": bytearray(N),
    "array.array": array.array("b", bytes(N)),
    "str": "a" * N,
    "image": Image.new("L", (N // 512, 512)),
}


def sent(value: object) -> tuple[object, int, int]:
    """What arrives, how many buffers were diverted, and how many fell back."""
    with queue_of(1) as (writer, (reader,)):
        writer.enqueue(value)
        counts = writer.statistics()
        return type(reader.dequeue(10)), counts.diverted_total, sum(counts.fallback_total.values())


@pytest.mark.parametrize("name", DIVERTED)
def test_what_goes_through_the_arena(name: str) -> None:
    value, arrives_as = DIVERTED[name]
    assert sent(value) == (arrives_as, 1, 0)


@pytest.mark.parametrize("name", PICKLED)
def test_what_travels_in_the_pickle(name: str) -> None:
    assert sent(PICKLED[name]) == (type(PICKLED[name]), 0, 0)
