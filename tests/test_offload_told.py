"""A failure that is left for others: how long it counts, for whom, and what its text may be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from offload_support import PAGE, Plan, construct, entry_of, region, what_is_left, workers

from arena.errors import CapacityError
from arena.shm import leftovers, meeting, process
from arena.shm.entry import Entry


class CannotSay(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("where", ["creator_memory_check", "progress"])
@pytest.mark.parametrize("error", [RuntimeError("/data/\udcff"), CannotSay(), RuntimeError("é" * 2000)])
def test_an_error_with_an_odd_text_passes_the_barrier_and_is_told(engine_id: str, where: str, error: Exception) -> None:
    """A lone surrogate (a file name that is not UTF-8), one that cannot say what it is, and one that is cut."""
    told: list[str] = []

    def fail(*_: int) -> None:
        raise error

    def barrier() -> None:
        entry = Entry.open(Path(entry_of(engine_id)), create=False)
        failure = entry.read().failure
        told.append(failure.text if failure is not None else "nothing")
        entry.close()

    with pytest.raises(type(error)):
        region(engine_id, 0, barrier=barrier, **{where: fail})
    ((name, _, text),) = [each.partition("\n") for each in told]
    assert name == type(error).__name__
    assert text[:8] in (r"/data/\udcff"[:8], "(its tex", "é" * 8)


def too_little(nbytes: int) -> None:
    raise CapacityError("too little")


def test_failures_that_were_left_for_others_go_with_their_process(engine_id: str) -> None:
    """However often it has tried, there is one."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CapacityError):
            region(engine_id, nonce="one", creator_memory_check=too_little)
    assert what_is_left(engine_id) != []
    assert len(meeting._left) == 1
    assert len(os.listdir("/proc/self/fd")) == before + 1
    meeting._remove_all()  # at exit
    assert what_is_left(engine_id) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_child_that_ends_takes_nothing_of_its_parents_failure(engine_id: str) -> None:
    with pytest.raises(CapacityError):
        region(engine_id, nonce="one", creator_memory_check=too_little)
    with workers(1) as (other,):
        if (child := os.fork()) == 0:
            meeting._remove_all()
            os._exit(0)
        os.waitpid(child, 0)
        (told,) = construct([(other, Plan(engine_id, 1, {"nonce": "one"}))])
        assert told.error == "CapacityError"
    meeting._remove_all()


def test_a_failure_counts_while_its_process_lives_whatever_the_namespace(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid says nothing elsewhere; and `arena gc` does not take it."""
    options = {"nonce": "one", "backing": "shm"}
    with workers(1) as (failing,):
        construct([(failing, Plan(engine_id, 0, options, check_error="too little", row_bytes=4 * PAGE))])
        monkeypatch.setattr(process, "pid_namespace", lambda: 4242)
        start_time = process.start_time
        monkeypatch.setattr(process, "start_time", lambda pid: None if pid == failing.pid else start_time(pid))
        assert entry_of(engine_id) not in [str(each.path) for each in leftovers.collect(remove=False, places=())]
        with pytest.raises(CapacityError, match=f"process {failing.pid} .* too little"):
            region(engine_id, 1, **options)
        failing.kill()
        with region(engine_id, 1, **options) as mine:
            assert mine.is_creator


def test_without_such_locks_a_failure_counts_while_its_pid_does(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some sandboxes are; one's own never stands in one's way."""
    monkeypatch.setattr(Entry, "is_held", lambda self, offset: None)
    for _ in range(2):
        with pytest.raises(CapacityError, match=r"^too little"):
            region(engine_id, nonce="one", creator_memory_check=too_little)
    meeting._remove_all()
    with workers(1) as (failing,):
        construct([(failing, Plan(engine_id, 0, {"nonce": "one"}, check_error="too little"))])
        with pytest.raises(CapacityError, match=f"process {failing.pid} .* too little"):
            region(engine_id, 1, nonce="one")
        failing.kill()
        with region(engine_id, 1, nonce="one") as mine:
            assert mine.is_creator


def test_a_failure_that_all_have_met_does_not_concern_those_who_come_later(engine_id: str) -> None:
    """Though the process that failed lives on; those who are in have it, however late they look."""
    with workers(4) as (first, failing, late, member):
        plan: dict[str, Any] = {"row_bytes": 4 * PAGE, "barrier": True}
        construct([(first, Plan(engine_id, 0, **plan))])
        assert member.ask("construct", Plan(engine_id, 2, **plan)) == "barrier"
        (failed,) = construct([(failing, Plan(engine_id, 0, **plan))])
        assert "is held by process" in failed.text
        for _ in range(2):
            (outcome,) = construct([(late, Plan(engine_id, 1, **plan))])
            assert outcome.is_in, outcome.text
            late.ask("cleanup")
        assert "is held by process" in member.ask("passes").text
        first.ask("cleanup")
