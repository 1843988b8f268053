"""Random lives of pinned leases: no byte is corrupted and no slot is lost; with each rule of the gates removed, one is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gates_support import CHUNK_BYTES, Corrupted, Schedule

from arena.device import pinning
from arena.message import copies, gates
from arena.message.gates import Gates
from arena.protocol.slots import SlotWriter

QUICK, DEEP = 60, 10_000
PLANTED_MAX = 1_000
"""Schedules within which a removed rule must have shown."""

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: Patch) -> Iterator[None]:
    monkeypatch.setattr(pinning, "LAZY_CHUNK_BYTES", CHUNK_BYTES)
    logger = logging.getLogger("arena")
    before = logger.level
    logger.setLevel(logging.ERROR)  # what is said of deaths and fallbacks would fill pages
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("schedules", [QUICK, pytest.param(DEEP, marks=[pytest.mark.deep, pytest.mark.timeout(3600)])])
def test_no_byte_is_corrupted_and_no_slot_is_lost(schedules: int, seed: int) -> None:
    run(seed, schedules, forks=True)


def run(first: int, count: int, *, forks: bool = False) -> None:
    for number in range(count):
        Schedule(first + number, forks=forks and number % 10 == 0).run()


# ---- each rule, removed ----------------------------------------------------------------------------------------------


def nothing_is_gated(patch: Patch) -> None:
    patch.setattr(pinning.Pinning, "needs_gate", lambda self, offset, nbytes: False)


def copies_are_not_marked(patch: Patch) -> None:
    patch.setattr(Gates, "copy", lambda self, *arguments, **options: copies.copy(self._device, *arguments, **options))


def what_was_told_is_not_marked(patch: Patch) -> None:
    patch.setattr(Gates, "record_use", lambda self, tensor, stream: None)


def current_streams_are_not_marked(patch: Patch) -> None:
    shut = Gates._shut

    def changed(self: Gates, dropped: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._device, "used_streams", lambda: ())
            shut(self, dropped)

    patch.setattr(Gates, "_shut", changed)


def first_streams_are_not_marked(patch: Patch) -> None:
    admit = Gates.admit

    def changed(self: Gates, leases: Any) -> None:
        admit(self, leases)
        self._streams.update(dict.fromkeys(self._streams, ()))

    patch.setattr(Gates, "admit", changed)


def one_mark_is_enough(patch: Patch) -> None:
    settle = Gates._settle

    def changed(self: Gates) -> None:
        for gate in self._gates.values():
            gate.marks = gate.marks[:1]
        settle(self)

    patch.setattr(Gates, "_settle", changed)


def marks_are_taken_for_passed(patch: Patch) -> None:
    patch.setattr(gates.Mark, "is_passed", lambda self: True)


def captured_streams_are_forgotten(patch: Patch) -> None:
    settle = Gates._settle

    def changed(self: Gates) -> None:
        for gate in self._gates.values():
            gate.unmarked.clear()
        settle(self)

    patch.setattr(Gates, "_settle", changed)


def the_dead_are_not_fenced(patch: Patch) -> None:
    patch.setattr(SlotWriter, "_owed", lambda self, row: [])


RULES: tuple[tuple[Callable[[Patch], None], int], ...] = (
    (nothing_is_gated, 0), (copies_are_not_marked, 160), (what_was_told_is_not_marked, 491),
    (current_streams_are_not_marked, 125), (first_streams_are_not_marked, 298), (one_mark_is_enough, 11),
    (marks_are_taken_for_passed, 0), (captured_streams_are_forgotten, 491), (the_dead_are_not_fenced, 204),
)  # fmt: skip
"""Each with the first seed that shows it: from there on it does not take long, and without a change it takes one."""


@pytest.mark.parametrize(("remove", "first"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_that_is_removed_is_missed(remove: Callable[[Patch], None], first: int, monkeypatch: Patch) -> None:
    run(first, 3)  # with the rule
    remove(monkeypatch)
    with pytest.raises(Corrupted):
        run(first, PLANTED_MAX)
