"""A process that fails, or dies, makes nobody wait: all fail at once, with the first error, and nothing stays."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from offload_support import PAGE, Outcome, Plan, construct, region, what_is_left, workers

from arena.errors import AttachError, CapacityError
from arena.offload import SharedOffloadRegion
from arena.shm import backing, capacity, directory


def together(engine_id: str, changes: dict[int, dict[str, Any]], ranks: int = 3, **common: Any) -> list[Outcome]:
    """Ranks that meet at a barrier, some of them with something of their own."""
    with workers(ranks) as pool:
        plans = [Plan(engine_id, rank, barrier=True, **{**common, **changes.get(rank, {})}) for rank in range(ranks)]
        outcomes = construct(list(zip(pool, plans, strict=True)))
        for each in pool:
            each.ask("cleanup")
        return outcomes


def assert_all_failed(outcomes: list[Outcome], text: str) -> None:
    assert all(each.error for each in outcomes), outcomes
    assert all(text in each.text for each in outcomes), outcomes
    assert [each.barrier_calls for each in outcomes] == [1] * len(outcomes)


CREATORS_STEPS = (
    "arena.shm.backing.os.memfd_create",  # before the size
    "arena.shm.backing.os.ftruncate",  # the size
    "arena.shm.rendezvous.check_capacity",  # the memory check
    "arena.shm.rendezvous.truncate_entry",  # after the memory, before the record
)


@pytest.mark.parametrize("function", CREATORS_STEPS)
def test_a_creator_that_fails_fails_all_with_its_error(engine_id: str, function: str) -> None:
    """Case 36.  Whoever comes first is the creator: so it is broken in all, and one of them met it."""
    outcomes = together(engine_id, {}, break_at=function)
    assert_all_failed(outcomes, "broken on purpose in rank")
    assert len({each.text[each.text.index("in rank") :] for each in outcomes}) == 1, "one error, the first"
    assert [each.error for each in outcomes].count("OSError") == 1


def test_the_callers_memory_check_fails_all(engine_id: str) -> None:
    outcomes = together(engine_id, {}, check_error="12 bytes are too many")
    assert_all_failed(outcomes, "12 bytes are too many")
    assert {each.error for each in outcomes} == {"CapacityError"}, "of the same type everywhere"


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("function", ["arena.shm.rendezvous.map_memory", "arena.shm.population.populate"])
def test_any_rank_that_fails_fails_all(engine_id: str, rank: int, function: str) -> None:
    outcomes = together(engine_id, {rank: {"break_at": function}})
    assert_all_failed(outcomes, f"broken on purpose in rank {rank}")
    assert outcomes[rank].error == "OSError"


def test_of_two_failures_the_first_is_told(engine_id: str) -> None:
    with workers(3) as pool:
        for rank, each in enumerate(pool):
            broken = "arena.shm.population.populate" if rank < 2 else None
            assert each.ask("construct", Plan(engine_id, rank, barrier=True, break_at=broken)) == "barrier"
        for each in pool:
            each.tell("passes")
        outcomes = [each.hear() for each in pool]
        assert [each.text[-6:] for each in outcomes] == ["rank 0", "rank 1", "rank 0"], outcomes


def test_a_stranger_that_is_refused_does_not_speak_for_the_instance(engine_id: str) -> None:
    """It comes while they wait at their barrier, and one of them has said that it failed."""
    with workers(2) as pool:
        for rank, each in enumerate(pool):
            broken = "arena.shm.population.populate" if rank else None
            plan = Plan(engine_id, rank, {"nonce": "ours"}, barrier=True, break_at=broken, row_bytes=4 * PAGE)
            assert each.ask("construct", plan) == "barrier"
        with pytest.raises(AttachError, match="another nonce"):
            region(engine_id, 2, barrier=lambda: None, nonce="another")
        for each in pool:
            each.tell("passes")
        assert [each.hear().text[-6:] for each in pool] == ["rank 1", "rank 1"]


def test_a_wrong_argument_in_one_rank_fails_all(engine_id: str) -> None:
    outcomes = together(engine_id, {1: {"options": {"numa": "fast"}}})
    assert_all_failed(outcomes, "numa='fast'")
    assert outcomes[1].error == "ValueError"


def test_the_creator_alone_populates_and_its_failure_is_everybodys(engine_id: str) -> None:
    """Broken in all, but joiners do not populate: so the one error is the creator's."""
    outcomes = together(
        engine_id, {}, ranks=2, break_at="arena.shm.population.populate", options={"populate_only_on_creator": True}
    )
    assert_all_failed(outcomes, "broken on purpose in rank")


