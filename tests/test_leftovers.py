"""What killed processes leave is found and removed; what somebody has is not, in whatever PID namespace."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner
from support import WATCHDOG_S, queue_of, wait_until

from arena import ArenaConfig, MessageQueue
from arena.errors import CapacityError
from arena.message import outofband
from arena.shm import capacity, directory, layout, leftovers, names
from arena.tools import gc

WRITER = """
import sys, time
from arena import ArenaConfig, MessageQueue, SharedOffloadRegion
from arena.shm import capacity, directory
capacity.SHM_DIRECTORY = directory.SHM_DIRECTORY = sys.argv[2]
queue = MessageQueue(2, 2, max_chunk_bytes=4096, arena=ArenaConfig(capacity_bytes=1 << 20, slots=4, backing="shm"))
region = SharedOffloadRegion(sys.argv[1], 4, 0, 4096, 4096, backing="shm")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What stands for /dev/shm, and is the only place that is swept: other runs do not see it."""
    path = Path(tempfile.mkdtemp())  # short: a socket is made in it
    monkeypatch.setattr(capacity, "SHM_DIRECTORY", str(path))
    monkeypatch.setattr(directory, "SHM_DIRECTORY", str(path))
    monkeypatch.setattr(leftovers, "default_places", lambda: (path,))
    yield path
    path.rmdir()  # nothing is left in it


@contextmanager
def process(shm: Path, engine_id: str, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A writer that no reader has joined, and a region: both have names."""
    command = [*before, sys.executable, "-W", "error", "-c", WRITER, engine_id, str(shm)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        if child.stdout.readline() != "ready\n":
            pytest.skip(f"no process here: {child.stderr.read().strip()}")
        yield child
    finally:
        child.kill()
        child.communicate(timeout=WATCHDOG_S)


def found(engine_id: str, pid: int, *, remove: bool) -> list[str]:
    """What of this test is nobody's."""
    all_found = leftovers.collect(remove=remove)
    ours = [each for each in all_found if each.path.name.startswith(f"arena-{pid}-") or engine_id in each.path.name]
    assert all(each.nbytes >= 0 for each in ours)
    return sorted(each.what for each in ours)


def names_of(shm: Path, engine_id: str, pid: int) -> list[str]:
    return sorted(str(path) for path in [*shm.glob(f"arena-{pid}-*"), *shm.glob(f"arena-*/*-{engine_id}*")])


EVERYTHING = ["offload region", "segment", "socket"]


@pytest.fixture
def engine_id() -> str:
    return f"leftovers-{os.getpid()}"


def test_what_a_killed_writer_left_is_removed_and_a_living_one_keeps_its_names(shm: Path, engine_id: str) -> None:
    with process(shm, engine_id) as child:
        assert len(names_of(shm, engine_id, child.pid)) == 4  # the region has an entry and its memory
        assert found(engine_id, child.pid, remove=True) == []
        os.kill(child.pid, signal.SIGSTOP)
        assert found(engine_id, child.pid, remove=True) == []
        assert len(names_of(shm, engine_id, child.pid)) == 4
        os.kill(child.pid, signal.SIGKILL)
        child.wait(WATCHDOG_S)
        assert found(engine_id, child.pid, remove=False) == EVERYTHING
        assert len(names_of(shm, engine_id, child.pid)) == 4
        assert found(engine_id, child.pid, remove=True) == EVERYTHING
        assert names_of(shm, engine_id, child.pid) == []
        assert found(engine_id, child.pid, remove=True) == []


def test_a_pid_that_means_another_process_here_proves_nothing(shm: Path, engine_id: str) -> None:
    """In its own PID namespace the writer is process 1, which lives here, too: its locks say whether it does there."""
    with process(shm, engine_id, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc") as child:
        assert len(names_of(shm, engine_id, 1)) == 4
        assert found(engine_id, 1, remove=True) == []
        child.kill()
        child.wait(WATCHDOG_S)
        wait_until(lambda: found(engine_id, 1, remove=False) == EVERYTHING, "its death")
        assert found(engine_id, 1, remove=True) == EVERYTHING
        assert names_of(shm, engine_id, 1) == []


FILE, DIRECTORY = f"arena-1-{'0' * 32}", f"arena-1-{'0' * 8}"
"""Names as arena makes them."""


def foreign_directory(path: Path, *inside: str, mode: int = 0o700) -> None:
    path.mkdir(mode)
    for name in inside:
        (path / name).write_text("theirs")


def foreign_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.write_bytes(content)
    path.chmod(mode)


FOREIGN: dict[str, Callable[[Path], None]] = {
    "notes": lambda at: foreign_file(at / "arena-notes-2026.txt", b"theirs"),
    "notes, empty": lambda at: foreign_file(at / "arena-1-notes", b""),
    "a tree": lambda at: foreign_directory(at / "arena-hard-auto", "results.json"),
    "an empty tree": lambda at: foreign_directory(at / "arena-hard-auto"),
    "our name, not our head": lambda at: foreign_file(at / FILE, b"theirs"),
    "our name, too long": lambda at: foreign_file(at / f"{FILE}0", b""),
    "our name, others may read": lambda at: foreign_file(at / FILE, b"", 0o644),
    "our directory's name on a file": lambda at: foreign_file(at / DIRECTORY, b""),
    "our file's name on a directory": lambda at: foreign_directory(at / FILE),
    "our directory, with a file": lambda at: foreign_directory(at / DIRECTORY, "theirs"),
    "our directory, with a file for a socket": lambda at: foreign_directory(at / DIRECTORY, "socket"),
    "our directory, others may enter": lambda at: foreign_directory(at / DIRECTORY, mode=0o755),
    "a link": lambda at: (at / FILE).symlink_to(at / "elsewhere"),
    "a fifo": lambda at: os.mkfifo(at / FILE),
    "no pid": lambda at: (at / "arena").touch(),
    "another program": lambda at: (at / "other-1-x").touch(),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_nobody_elses_files_are_touched(tmp_path: Path, what: str) -> None:
    """What only looks like ours, is a link, or cannot be opened."""
    FOREIGN[what](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert before
    assert leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path, tmp_path / "none")) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_entries_are_looked_for_in_a_directory_of_ours_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "offload-notes").touch()
    assert leftovers.collect(remove=True, entries=tmp_path, places=()) == []
    assert (tmp_path / "offload-notes").exists()


@pytest.mark.parametrize("head", [b"", bytes(4096), layout.MAGIC.to_bytes(8, "little") + b"more"])
def test_a_segment_is_known_by_its_head_or_has_none_yet(tmp_path: Path, head: bytes) -> None:
    """Its writer may be killed before it has written there."""
    path, fd = names.new_file(str(tmp_path), "0" * 32)
    os.write(fd, head)
    names.close_kept(fd)
    (found,) = leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path,))
    assert (str(found.path), found.what) == (path, "segment")
    assert list(tmp_path.iterdir()) == []


