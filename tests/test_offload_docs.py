"""What the page about the offload region shows and says."""

from __future__ import annotations

import inspect
from pathlib import Path

from offload_support import what_is_left
from support import example

from arena import SharedOffloadRegion

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "offload.md").read_text()
EXAMPLE = ROOT / "examples" / "offload_region.py"


def test_the_example_runs_without_a_word_on_stderr() -> None:
    assert example(EXAMPLE) == "block 7 of worker 0 begins with 1, of worker 1 with 2\n"
    assert what_is_left("engine-0") == []


def test_the_page_shows_the_example_that_runs() -> None:
    assert f"```python\n{EXAMPLE.read_text().rstrip()}\n```" in PAGE


def test_every_argument_that_a_caller_may_choose_is_explained() -> None:
    arguments = set(inspect.signature(SharedOffloadRegion).parameters) - {"device"}
    assert not {name for name in arguments if name not in PAGE}
