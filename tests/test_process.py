"""Who a process is and whether it has ended: facts only."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support import WATCHDOG_S, wait_until

from arena import ObjectCache
from arena.shm import process
from arena.shm.process import Peer


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be ended."""
    started = subprocess.Popen(["sleep", "1000"])
    yield started
    started.kill()
    started.wait()


@pytest.fixture
def peer(child: subprocess.Popen[bytes]) -> Iterator[Peer]:
    start = process.start_time(child.pid)
    assert start is not None
    watched = Peer.watch(child.pid, start)
    yield watched
    watched.close()


def test_a_death_is_seen_before_anybody_waits_for_it(child: subprocess.Popen[bytes], peer: Peer) -> None:
    """A zombie is dead: its memory is gone, whether or not its parent looks."""
    assert not peer.is_dead()
    assert not peer.is_suspect()
    child.kill()
    wait_until(peer.is_dead, "the pidfd becomes readable")
    assert peer.how_it_ended() == "signal 9"
    child.wait()
    assert peer.is_dead()
    assert peer.how_it_ended().startswith("unknown how")


def test_a_stopped_process_is_not_dead(child: subprocess.Popen[bytes], peer: Peer) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: _state(child.pid) == "T", "the process is stopped")
    assert not peer.is_dead()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_exit_code() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE)
    peer = Peer.watch(child.pid, process.start_time(child.pid) or 0)
    assert peer.how_it_ended().startswith("unknown how")
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.close()
    wait_until(peer.is_dead, "the process ends")
    assert peer.how_it_ended() == "exit 3"
    child.wait()
    peer.close()


def test_a_reused_pid_is_another_process(child: subprocess.Popen[bytes]) -> None:
    start = process.start_time(child.pid)
    assert start is not None
    peer = Peer.watch(child.pid, start - 1)
    assert peer.is_dead()
    assert not peer.is_suspect()
    peer.close()
    assert peer.is_dead()


def test_a_pid_that_nobody_has() -> None:
    child = subprocess.Popen(["true"])
    start = process.start_time(child.pid) or 0
    child.wait()
    peer = Peer.watch(child.pid, start)
    assert peer.is_dead()
    assert peer.how_it_ended().startswith("unknown how")
    assert process.start_time(child.pid) is None


@pytest.mark.parametrize("error", [PermissionError, OSError(38, "Function not implemented"), AttributeError])
def test_without_pidfd_a_death_is_only_suspected(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes], error: object
) -> None:
    def refuse(pid: int) -> int:
        raise error  # type: ignore[misc]

    monkeypatch.setattr(os, "pidfd_open", refuse)
    peer = Peer.watch(child.pid, process.start_time(child.pid) or 0)
    assert not peer.is_dead()
    assert not peer.is_suspect()
    child.kill()
    child.wait()
    assert not peer.is_dead()
    assert peer.is_suspect()
    assert peer.how_it_ended().startswith("unknown how")
    peer.close()


@pytest.mark.parametrize("seen_first", [True, False])
def test_a_process_that_proc_hides_is_not_taken_for_a_dead_one(
    child: subprocess.Popen[bytes], seen_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As hidepid=2 hides one that is not dumpable from its own user."""
    start = process.start_time(child.pid) or 0
    early = Peer.watch(child.pid, start) if seen_first else None
    monkeypatch.setattr(process, "start_time", lambda pid: None)
    if early is not None:  # the application has closed the descriptor, so that only /proc would tell
        os.close(early.pidfd)
    peer = early or Peer.watch(child.pid, start)
    assert not peer.is_dead()
    assert not peer.is_suspect()
    child.kill()
    child.wait()
    assert peer.has_gone()
    peer.close()


def test_own_start_time_is_stable() -> None:
    assert process.own_start_time() == process.start_time(os.getpid())


def test_names_with_brackets_do_not_confuse() -> None:
    """The second field of /proc/<pid>/stat is free text."""
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) R 1 2 ('); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    before = process.start_time(child.pid)
    assert before is not None
    assert before >= process.own_start_time()
    child.communicate(b"\n")


def test_namespace_and_boot() -> None:
    assert process.pid_namespace() % (1 << 32) == os.stat("/proc/self/ns/pid").st_ino
    assert process.boot_id() == process.boot_id() != ""


def test_a_process_of_another_time_namespace_is_not_taken_for_a_dead_one() -> None:
    """Start times are shifted there: its reader was buried alive, and what it held was overwritten under its views."""
    program = """
import pickle, sys
from arena import ObjectCache
from arena.errors import AttachError
from arena.shm import process
print(process.start_time(int(sys.argv[2])) != int(sys.argv[3]))
try:
    ObjectCache.attach(pickle.loads(bytes.fromhex(sys.argv[1])), 0)
except AttachError as error:
    print("time namespace" in str(error), "backing='shm'" in str(error))
"""
    with ObjectCache(1 << 20, 1) as cache:
        arguments = [pickle.dumps(cache.export_handle()).hex(), str(os.getpid()), str(process.own_start_time())]
        command = ["unshare", "--time", "--boottime", "1000", "--fork", sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"no time namespace here: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("True\nTrue True\n", "")


def test_a_descriptor_that_the_application_closed_proves_nothing(child: subprocess.Popen[bytes], peer: Peer) -> None:
    """By closerange, or a double close. The death is a fact once the process has been waited for."""
    os.close(peer.pidfd)
    assert not peer.is_dead()
    child.kill()
    child.wait()
    assert peer.is_dead()


@pytest.mark.parametrize("what", ["/dev/null", "another's pidfd"])
def test_a_descriptor_that_is_another_files_by_now_proves_nothing(child: subprocess.Popen[bytes], what: str) -> None:
    """It is readable: whoever took it for a death would free what a living reader shows. And it is not ours to close."""
    other = subprocess.Popen(["true"])
    new = os.open(what, os.O_RDONLY) if what == "/dev/null" else os.pidfd_open(other.pid)
    peer = Peer.watch(child.pid, process.start_time(child.pid) or 0)
    number = peer.pidfd
    try:
        os.dup2(new, number)
        if what != "/dev/null":
            wait_until(lambda: bool(select.select([number], [], [], 0)[0]), "the other has ended")
        assert not peer.is_dead()
        peer.close()
        os.fstat(number)
    finally:
        os.close(number)
        os.close(new)
        other.wait()