# ---- where there are no locks


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The error that says so; ``test_limits.py`` has a kernel say it."""
    code: int = request.param

    def refuse(fd: int, kind: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    return code


def test_what_is_named_for_a_moment_needs_no_lock(no_locks: int) -> None:
    with MessageQueue(1, 1, arena=None):
        assert not list(Path(tempfile.gettempdir()).glob("arena-*"))


def test_a_lasting_name_without_a_lock_is_refused_and_nothing_is_left(tmp_path: Path, no_locks: int) -> None:
    text = rf"{tmp_path}/arena-\d+-\w+ cannot be locked: .*errno {no_locks}.*memfd"
    with pytest.raises(CapacityError, match=text):
        names.new_file(str(tmp_path), "0" * 32)
    with pytest.raises(CapacityError, match=text):
        names.new_directory(str(tmp_path), lasting=True)
    assert list(tmp_path.iterdir()) == []


def test_without_locks_nothing_is_proven_and_nothing_removed(tmp_path: Path, no_locks: int) -> None:
    foreign_file(tmp_path / FILE, b"")
    (tmp_path / "offload-x").touch()
    assert leftovers.collect(remove=True, entries=tmp_path, places=(tmp_path,)) == []
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EINVAL])
def test_a_socket_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Neither a directory nor a descriptor, in the writer and in the reader."""

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    def refuse_context() -> None:
        raise zmq.ZMQError(code)

    is_short = code == errno.EMFILE
    with queue_of(1, arena=None, max_chunk_bytes=1024) as (writer, [reader]):
        with monkeypatch.context() as patch:
            patch.setattr(outofband, "_listen", refuse)
            with pytest.raises(CapacityError if is_short else OSError):
                MessageQueue(1, 1, arena=None)
        with monkeypatch.context() as patch:
            patch.setattr(zmq, "Context", refuse_context)
            typed = CapacityError if is_short else zmq.ZMQError
            with pytest.raises(typed):
                writer.enqueue(bytes(5000), timeout=WATCHDOG_S)
            with pytest.raises(typed):
                MessageQueue.create_from_handle(writer.export_handle(), 0)
        writer.enqueue(bytes(5001), timeout=WATCHDOG_S)
        assert reader.dequeue(WATCHDOG_S) == bytes(5001)