DEATHS = ("write_record", "unlock", "populate")


@pytest.mark.parametrize("step", DEATHS)
def test_a_creator_that_dies_before_the_barrier_fails_those_who_wait_for_its_pages(engine_id: str, step: str) -> None:
    """The barrier opens here although one will never come: what the record says decides."""
    options = {"populate_only_on_creator": True, "nonce": "one"}
    with workers(3) as (creator, *others):
        (outcome,) = construct([(creator, Plan(engine_id, 0, options, barrier=True, kill_at=step))])
        assert outcome.died, f"no such step: {step}"
        plans = [(each, Plan(engine_id, rank + 1, options, barrier=True)) for rank, each in enumerate(others)]
        outcomes = construct(plans)
        # Alone now, the first of them creates the memory and populates it.
        assert all(each.is_in for each in outcomes), outcomes
        assert [each.barrier_calls for each in outcomes] == [1, 1]
        for each in others:
            each.ask("cleanup")


@pytest.mark.parametrize("populated", [False, True])
def test_joiners_that_were_in_before_the_creator_died_ask_what_it_had_done(engine_id: str, populated: bool) -> None:
    options = {"populate_only_on_creator": True, "nonce": "one"}
    with workers(2) as (creator, joiner):
        creator.tell("construct", Plan(engine_id, 0, options, barrier=True, driven=True))
        steps = [creator.hear()]
        while steps[-1] != ("populate" if populated else "unlock"):
            steps.append(creator.ask("go"))
        joiner.tell("construct", Plan(engine_id, 1, options, barrier=True))
        assert joiner.hear() == "barrier"
        creator.kill()
        outcome = joiner.ask("passes")
        if populated:
            assert outcome.is_in, outcome.text
        else:
            assert outcome.error == "ArenaError"
            assert "died before it had populated" in outcome.text
        joiner.ask("cleanup")


def test_a_barrier_that_breaks_leaves_nothing(engine_id: str) -> None:
    with workers(2) as pool:
        plans = [(each, Plan(engine_id, rank, barrier=True)) for rank, each in enumerate(pool)]
        outcomes = construct(plans, barrier="breaks")
        assert [each.text for each in outcomes] == ["the barrier broke"] * 2
        assert [each.barrier_calls for each in outcomes] == [1, 1]
        assert what_is_left(engine_id) == []


