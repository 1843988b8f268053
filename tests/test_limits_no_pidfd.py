"""Deaths on a kernel without pidfd: a seccomp filter has it refuse the call, in all processes of a queue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import WATCHDOG_S

BEGIN = """
import logging, os, signal, sys
import torch
from arena import ArenaConfig, MessageQueue
from arena.errors import WriterDied
from limits_support import REFUSALS, refuse
try:
    refuse(*REFUSALS["no pidfd"])
except OSError as error:
    print(error)
    os._exit(77)
logging.basicConfig(stream=sys.stdout, format="%(message)s")
ours, theirs = os.pipe()

def fork(function, *arguments):
    pid = os.fork()
    if not pid:
        function(*arguments)
        os._exit(0)
    return pid

def tell():
    os.write(theirs, b"x")

def hear():
    assert os.read(ours, 1)

def full(value):
    return torch.full((20_000,), value, dtype=torch.uint8)
"""


def run(program: str) -> list[str]:
    """The lines that a program prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEGIN + program],
        capture_output=True, text=True, timeout=WATCHDOG_S, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_a_readers_death_is_suspected_and_the_writer_goes_on_beside_the_arena() -> None:
    """Nothing of it is reclaimed, and what it has not read stays in the ring: the end of that names it."""
    lines = run("""
N = 20

def dies():
    queue = MessageQueue.create_from_handle(handle, 0)
    held = queue.dequeue(60)
    tell()
    signal.pause()

def serves():
    queue = MessageQueue.create_from_handle(handle, 1)
    for value in range(N):
        received = queue.dequeue(60)
        assert bool((received == value).all())
        del received
    tell()
    signal.pause()

writer = MessageQueue(2, 2, None, 64 << 10, 16, arena=ArenaConfig(1 << 20, slots=4, divert_bytes=4096))
handle = writer.export_handle()
pids = [fork(dies), fork(serves)]
writer.wait_until_ready(60)
writer.enqueue(full(0))
hear()
os.kill(pids[0], signal.SIGKILL)
os.waitpid(pids[0], 0)
for value in range(1, N):
    writer.enqueue(full(value), timeout=60)
hear()
assert writer.reap() == 0
now = writer.statistics()
print("DEATHS", now.deaths_total, [reader.alive for reader in now.readers])
print("SLOTS", now.slots_free, "DIVERTED", now.diverted_total, dict(now.fallback_total))
try:
    while True:
        writer.enqueue(full(0), timeout=0.2)
except TimeoutError as error:
    print("TIMEOUT", str(error).replace(str(pids[0]), "PID"))
os.kill(pids[1], signal.SIGKILL)
os.waitpid(pids[1], 0)
writer.shutdown()
print("SUSPECTED", pids[0])
""")
    *warnings, deaths, slots, timeout, suspected = lines
    pid = int(suspected.split()[1])
    suspicion = f"rank 0 (pid {pid}) seems dead; without pidfd that is no proof, and nothing is reclaimed"
    assert suspicion in warnings
    assert deaths == "DEATHS 0 [True, True]"
    assert slots == "SLOTS 0 DIVERTED 4 {'no_slot': 16}"
    assert timeout.startswith("TIMEOUT no room for a message of ")
    assert "rank 0 (pid PID) by " in timeout


def test_a_writers_death_ends_a_readers_wait() -> None:
    """Who only waits frees nothing by it; the reader's tensors stay."""
    lines = run("""
import pickle
handles, to_reader = os.pipe()

def dies():
    writer = MessageQueue(1, 1)
    os.write(to_reader, pickle.dumps(writer.export_handle()))
    writer.enqueue(full(7))
    signal.pause()

pid = fork(dies)
reader = MessageQueue.create_from_handle(pickle.loads(os.read(handles, 1 << 16)), 0)
kept = reader.dequeue(60)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
try:
    reader.dequeue()
except WriterDied as error:
    print(error)
reader.shutdown()
print(pid, bool((kept == 7).all()))
""")
    died, kept = lines
    pid = kept.removesuffix(" True")
    assert died == f"writer {pid} has died and every message is read; live tensors stay valid"
