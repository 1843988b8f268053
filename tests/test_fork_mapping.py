"""A fork at any moment of another thread's first mapping leaves the child able to map."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support import WATCHDOG_S

CSRC = Path(__file__).parent.parent / "csrc"
SOURCES = ["fork_mapping.c", "arena_map.c", "arena_steps.c"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_fork_inside_another_threads_first_mapping_blocks_no_child(tmp_path: Path) -> None:
    """A lock that the other thread holds at that moment would stay locked in the child for ever."""
    program = tmp_path / "fork_mapping"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(["cc", *flags, f"-I{CSRC}", *(str(CSRC / name) for name in SOURCES), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert (done.returncode, done.stdout) == (0, "forked inside 3 calls: all could map\n")