def test_a_barrier_that_breaks_does_not_hide_the_first_error(engine_id: str, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def barrier() -> None:
        calls.append(1)
        raise RuntimeError("the barrier broke")

    def check(nbytes: int) -> None:
        raise CapacityError("the first error")

    with pytest.raises(CapacityError, match="the first error"):
        region(engine_id, 0, barrier, creator_memory_check=check)
    assert calls == [1]
    assert "the barrier failed too" in caplog.text


def test_a_memory_check_s_error_comes_out_and_one_that_says_no_memory_as_the_cause(engine_id: str) -> None:
    class Mine(OSError):
        pass

    for error in (Mine(errno.ENOMEM, "my own words"), Mine(errno.EPERM, "my own words"), KeyError("my own words")):

        def check(nbytes: int, error: Exception = error) -> None:
            raise error

        with pytest.raises((CapacityError, Mine, KeyError), match="my own words") as caught:
            region(engine_id, 0, creator_memory_check=check)
        assert error in (caught.value, caught.value.__cause__)


def test_creator_only_population_needs_a_barrier(engine_id: str) -> None:
    with pytest.raises(ValueError, match="needs a barrier"):
        region(engine_id, populate_only_on_creator=True)


@pytest.mark.parametrize("place", ["/nowhere/shm", "/proc", "/etc/passwd"])
def test_a_machine_without_a_place_for_entries_is_an_error_that_says_so(
    engine_id: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    calls = []
    monkeypatch.setattr(directory, "SHM_DIRECTORY", place)
    with pytest.raises(AttachError, match=f"{place}/arena-.* cannot be made: .* mount a tmpfs at {place}"):
        region(engine_id, 0, lambda: calls.append(1))
    assert calls == [1]


# ---- without a barrier


def test_without_nonce_and_barrier_the_next_one_checks_for_itself(engine_id: str) -> None:
    with workers(2) as (first, second):
        (failed,) = construct([(first, Plan(engine_id, 0, check_error="too little"))])
        assert failed.error == "CapacityError"
        assert what_is_left(engine_id) == []
        (outcome,) = construct([(second, Plan(engine_id, 1))])
        assert outcome.is_creator
        second.ask("cleanup")


def test_with_a_nonce_the_others_get_the_creators_error_while_it_lives(engine_id: str) -> None:
    options = {"nonce": "one"}
    with workers(2) as (first, second):
        construct([(first, Plan(engine_id, 0, options, check_error="too little"))])
        (told,) = construct([(second, Plan(engine_id, 1, options))])
        assert told.error == "CapacityError"
        assert "too little" in told.text
        assert str(first.pid) in told.text
        (other,) = construct([(second, Plan(engine_id, 1, {"nonce": "another instance"}))])
        assert other.is_creator
        second.ask("cleanup")
        construct([(first, Plan(engine_id, 0, options, check_error="too little"))])
        (again,) = construct([(first, Plan(engine_id, 0, options))])
        assert again.is_creator, "the process that failed may try again"
        first.ask("cleanup")
        construct([(first, Plan(engine_id, 0, options, check_error="too little"))])
        first.kill()
        (outcome,) = construct([(second, Plan(engine_id, 1, options))])
        assert outcome.is_creator
        second.ask("cleanup")


# ---- who checks what


def test_the_creator_alone_checks_the_memory_and_all_of_it(engine_id: str) -> None:
    sizes: list[int] = []
    with region(engine_id, 0, creator_memory_check=sizes.append) as first:
        with region(engine_id, 1, creator_memory_check=sizes.append):
            assert sizes == [first.total_size_bytes]


def test_more_than_the_machine_has_is_refused_with_the_numbers(engine_id: str) -> None:
    with pytest.raises(CapacityError, match=r"a region of \d+ bytes does not fit into the \d+ bytes available"):
        SharedOffloadRegion(engine_id, 1 << 30, 0, 1 << 20, 4096)


def test_a_small_dev_shm_is_an_error_for_shm_and_not_for_memfd(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 25."""
    monkeypatch.setattr(capacity, "file_system_free_bytes", lambda directory: 4096)
    with pytest.raises(CapacityError, match=r"use backing='memfd'.*--shm-size"):
        region(engine_id, backing="shm")
    with region(engine_id, backing="memfd"):
        pass


def cgroup(limit: int, used: int) -> capacity.CgroupMemory:
    return capacity.CgroupMemory(Path("/sys/fs/cgroup/test"), limit, used)


def test_a_container_that_can_never_hold_it_is_an_error(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 28: the use counts cache that the kernel would give back, so the limit decides, and the headroom warns."""
    monkeypatch.setattr(capacity, "memory_cgroups", lambda: iter([cgroup(limit=8192, used=0)]))
    with pytest.raises(CapacityError, match="raise the container's memory limit"):
        region(engine_id)


def test_a_container_with_too_little_headroom_is_one_warning(
    engine_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capacity, "memory_cgroups", lambda: iter([cgroup(limit=1 << 20, used=(1 << 20) - 4096)]))
    with caplog.at_level(logging.WARNING, logger="arena.shm"), region(engine_id, 0), region(engine_id, 1):
        assert len(caplog.records) == 1
        assert "raise the container's memory limit" in caplog.text


def test_a_file_system_that_is_full_is_a_capacity_error(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backing.os, "ftruncate", full)
    with pytest.raises(CapacityError, match="cannot be made: No space left"):
        region(engine_id)
