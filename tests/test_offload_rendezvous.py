"""The rendezvous with real processes: they race, they die at every step, and the code takes the model's steps."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from offload_scripts import fork_and_die, forked
from offload_support import (
    PAGE,
    Plan,
    Worker,
    construct,
    entry_of,
    put_in_the_way,
    random_delay,
    region,
    run,
    what_is_left,
    workers,
)

from arena.errors import AttachError, CapacityError
from arena.shm import backing, leftovers, membership, process, rendezvous
from arena.shm.entry import RECORD_BYTES, RECORDS_OFFSET, Entry, Failure, Record
from arena.shm.membership import Place, Wanted
from arena.shm.native import lib
from spec.models.rendezvous_steps import RECOMMENDED


def test_the_steps_are_those_of_the_model() -> None:
    assert set(membership.STEPS) == {each.function for each in RECOMMENDED} - {None}


# ---- races


def one_round(pool: list[Worker], engine_id: str, nonce: str, rng: random.Random) -> None:
    """A few processes come at once; all are in one memory; all leave at once."""
    for place, each in enumerate(pool):
        if not each.process.is_alive():
            each.end()
            pool[place] = Worker()
    chosen = rng.sample(pool, rng.randint(2, len(pool)))
    plans = [(each, Plan(engine_id, rank, {"nonce": nonce}, delay_s=random_delay(rng))) for rank, each in enumerate(chosen)]
    outcomes = construct(plans)
    assert all(each.is_in for each in outcomes), outcomes
    assert len({each.memory for each in outcomes}) == 1, outcomes
    assert sum(each.is_creator for each in outcomes) == 1
    for value, each in enumerate(chosen):
        each.tell("sign", value + 1)
    assert [each.hear() for each in chosen] == [value + 1 for value in range(len(chosen))]
    seen = [value + 1 for value in range(len(chosen))] + [0] * (8 - len(chosen))
    for each in chosen:
        assert each.ask("look") == seen
    for each in chosen:
        each.tell("cleanup")
    for each in chosen:
        assert each.hear() is not None
    assert what_is_left(engine_id) == []


def race(engine_id: str, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    with workers(8) as pool:
        for number in range(rounds):
            one_round(pool, engine_id, str(number), rng)


def test_processes_that_race_meet_in_one_memory(engine_id: str, seed: int) -> None:
    race(engine_id, seed, 30)


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_thousand_races(engine_id: str, seed: int) -> None:
    race(engine_id, seed, 1000)


def deadly_round(pool: list[Worker], engine_id: str, nonce: str, rng: random.Random) -> None:
    """The same, but some are killed at a random step on the way in, and members leave while others come."""
    plans = []
    for rank, place in enumerate(rng.sample(range(len(pool)), rng.randint(2, len(pool)))):
        if not pool[place].process.is_alive():
            pool[place].end()
            pool[place] = Worker()
        kill_at = rng.choice((None, None, rng.choice(membership.STEPS)))
        plan = Plan(engine_id, rank, {"nonce": nonce}, delay_s=random_delay(rng), kill_at=kill_at)
        plans.append((pool[place], plan))
    outcomes = construct(plans)
    alive = [(worker, each) for (worker, _), each in zip(plans, outcomes, strict=True) if not each.died]
    assert all(each.is_in for _, each in alive), outcomes
    # All who live are in now, so two memories would be a split at this moment.
    assert len({each.memory for _, each in alive}) <= 1, outcomes
    for worker, _ in alive:
        worker.tell("cleanup", rng.choice((None, None, rng.choice(membership.STEPS))))
    for worker, _ in alive:
        worker.hear()


def deadly_race(engine_id: str, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    with workers(6) as pool:
        for number in range(rounds):
            deadly_round(pool, engine_id, str(number), rng)
            assert len(what_is_left(engine_id)) <= 1
    with region(engine_id):  # takes over whatever the last round left
        pass


def test_processes_that_die_on_the_way_split_nobody(engine_id: str, seed: int) -> None:
    deadly_race(engine_id, seed, 30)


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_thousand_deadly_races(engine_id: str, seed: int) -> None:
    deadly_race(engine_id, seed, 1000)


# ---- who is who


def test_a_late_joiner_comes_in_through_any_live_member(engine_id: str) -> None:
    with workers(4) as (creator, second, third, scheduler):
        first, _, _ = (construct([(each, Plan(engine_id, rank))])[0] for rank, each in enumerate((creator, second, third)))
        creator.kill()
        second.ask("cleanup")
        (late,) = construct([(scheduler, Plan(engine_id, None))])
        assert late.is_in
        assert not late.is_creator
        assert late.memory == first.memory
        third.ask("cleanup")
        scheduler.ask("cleanup")


def test_a_live_instance_with_another_nonce_is_an_error_that_names_it(engine_id: str) -> None:
    with workers(2) as (one, other):
        construct([(one, Plan(engine_id, 0, {"nonce": "one"}))])
        (refused,) = construct([(other, Plan(engine_id, 1, {"nonce": "other"}))])
        assert refused.error == "AttachError"
        assert f"process {one.pid}" in refused.text
        one.kill()
        (taken,) = construct([(other, Plan(engine_id, 1, {"nonce": "other"}))])
        assert taken.is_creator
        other.ask("cleanup")


def test_a_rank_that_is_alive_cannot_be_taken_and_one_that_died_can(engine_id: str) -> None:
    with workers(3) as (one, other, third):
        first, _ = (construct([(each, Plan(engine_id, rank))])[0] for rank, each in enumerate((one, other)))
        (refused,) = construct([(third, Plan(engine_id, 1))])
        assert refused.error == "AttachError"
        assert f"process {other.pid}" in refused.text
        other.kill()
        (again,) = construct([(third, Plan(engine_id, 1))])
        assert again.memory == first.memory
        for each in (one, third):
            each.ask("cleanup")


@pytest.mark.parametrize("change", [{"row_bytes": 16 * 4096}, {"row_bytes": 4 * 4096}])
def test_joiners_must_agree_on_the_sizes(engine_id: str, change: dict[str, int]) -> None:
    with workers(2) as (one, other):
        construct([(one, Plan(engine_id, 0))])
        (refused,) = construct([(other, Plan(engine_id, 1, **change))])  # type: ignore[arg-type]
        assert refused.error == "AttachError"
        assert "kv_bytes_per_chunk" in refused.text
        one.ask("cleanup")


@pytest.mark.parametrize(("first", "second"), [("memfd", "shm"), ("shm", "memfd")])
def test_members_must_agree_on_the_backing(engine_id: str, first: str, second: str) -> None:
    """And whoever is refused has done nothing to those who are alive."""
    with region(engine_id, 0, backing=first) as mine:
        left = what_is_left(engine_id)
        with pytest.raises(AttachError, match=f"has backing='{first}' .* wants backing='{second}'"):
            region(engine_id, 1, backing=second)
        assert what_is_left(engine_id) == left
        with region(engine_id, 1, backing=first) as joiner:
            joiner.create_next_worker_view(PAGE).fill_(7)
            assert int(mine.base_tensor[PAGE]) == 7


def test_no_engines_entry_is_another_ones_memory(engine_id: str) -> None:
    with region(engine_id, 0, backing="shm") as named:
        for other_id in (f"{engine_id}.data", f"memory-{engine_id}", f"{engine_id}-memory"):
            with region(other_id, 0) as other, region(other_id, 1) as joiner:
                assert other.is_creator
                assert not joiner.is_creator
        with region(engine_id, 1, backing="shm") as joiner:
            assert not joiner.is_creator
        assert named.is_creator


def test_memory_that_a_dead_instance_named_goes_with_the_next_start(engine_id: str) -> None:
    """Whatever backing that has."""
    with workers(1) as (only,):
        construct([(only, Plan(engine_id, 0, {"backing": "shm"}))])
        only.kill()
    assert len(what_is_left(engine_id)) == 2
    with region(engine_id, 0, backing="memfd") as mine:
        assert mine.is_creator
        assert len(what_is_left(engine_id)) == 1


# ---- what stands at the path already


def a_dead_record(nonce: bytes) -> Record:
    ended = subprocess.run([sys.executable, "-S", "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return Record(int(ended.stdout), 12345, namespace, 0, 7, 1, 2, 2 * 4 * 4096, 4 * 4096, nonce, "memfd")


LEFTOVERS = {
    "empty": lambda: b"",
    "garbage": lambda: os.urandom(3000),
    "torn": lambda: bytes(RECORDS_OFFSET) + a_dead_record(bytes(16)).pack()[:40],
    "dead, same nonce": lambda: bytes(RECORDS_OFFSET) + a_dead_record(membership.nonce_bytes("mine")).pack(),
    "dead, other nonce": lambda: bytes(RECORDS_OFFSET) + a_dead_record(membership.nonce_bytes("other")).pack(),
    "a dead one's failure": lambda: bytes(64) + Failure(membership.nonce_bytes("mine"), 1, 0, 0, "ArenaError\nold").pack(),
}


@pytest.mark.parametrize("kind", LEFTOVERS)
def test_a_stale_entry_is_taken_over_in_place(engine_id: str, kind: str) -> None:
    content = LEFTOVERS[kind]()
    path = put_in_the_way(engine_id, lambda at: at.write_bytes(content))
    inode = path.stat().st_ino
    with region(engine_id, nonce="mine") as mine:
        assert mine.is_creator
        assert path.stat().st_ino == inode
        assert path.stat().st_size <= 4096


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_something_else_at_the_path_is_refused(engine_id: str, kind: str, tmp_path: Path) -> None:
    makers: dict[str, Callable[[Path], object]] = {
        "symlink": lambda at: at.symlink_to(tmp_path / "elsewhere"),
        "fifo": os.mkfifo,
        "directory": Path.mkdir,
    }
    path = put_in_the_way(engine_id, makers[kind])
    try:
        with pytest.raises(AttachError, match=r"cannot be opened|not a regular file"):
            region(engine_id)
    finally:
        path.rmdir() if kind == "directory" else path.unlink()


def wanted(where: Path) -> Wanted:
    return Wanted("region", bytes(16), 0, 4096, 4096, directory=where)


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(AttachError, match="nobody else can enter"):
        rendezvous.join(wanted(tmp_path), Place())


def test_an_entry_stays_small_however_many_come_and_go(engine_id: str) -> None:
    with region(engine_id, 0):
        for _ in range(100):
            with region(engine_id, 1):
                pass
        assert os.path.getsize(entry_of(engine_id)) <= 4096


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_an_entry_stays_small_however_many_come_and_are_killed(engine_id: str, backing: str) -> None:
    """A dead member's place is taken by the next one, and a live one's never."""
    with region(engine_id, 0, backing=backing) as mine, workers(1) as (other,):
        for _ in range(5):
            (outcome,) = construct([(other, Plan(engine_id, 1, {"backing": backing}, row_bytes=4 * PAGE, rows=2))])
            assert outcome.is_in, outcome.text
            with region(engine_id, 2, backing=backing):
                entry = Entry.open(Path(entry_of(engine_id)), create=False)
                assert sorted(each.rank for each in entry.read().records.values()) == [0, 1, 2]
                entry.close()
            other.kill()
            other = Worker()
        assert mine.is_creator
        other.end()


def test_members_that_an_entry_has_no_place_for_are_refused(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arena.shm.entry.ENTRY_BYTES_MAX", RECORDS_OFFSET + 2 * RECORD_BYTES)
    with region(engine_id, 0), region(engine_id, 1):
        with pytest.raises(CapacityError, match="2 members at most"):
            region(engine_id, 2)


def test_a_successor_is_not_unlinked_by_the_generation_before(engine_id: str) -> None:
    """Case 35: the path was removed by hand, and another generation has made it again."""
    first = region(engine_id, 0)
    os.unlink(entry_of(engine_id))
    with region(engine_id, 0, nonce="second") as second:
        first.cleanup()
        assert what_is_left(engine_id) == [entry_of(engine_id)]
        with region(engine_id, 1, nonce="second") as joiner:
            assert not joiner.is_creator
            assert second.is_creator


def test_what_dead_runs_left_can_be_removed_and_the_living_stay(tmp_path: Path) -> None:
    member = rendezvous.join(wanted(tmp_path), Place())
    try:
        for name in ("offload-stale", "memory-stale", "offload-torn", "mine.txt"):
            (tmp_path / name).write_bytes(b"x" * 2000)
        stale = [tmp_path / "offload-stale", tmp_path / "offload-torn"]
        for remove in (False, True):
            assert [each.path for each in leftovers.collect(remove=remove, entries=tmp_path, places=())] == stale
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "offload-region"]
    finally:
        lib.arena_map_release(member.mapping)
        rendezvous.leave(member)
    assert leftovers.collect(remove=True, entries=tmp_path / "none", places=()) == []


def test_named_memory_whose_entry_is_gone_can_be_removed_unless_somebody_has_it(tmp_path: Path) -> None:
    member = rendezvous.join(replace(wanted(tmp_path), backing="shm"), Place())
    try:
        member.entry.unlink()
        (lost := tmp_path / "memory-lost").write_bytes(b"x" * 2000)
        for remove in (False, True):
            assert [each.path for each in leftovers.collect(remove=remove, entries=tmp_path, places=())] == [lost]
        assert [path.name for path in tmp_path.iterdir()] == ["memory-region"]
    finally:
        lib.arena_map_release(member.mapping)
        rendezvous.leave(member)
    assert [each.what for each in leftovers.collect(remove=True, entries=tmp_path, places=())] == ["offload region"]
    assert not tmp_path.exists()


# ---- the lock


def test_a_stopped_holder_of_the_lock_is_named(engine_id: str) -> None:
    """Case 42: nobody waits for ever; and a holder that dies holds nothing."""
    with workers(2) as (holder, other):
        holder.tell("construct", Plan(engine_id, 0, driven=True))
        assert [holder.hear(), holder.ask("go")] == ["open_entry", "lock"]
        (refused,) = construct([(other, Plan(engine_id, 1))])
        assert refused.error == "TimeoutError"
        assert f"process {holder.pid}" in refused.text
        holder.kill()
        (outcome,) = construct([(other, Plan(engine_id, 1))])
        assert outcome.is_creator
        other.ask("cleanup")


@pytest.mark.parametrize("how", ["sys.exit", "_exit", "drop", "cleanup"])
@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_a_forked_child_takes_nothing_from_its_parent(engine_id: str, how: str, backing: str) -> None:
    """Case 40."""
    assert run(forked, engine_id, how, backing) == (0, "")


@pytest.mark.parametrize("backing", ["memfd", "shm"])
@pytest.mark.parametrize("step", ["lock", "write_record", "unlock"])
def test_a_forked_child_keeps_no_dead_parents_lock_or_place(engine_id: str, step: str, backing: str) -> None:
    code, said = run(fork_and_die, engine_id, backing, step)
    assert code == -signal.SIGKILL
    child = int(said)
    try:
        with region(engine_id, nonce="next", backing=backing) as new:
            assert new.is_creator
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_reused_pid_is_not_taken_for_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptors cannot be looked at, so that only the start time tells it from the dead member."""

    look = os.stat

    def forbidden(path: str, **options: bool) -> os.stat_result:
        if str(path).startswith("/proc/") and "/fd/" in str(path):
            raise PermissionError(13, "Permission denied")
        return look(path, **options)

    monkeypatch.setattr(backing.os, "stat", forbidden)
    mine = Record(os.getpid(), process.own_start_time(), 0, 0, 3, 1, 2, 4096, 4096, bytes(16), "memfd")
    assert backing._has_memory(mine)
    assert not backing._has_memory(replace(mine, start=mine.start + 1))
