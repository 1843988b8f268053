"""The contracts once more, as Hypothesis tests whose values CrossHair's solver chooses. Run by `test_contracts.py`.

In a process of its own, as `contracts` puts stand-ins in the place of modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import contracts
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PAGE = contracts.PAGE
solved = settings(
    backend="crosshair", max_examples=int(os.environ["EXAMPLES"]), deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def upto(limit: int, *, step: int = 1) -> st.SearchStrategy[int]:
    """The multiples of `step` from 0 up to a limit."""
    return st.integers(0, limit // step).map(lambda value: value * step) if step > 1 else st.integers(0, limit)


TURN, OFFSET, NBYTES, WORD = upto(3), upto(PAGE - 8, step=8), upto(2 * PAGE), upto(2**64 - 1)
# What each contract takes: values that meet its first assertions.
VALUES: dict[Callable[..., None], tuple[st.SearchStrategy[Any], ...]] = {
    contracts.align_is_the_least_multiple: (upto(2**40 - 1), st.sampled_from([8, contracts.LINE, PAGE])),
    contracts.parts_do_not_overlap: (upto(63), upto(2**20), st.integers(1, 2**20), upto(2**28)),
    contracts.member_words_come_back: (upto(3), upto(2**22 - 1), upto(2**36 - 1), upto(2**4 - 1)),
    contracts.extents_do_not_overlap: (st.lists(st.integers(1, 3 * PAGE), max_size=4), upto(4)),
    contracts.a_record_lies_in_the_ring_and_overwrites_nothing: (TURN, OFFSET, upto(PAGE, step=8), NBYTES),
    contracts.a_reader_finds_the_record_where_the_writer_put_it: (TURN, OFFSET, NBYTES),
    contracts.a_reader_stays_in_what_was_published: (upto(PAGE - 1), upto(2 * PAGE - 1), WORD, WORD),
    contracts.a_record_says_what_was_packed: (WORD, upto(2**32 - 1), WORD, upto(3), WORD, st.binary(max_size=4)),
    contracts.a_record_gives_out_its_own_bytes_only: (upto(3), upto(3), upto(16), st.integers(-3, 3)),
    contracts.a_record_that_states_more_than_it_has_is_refused: (
        upto(3), upto(2**32 - 1), upto(2**32 - 1), upto(200),
    ),
    contracts.a_table_names_its_own_grants_only: (upto(5), upto(4), upto(3)),
}  # fmt: skip


@pytest.mark.parametrize("contract", VALUES, ids=lambda contract: contract.__name__)
def test_contract(contract: Callable[..., None]) -> None:
    solved(given(*VALUES[contract])(contract))()


def test_every_contract_is_here() -> None:
    public = {each for name, each in vars(contracts).items() if callable(each) and not name.startswith("_")}
    stated = {each for each in public if getattr(each, "__module__", "") == "contracts"}
    helpers = {contracts.Grant, contracts.stand_in, contracts.in_memory, contracts.forged}
    assert stated - helpers == set(VALUES)