# ---- a sweep while something is made


def test_a_name_that_is_taken_for_a_dead_ones_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep comes between the making and the lock."""
    real = names._lock
    swept: list[list[leftovers.Leftover]] = []

    def sweep_first(path: str, fd: int, *, lasting: bool) -> bool:
        if not swept:
            swept.append(leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path,)))
        return real(path, fd, lasting=lasting)

    monkeypatch.setattr(names, "_lock", sweep_first)
    where = str(tmp_path)
    for make in (lambda: names.new_file(where, "0" * 32), lambda: names.new_directory(where, lasting=True)):
        swept.clear()
        path, fd = make()
        assert [str(each.path) for each in swept[0]] == [path]
        assert names.is_at(path, fd)
        assert leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path,)) == []
        names.close_kept(fd)
        assert [str(each.path) for each in leftovers.collect(remove=True, places=(tmp_path,), entries=tmp_path)] == [path]


def test_a_directory_that_is_swept_before_it_is_open_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir
    swept: list[leftovers.Leftover] = []

    def make_and_sweep(path: str, mode: int) -> None:
        real(path, mode)
        if not swept:
            swept.extend(leftovers.collect(remove=True, entries=tmp_path / "none", places=(tmp_path,)))

    monkeypatch.setattr(os, "mkdir", make_and_sweep)
    path, fd = names.new_directory(str(tmp_path), lasting=True)
    assert [str(each.path) for each in swept] == [path]
    assert names.is_at(path, fd)
    names.close_kept(fd)


# ---- the command


def test_the_command_looks_where_names_are_made() -> None:
    """Without removing anything: these places are everybody's."""
    path, fd = names.new_directory(tempfile.gettempdir(), lasting=True)
    names.close_kept(fd)
    listed = CliRunner().invoke(gc.command, ["--dry-run"])
    names.remove_directory(path)
    assert listed.exit_code == 0
    assert f"{path}: socket, " in listed.output
    assert {Path("/dev/shm"), Path("/tmp"), Path(tempfile.gettempdir())} == {*leftovers.default_places()}


def test_the_command_lists_and_removes(shm: Path, engine_id: str) -> None:
    with process(shm, engine_id) as child:
        child.kill()
        child.wait(WATCHDOG_S)
        listed = CliRunner().invoke(gc.command, ["--dry-run", "--json"])
        assert listed.exit_code == 0
        answer = json.loads(listed.output)
        assert answer["removed"] is False
        assert {each["path"] for each in answer["leftovers"]} >= {str(p) for p in shm.glob(f"arena-{child.pid}-*")} != set()
        removed = CliRunner().invoke(gc.command, [])
        assert removed.exit_code == 0
        assert f"arena-{child.pid}-" in removed.output
        assert "removed, " in removed.output
        assert names_of(shm, engine_id, child.pid) == []


def test_a_start_sweeps_nothing_by_itself(shm: Path, engine_id: str) -> None:
    """What others have left is theirs to look at, until somebody says so."""
    with process(shm, engine_id) as child:
        child.kill()
        child.wait(WATCHDOG_S)
        left = names_of(shm, engine_id, child.pid)
        with MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=4, backing="shm")):
            assert names_of(shm, engine_id, child.pid) == left != []
        assert found(engine_id, child.pid, remove=True) == EVERYTHING
