"""A failure that is left for others: how long it counts, for whom, and what its text may be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from offload_support import PAGE, Plan, Worker, construct, entry_of, region, what_is_left, workers

from arena.errors import AttachError, CapacityError
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
    monkeypatch.setattr(Entry, "is_held", lambda *_: None)
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


PLAN: dict[str, Any] = {"row_bytes": 4 * PAGE, "rows": 2, "barrier": True}


def test_a_failure_that_all_have_met_does_not_concern_those_who_come_later(engine_id: str) -> None:
    """Though the process that failed lives on, and one of those who were in before stays."""
    with workers(5) as (first, failing, member, *late):
        construct([(first, Plan(engine_id, 0, **PLAN))])
        assert member.ask("construct", Plan(engine_id, 2, **PLAN)) == "barrier"
        (failed,) = construct([(failing, Plan(engine_id, 0, **PLAN))])
        assert "is held by process" in failed.text
        assert "is held by process" in member.ask("passes").text, "however late it looks"
        for _ in range(2):
            outcomes = construct([(each, Plan(engine_id, rank + 1, **PLAN)) for rank, each in enumerate(late)])
            assert all(each.is_in for each in outcomes), outcomes
            for each in late:
                each.ask("cleanup")
        first.ask("cleanup")


def at_the_barrier(worker: Worker, engine_id: str, rank: int, nonce: str = "ours", **changes: Any) -> None:
    assert worker.ask("construct", Plan(engine_id, rank, {"nonce": nonce}, **{**PLAN, **changes})) == "barrier"


def passes(*pool: Worker) -> list[str]:
    for each in pool:
        each.tell("passes")
    return [each.hear().text for each in pool]


BROKEN: dict[str, dict[str, Any]] = {
    "before it was in": {"check_error": "too little"},
    "as a member": {"break_at": "arena.shm.population.populate"},
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_stranger_that_comes_while_a_failure_is_to_be_met_takes_nothing_of_it(engine_id: str, how: str) -> None:
    """It is refused until all who are to meet have met: whoever comes last would know nothing."""
    with workers(2) as (failing, last):
        at_the_barrier(failing, engine_id, 0, **BROKEN[how])
        with pytest.raises(AttachError, match="another nonce"):
            region(engine_id, 2, nonce="another")
        at_the_barrier(last, engine_id, 1)
        assert all(("too little" if how == "before it was in" else "on purpose") in text for text in passes(failing, last))
        with region(engine_id, 2, nonce="another") as stranger:
            assert stranger.is_creator


@pytest.mark.parametrize("how", BROKEN)
def test_one_that_is_killed_when_it_has_told_fails_the_one_in_its_place_too(engine_id: str, how: str) -> None:
    """All who meet at one barrier agree; then the failure is past."""
    with workers(3) as (failing, other, replacing):
        if how == "as a member":
            at_the_barrier(other, engine_id, 1)
        at_the_barrier(failing, engine_id, 0, **BROKEN[how])
        if how == "before it was in":
            at_the_barrier(other, engine_id, 1)
        failing.kill()
        at_the_barrier(replacing, engine_id, 0)
        texts = passes(other, replacing)
        assert all(f"process {failing.pid} of region" in text for text in texts), texts
        outcomes = construct([(each, Plan(engine_id, rank, **PLAN)) for rank, each in enumerate((other, replacing))])
        assert all(each.is_in for each in outcomes), outcomes
        for each in (other, replacing):
            each.ask("cleanup")


@pytest.mark.parametrize("nonce", ["ours", "another"])
def test_a_failure_stays_when_those_leave_whom_it_does_not_concern(engine_id: str, nonce: str) -> None:
    """The one who has the rank, or the name, goes while others wait at their barrier: who comes now would get it."""
    with workers(2) as (failing, last):
        with region(engine_id, 0, nonce=nonce):
            at_the_barrier(failing, engine_id, 0)
        at_the_barrier(last, engine_id, 1)
        text, told = passes(failing, last)
        assert f"process {os.getpid()}" in text
        assert told == f"process {failing.pid} of region {engine_id!r} failed: {text}"
        assert what_is_left(engine_id) == []


def test_a_stranger_s_failure_does_not_hide_that_of_those_whose_entry_it_is(engine_id: str) -> None:
    with workers(3) as (mine, other, stranger):
        at_the_barrier(mine, engine_id, 0)
        at_the_barrier(stranger, engine_id, 0, nonce="another")
        at_the_barrier(other, engine_id, 1, **BROKEN["as a member"])
        assert all("on purpose" in text for text in passes(mine, other))
        assert "another nonce" in passes(stranger)[0]


def test_a_stranger_that_could_not_tell_fails_its_own_all_the_same(engine_id: str) -> None:
    """Another instance's failure stood in the entry, and that one removes neither the entry nor the sign."""
    with workers(3) as (failing, stranger, another):
        at_the_barrier(failing, engine_id, 0, **BROKEN["before it was in"])
        at_the_barrier(stranger, engine_id, 0, nonce="another")
        passes(failing)
        at_the_barrier(another, engine_id, 1, nonce="another")
        texts = passes(stranger, another)
        assert "has failed" in texts[0]
        assert "in the way of its own" in texts[1]
