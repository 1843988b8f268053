"""The C code under ThreadSanitizer: the shipped orders are enough, and each weaker one is noticed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parent.parent / "csrc"
SOURCES = ["stress.c", "arena_steps.c", "arena_trace.c", "arena_map.c", "arena_ring.c", "arena_slots.c", "arena_copy.c"]
EDGES = [
    "published_store_release", "published_load_acquire",
    "consumed_store_release", "consumed_load_acquire",
    "done_store_release", "done_load_acquire",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")


def build(sources: Path, program: Path) -> None:
    flags = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-tsan", "-fsanitize=thread", "-pthread"]
    command = ["cc", *flags, f"-I{sources}", *(str(sources / name) for name in SOURCES), "-o", str(program)]
    subprocess.run(command, check=True)


def stress(program: Path, readers: int, messages: int, seed: int) -> subprocess.CompletedProcess[str]:
    arguments = [str(program), str(readers), str(messages), str(seed)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stress") / "stress"
    build(CSRC, path)
    return path


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_no_race_and_no_wrong_byte(program: Path, readers: int, seed: int) -> None:
    done = stress(program, readers, 10_000, seed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 failures\n")


@pytest.mark.parametrize("edge", EDGES)
def test_a_weakened_order_is_a_race(edge: str, tmp_path: Path, seed: int) -> None:
    """Each release and acquire made relaxed, one at a time, in a copy of the header."""
    copy = tmp_path / "csrc"
    shutil.copytree(CSRC, copy)
    header = copy / "arena_atomics.h"
    body = re.compile(rf"(arena_{edge}\([^}}]*)memory_order_(?:release|acquire)")
    weakened, count = body.subn(r"\1memory_order_relaxed", header.read_text())
    assert count == 1
    header.write_text(weakened)
    build(copy, tmp_path / "stress")
    done = stress(tmp_path / "stress", 2, 3_000, seed)
    assert done.returncode != 0
    assert "data race" in done.stderr
