"""A process that dies at a step of the rendezvous, any of them, is in nobody's way: real processes, SIGKILL."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from offload_support import (
    Plan,
    construct,
    entry_of,
    memory_of,
    region,
    what_is_left,
    workers,
)

from arena.shm import membership

COMING_AS_CREATOR = (
    "open_entry", "lock", "path_is_this_file", "find_nobody", "create_memory", "truncate_entry", "write_record",
    "unlock",
)  # fmt: skip
COMING_AS_JOINER = (
    "open_entry", "lock", "path_is_this_file", "find_live_member", "attach_memory", "append_record", "unlock",
)  # fmt: skip
LEAVING = ("cleanup", "lock_to_leave", "erase_record", "close_memory", "close_entry")
LEAVING_LAST = (*LEAVING[:-1], "unlink_entry", "close_entry")


def assert_a_new_start_works(engine_id: str, backing: str) -> None:
    """At once, with another nonce, and with nothing of the dead instance's in it."""
    left = what_is_left(engine_id)
    assert os.path.getsize(entry_of(engine_id)) <= 4096 if entry_of(engine_id) in left else True
    if backing == "memfd":
        assert memory_of(engine_id) not in left
    with region(engine_id, nonce="the next one", backing=backing) as new:
        assert new.is_creator
        assert not new.base_tensor.any()


@pytest.mark.parametrize("backing", ["memfd", "shm"])
@pytest.mark.parametrize("step", COMING_AS_CREATOR)
def test_a_creator_killed_on_the_way_in_costs_nobody_anything(engine_id: str, step: str, backing: str) -> None:
    options = {"nonce": "one", "backing": backing}
    with workers(3) as (creator, joiner, late):
        (outcome,) = construct([(creator, Plan(engine_id, 0, options, kill_at=step))])
        assert outcome.died, f"no such step: {step}"
        outcomes = construct([(joiner, Plan(engine_id, 1, options)), (late, Plan(engine_id, 0, options))])
        assert all(each.is_in for each in outcomes), outcomes
        assert outcomes[0].memory == outcomes[1].memory
        joiner.kill()
        late.kill()
        assert_a_new_start_works(engine_id, backing)


@pytest.mark.parametrize("backing", ["memfd", "shm"])
@pytest.mark.parametrize("step", COMING_AS_JOINER)
def test_a_joiner_killed_on_the_way_in_costs_nobody_anything(engine_id: str, step: str, backing: str) -> None:
    options = {"nonce": "one", "backing": backing}
    with workers(3) as (creator, joiner, late):
        (first,) = construct([(creator, Plan(engine_id, 0, options))])
        (outcome,) = construct([(joiner, Plan(engine_id, 1, options, kill_at=step))])
        assert outcome.died, f"no such step: {step}"
        (again,) = construct([(late, Plan(engine_id, 1, options))])
        assert again.is_in
        assert again.memory == first.memory
        creator.kill()
        late.kill()
        assert_a_new_start_works(engine_id, backing)


@pytest.mark.parametrize("backing", ["memfd", "shm"])
@pytest.mark.parametrize("step", LEAVING_LAST)
def test_the_last_member_killed_on_the_way_out_leaves_nothing_in_the_way(engine_id: str, step: str, backing: str) -> None:
    with workers(1) as (only,):
        construct([(only, Plan(engine_id, 0, {"backing": backing}))])
        assert only.ask("cleanup", step) is None, f"no such step: {step}"
        assert_a_new_start_works(engine_id, backing)


@pytest.mark.parametrize("backing", ["memfd", "shm"])
@pytest.mark.parametrize("step", LEAVING)
def test_a_creator_killed_on_the_way_out_leaves_the_memory_to_the_others(engine_id: str, step: str, backing: str) -> None:
    options = {"nonce": "one", "backing": backing}
    with workers(3) as (creator, joiner, late):
        first, _ = (construct([(each, Plan(engine_id, rank, options))])[0] for rank, each in enumerate((creator, joiner)))
        joiner.ask("sign", 7)
        assert creator.ask("cleanup", step) is None, f"no such step: {step}"
        (again,) = construct([(late, Plan(engine_id, 0, options))])
        assert again.memory == first.memory
        assert late.ask("look")[1] == 7
        for each in (joiner, late):
            each.ask("cleanup")
    assert what_is_left(engine_id) == []


BARRIER = {"populate_only_on_creator": True, "nonce": "one"}
ALONE = {
    "populate": Plan("", 0, BARRIER, barrier=True),
    "pass_barrier": Plan("", 0, BARRIER, barrier=True),
    "find_populated": Plan("", 0, BARRIER, barrier=True),
    "population_fails": Plan("", 0, BARRIER, barrier=True, break_at="arena.shm.population.populate"),
    "find_unpopulated": Plan("", 0, BARRIER, barrier=True, break_at="arena.shm.population.populate"),
    "memory_check_fails": Plan("", 0, {"nonce": "one"}, check_error="too little"),
}
WITH_ANOTHER = {
    "find_other_instance": Plan("", 0, {"nonce": "other"}),
    "find_failed_creator": Plan("", 0, {"nonce": "one"}, check_error="too little"),
}
IN_A_RACE = ("path_is_another_file", "member_died_meanwhile")


def test_every_step_is_one_to_die_at() -> None:
    coming, leaving = {*COMING_AS_CREATOR, *COMING_AS_JOINER}, {*LEAVING, *LEAVING_LAST}
    assert coming | leaving | {*ALONE, *WITH_ANOTHER, *IN_A_RACE} == set(membership.STEPS)


@pytest.mark.parametrize("step", ALONE)
def test_a_process_killed_as_it_succeeds_or_fails_leaves_nothing_in_the_way(engine_id: str, step: str) -> None:
    with workers(1) as (only,):
        (outcome,) = construct([(only, replace(ALONE[step], engine_id=engine_id, kill_at=step))])
        assert outcome.died, f"no such step: {step}"
        assert_a_new_start_works(engine_id, "memfd")


@pytest.mark.parametrize("step", WITH_ANOTHER)
def test_a_process_killed_as_it_is_refused_leaves_nothing_in_the_way(engine_id: str, step: str) -> None:
    with workers(2) as (first, refused):
        construct([(first, replace(WITH_ANOTHER[step], engine_id=engine_id))])
        (outcome,) = construct([(refused, Plan(engine_id, 1, {"nonce": "one"}, kill_at=step))])
        assert outcome.died, f"no such step: {step}"
        first.kill()
        assert_a_new_start_works(engine_id, "memfd")


def test_a_process_killed_as_the_entry_is_replaced_leaves_nothing_in_the_way(engine_id: str) -> None:
    with workers(2) as (member, late):
        construct([(member, Plan(engine_id, 0))])
        late.tell("construct", Plan(engine_id, 1, driven=True, kill_at="path_is_another_file"))
        assert late.hear() == "open_entry"
        member.ask("cleanup")
        assert [late.ask("go"), late.ask("go")] == ["lock", None]
        assert_a_new_start_works(engine_id, "memfd")


def test_a_process_killed_as_the_member_it_found_dies_leaves_nothing_in_the_way(engine_id: str) -> None:
    with workers(2) as (member, late):
        construct([(member, Plan(engine_id, 0))])
        late.tell("construct", Plan(engine_id, 1, driven=True, kill_at="member_died_meanwhile"))
        heard = [late.hear()]
        while heard[-1] != "find_live_member":
            heard.append(late.ask("go"))
        member.kill()
        assert late.ask("go") is None
        assert_a_new_start_works(engine_id, "memfd")
