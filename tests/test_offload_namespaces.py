"""Members of other PID namespaces: they are reached with named memory, and their signs of life are locks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from offload_scripts import NOT_ALLOWED, join_from_another_namespace
from offload_support import (
    PAGE,
    Plan,
    construct,
    entry_of,
    region,
    run,
    workers,
)

from arena.errors import AttachError
from arena.shm import backing
from arena.shm.entry import Entry, Record


def test_a_live_member_in_another_pid_namespace_is_an_error_and_a_dead_one_is_stale(engine_id: str) -> None:
    with region(engine_id, 0) as mine:
        member = mine._use().member
        (offset,) = member.entry.read().records
        elsewhere = Record(**{**vars(member.entry.read().records[offset]), "namespace": 1, "rank": 5})
        member.entry.write_record(offset, elsewhere)
        with pytest.raises(AttachError, match=r"another PID namespace.*backing='shm'"):
            region(engine_id, 1)
        # The same record, and nobody holds its bytes.
        member.entry.erase_record(offset)
        member.entry.write_record(offset + 128, elsewhere)
        other = Entry.open(member.entry.path, create=False)
        assert backing.survivors(other) == {}
        other.close()
        member.entry.erase_record(offset + 128)
        member.entry.write_record(offset, Record(**{**vars(elsewhere), "namespace": os.stat("/proc/self/ns/pid").st_ino}))


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_shm_reaches_other_pid_namespaces_and_memfd_says_so(engine_id: str, backing: str) -> None:
    with region(engine_id, 0, backing=backing) as mine:
        mine.create_next_worker_view(4096).fill_(9)
        code, said = run(join_from_another_namespace, engine_id, backing)
        if code == NOT_ALLOWED:
            pytest.skip("a new PID namespace is not allowed here")
        if backing == "memfd":
            assert "another PID namespace" in said
            assert "backing='shm'" in said
        else:
            assert (code, said) == (0, "")
            assert int(mine.base_tensor[4096]) == 4


def test_a_rank_of_another_pid_namespace_is_free_when_its_member_has_died(engine_id: str) -> None:
    """Its record says a namespace of which nobody here knows a pid: the lock on it tells."""
    with region(engine_id, 0, backing="shm") as mine, workers(1) as (other,):
        construct([(other, Plan(engine_id, 1, {"backing": "shm"}, row_bytes=4 * PAGE, rows=2))])
        entry = mine._use().member.entry
        (offset,) = [offset for offset, each in entry.read().records.items() if each.rank == 1]
        entry.write_record(offset, replace(entry.read().records[offset], namespace=4242))
        with pytest.raises(AttachError, match=r"rank 1 .* is held"):
            region(engine_id, 1, backing="shm")
        other.kill()
        with region(engine_id, 1, backing="shm") as second:
            assert not second.is_creator


def test_a_member_that_could_not_take_itself_out_does_not_keep_its_rank(engine_id: str) -> None:
    """Somebody is stopped with the lock; its process lives on."""
    with region(engine_id, 0, backing="shm"):
        second = region(engine_id, 1, backing="shm")
        stopped = Entry.open(Path(entry_of(engine_id)), create=False)
        stopped.lock()
        second.cleanup()
        stopped.close()
        with region(engine_id, 1, backing="shm") as again:
            assert not again.is_creator
