"""The table of faults from the field names tests that exist, and each of its rows names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "cases.md").read_text()
ROWS = [line for line in TABLE.splitlines() if line.startswith("| (")]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_there_are_rows() -> None:
    assert len(ROWS) >= 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2 : row.index(")") + 1])
def test_every_row_names_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row)
    assert named
    for file, name in named:
        assert f"\ndef {name}(" in (TESTS / file).read_text(), f"{file} has no {name}"
