"""What the page about the object cache shows and says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from support import example

from arena import MessageQueue, ObjectCache, errors
from arena.protocol.slots import Refusal

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "cache.md").read_text()
EXAMPLE = ROOT / "examples" / "object_cache.py"


def test_the_example_runs_without_a_word_on_stderr() -> None:
    means = {0: "0.50", 1: "0.65", 2: "0.50"}
    got = {f"worker {rank}: request {request}, mean {mean}" for rank in range(2) for request, mean in means.items()}
    assert set(example(EXAMPLE).splitlines()) == {"2 images for 3 requests", *got}


def test_the_page_shows_the_example_that_runs() -> None:
    assert f"```python\n{EXAMPLE.read_text().rstrip()}\n```" in PAGE


def test_every_reason_for_not_caching_is_explained() -> None:
    reasons = {refusal.value for refusal in Refusal} - {Refusal.NO_ARENA.value}  # a queue without an arena has no cache
    assert {name for name in reasons if f"| `{name}` |" not in PAGE} == set()


def test_what_the_page_names_is_there() -> None:
    """Errors, methods and arguments."""
    arguments = {*inspect.signature(ObjectCache).parameters, *inspect.signature(MessageQueue.object_cache).parameters}
    assert {"capacity_bytes", "max_objects", "max_object_bytes", "reserve_bytes", "reserve_slots"} <= arguments
    for method in re.findall(r"`cache\.(\w+)\(", PAGE):
        assert hasattr(ObjectCache, method), method
    for error in re.findall(r"^\| `(\w+Error|\w+Miss|Invalid\w+|Cancelled)` \|", PAGE, re.MULTILINE):
        assert hasattr(errors, error) or error in ("TimeoutError", "ValueError"), error
