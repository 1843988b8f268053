"""What Python sees of the native code: only what it calls; what C alone calls is declared beside it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
HEADER = HERE.parent / "csrc" / "arena_native.h"


def test_each_call_that_python_sees_is_called_from_python() -> None:
    seen = HEADER.read_text().split("/* cdef begin */")[1].split("/* cdef end */")[0]
    called = {
        name
        for folder in (HERE.parent / "arena", HERE)
        for path in folder.rglob("*.py")
        for name in re.findall(r"\barena_\w+", path.read_text())
    }
    assert set(re.findall(r"\b(arena_\w+)\(", seen)) - called == set()
