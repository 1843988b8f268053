"""What the README shows runs as it stands, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

from support import example

from arena import errors

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = ROOT / "examples" / "engine_and_workers.py"


def test_the_example_runs_without_a_word_on_stderr() -> None:
    assert sorted(example(EXAMPLE).splitlines()) == [
        "1 buffer went through the arena",
        "worker 0: request 7, (3, 1344, 1344), mean 0.500",
        "worker 1: request 7, (3, 1344, 1344), mean 0.500",
    ]


def test_the_readme_shows_the_example_that_runs() -> None:
    assert f"```python\n{EXAMPLE.read_text().rstrip()}\n```" in README


def test_every_public_error_is_explained() -> None:
    public = {name for name in vars(errors) if isinstance(getattr(errors, name), type)} - {"ArenaError"}
    assert not {name for name in public if f"`{name}`" not in README}


def test_every_fallback_reason_is_explained() -> None:
    sources = " ".join((ROOT / "arena" / name).read_text() for name in ("message/tensors.py", "message/pickling.py"))
    reasons = set(re.findall(r'(?:return|reason =) "([a-z_]+)"', sources))
    assert reasons >= {"dtype", "expanded"}
    assert not {reason for reason in reasons if f"`unsupported:{reason}`" not in README}
