"""The table of faults from the field names tests that exist, and each of its rows names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "cases.md").read_text()
ROWS = [line for line in TABLE.splitlines() if line.startswith("| (")]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


# Of queues, of the order of accesses, of slots, of memory, of leaks and forks, of the object cache, and of pinning.
NUMBERS = (
    "1 3 4 5 6 7 8 9 10 11 13 14 15 17 19 21 22 24 25 27 28 29 31 33 34 35 36 38 40 42 57 59 60 63 64 65 67 68 69 71 72 75"
)


def test_each_fault_has_a_row() -> None:
    assert [row[3 : row.index(")")] for row in ROWS] == NUMBERS.split()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2 : row.index(")") + 1])
def test_every_row_names_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row)
    assert named
    for file, name in named:
        assert f"\ndef {name}(" in (TESTS / file).read_text(), f"{file} has no {name}"
