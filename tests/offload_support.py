"""Real processes that construct offload regions as a test tells them: step by step, together, or to their death."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

from arena.errors import CapacityError
from arena.offload import SharedOffloadRegion
from arena.shm import directory as places
from arena.shm import meeting, membership
from arena.shm.backing import memory_path
from arena.shm.capacity import SHM_DIRECTORY
from arena.shm.directory import directory, entry_name
from arena.shm.entry import Entry

WATCHDOG_S = 60.0
ROWS = 4
PAGE = 4096
RANKS = 8

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["arena.offload"])


@dataclass(frozen=True)
class Plan:
    """What a process is to construct, and what is to happen to it on the way."""

    engine_id: str
    rank: int | None = 0
    options: dict[str, Any] = field(default_factory=dict)
    barrier: bool = False
    delay_s: float = 0.0
    kill_at: str | None = None
    break_at: str | None = None  # a function, by its full name, that fails
    check_error: str | None = None
    driven: bool = False  # stop after each step until told to go on
    cpu_page_size: int = PAGE
    row_bytes: int = PAGE * RANKS
    rows: int = ROWS
    place: str = SHM_DIRECTORY  # of the directory of the entries


@dataclass
class Outcome:
    """How it went."""

    died: bool = False
    error: str = ""  # its type
    text: str = ""
    barrier_calls: int = 0
    is_creator: bool = False
    memory: tuple[int, int] = (0, 0)
    began: float = 0.0
    ended: float = 0.0

    @property
    def is_in(self) -> bool:
        return not self.died and not self.error


class Worker:
    """A process that constructs regions, one at a time, and keeps the last one."""

    def __init__(self) -> None:
        self.connection, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def tell(self, command: str, *args: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((command, *args))

    def hear(self) -> Any:
        """The next message; None if the process has died."""
        if not self.connection.poll(WATCHDOG_S):
            raise AssertionError(f"process {self.pid} said nothing for {WATCHDOG_S} s")
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(WATCHDOG_S)
            return None

    def ask(self, command: str, *args: Any) -> Any:
        self.tell(command, *args)
        return self.hear()

    def kill(self) -> None:
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(WATCHDOG_S)

    def end(self) -> None:
        self.connection.close()
        self.process.join(WATCHDOG_S)
        if self.process.is_alive():
            self.kill()
        self.process.close()


@contextlib.contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    """Processes that end with the block, however it ends."""
    started: list[Worker] = []
    try:
        started.extend(Worker() for _ in range(count))
        yield started
    finally:
        for each in started:
            each.end()


def construct(plans: Sequence[tuple[Worker, Plan]], *, barrier: str = "passes") -> list[Outcome]:
    """All at once; the barrier opens when all who live have come, and then it passes or breaks."""
    for worker, plan in plans:
        worker.tell("construct", plan)
    outcomes = {worker: Outcome() for worker, _ in plans}
    busy, at_barrier = set(outcomes), set()
    while busy:
        ready = wait([worker.connection for worker in busy - at_barrier], WATCHDOG_S)
        if not ready and busy != at_barrier:
            raise AssertionError(f"processes {[worker.pid for worker in busy - at_barrier]} hang")
        for worker in [each for each in busy if each.connection in ready]:
            message = worker.hear()
            if message == "barrier":
                outcomes[worker].barrier_calls += 1
                at_barrier.add(worker)
                continue
            busy.discard(worker)
            if message is None:
                outcomes[worker].died = True
            else:
                message.barrier_calls = outcomes[worker].barrier_calls
                outcomes[worker] = message
        if busy and busy == at_barrier:
            for worker in at_barrier:
                worker.tell(barrier)
            at_barrier = set()
    return list(outcomes.values())


def region(engine_id: str, rank: int | None = 0, barrier: Any = None, **options: Any) -> SharedOffloadRegion:
    """A small one in this process."""
    return SharedOffloadRegion(engine_id, 2, rank, 4 * PAGE, PAGE, barrier, **options)


def fresh_id() -> str:
    """An engine's id that nobody has."""
    return f"test-{uuid.uuid4().hex[:12]}"


def pages_of(region: SharedOffloadRegion) -> int:
    """How many pages its memory has."""
    return os.fstat(region._use().member.memory_fd).st_blocks * 512 // PAGE


def entry_of(engine_id: str) -> str:
    return str(directory() / entry_name(engine_id))


def memory_of(engine_id: str) -> str:
    """Where it is, if it has a name."""
    return str(memory_path(Path(entry_of(engine_id))))


def what_is_left(engine_id: str) -> list[str]:
    """Names of an engine's that are still there."""
    return [name for name in (entry_of(engine_id), memory_of(engine_id)) if os.path.exists(name)]


def put_in_the_way(engine_id: str, make: Callable[[Path], object]) -> Path:
    """Something that stands at an engine's path already; another run may remove the empty directory meanwhile."""
    path = Path(entry_of(engine_id))
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            make(path)
            return path
    raise AssertionError(f"{path.parent} is removed all the time")


def remove_what_is_left(engine_id: str) -> None:
    """What the dead left, of this engine alone."""
    for name in what_is_left(engine_id):
        os.unlink(name)


def run(function: Callable[..., None], *args: Any) -> tuple[int | None, str]:
    """A function in a process of its own: how it ended, and what it said on standard error."""
    with tempfile.NamedTemporaryFile("r") as said:
        process = _context.Process(target=_run, args=(said.name, function, args))
        process.start()
        process.join(WATCHDOG_S)
        try:
            return process.exitcode, said.read()
        finally:
            process.kill()
            process.join()
            process.close()


# ---- in the process


def _run(said: str, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.dup2(os.open(said, os.O_WRONLY), 2)
    function(*args)


def _serve(connection: Connection) -> None:
    child = _Child(connection)
    while True:
        try:
            command, *args = connection.recv()
        except (EOFError, OSError):
            child.forget()
            return
        try:
            connection.send(getattr(child, command)(*args))
        except OSError:  # the test is over
            os._exit(0)


class _Child:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.region: SharedOffloadRegion | None = None
        self.view: Any = None
        self.plan = Plan("")
        membership.step_hook = self.after_step
        self.kill_at: str | None = None

    def after_step(self, name: str) -> None:
        if name == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.plan.driven:
            self.connection.send(name)
            self.connection.recv()

    def barrier(self) -> None:
        self.connection.send("barrier")
        if self.connection.recv()[0] == "breaks":
            raise RuntimeError("the barrier broke")

    def check(self, nbytes: int) -> None:
        if self.plan.check_error is not None:
            raise CapacityError(self.plan.check_error)

    def construct(self, plan: Plan) -> Outcome:
        self.plan, self.kill_at = plan, plan.kill_at
        places.SHM_DIRECTORY = plan.place
        barrier = self.barrier
        if plan.driven:  # the model says who may pass it, and a failure stays in the entry, as in the model
            barrier = _open_barrier
            meeting.Meeting.clear = _leave_failure  # type: ignore[method-assign]
        time.sleep(plan.delay_s)
        began = time.monotonic()
        broken: Any = contextlib.nullcontext()
        if plan.break_at is not None:
            broken = mock.patch(plan.break_at, side_effect=OSError(5, f"broken on purpose in rank {plan.rank}"))
        try:
            with broken:
                self.region = SharedOffloadRegion(
                    plan.engine_id,
                    plan.rows,
                    plan.rank,
                    plan.row_bytes,
                    plan.cpu_page_size,
                    barrier if plan.barrier else None,
                    creator_memory_check=self.check,
                    **plan.options,
                )
        except Exception as error:
            return Outcome(error=type(error).__name__, text=str(error), began=began, ended=time.monotonic())
        status = os.fstat(self.region._use().member.memory_fd)
        memory = (status.st_dev, status.st_ino)
        return Outcome(is_creator=self.region.is_creator, memory=memory, began=began, ended=time.monotonic())

    def sign(self, value: int) -> int:
        """Fill all that is this rank's."""
        assert self.region is not None
        if self.view is None:
            self.view = self.region.create_next_worker_view(self.plan.cpu_page_size)
        self.view.fill_(value)
        return value

    def look(self) -> list[int]:
        """The first byte of each rank's part of the last row."""
        assert self.region is not None
        return [int(byte) for byte in self.region.base_tensor.view(ROWS, -1)[-1, :: self.plan.cpu_page_size]]

    def cleanup(self, kill_at: str | None = None) -> float:
        self.kill_at = kill_at
        began = time.monotonic()
        self.view = None
        if self.region is not None:
            self.region.cleanup()
        self.region = None
        return began

    def forget(self) -> None:
        self.plan, self.kill_at = Plan(""), None
        while _told:
            _told.pop().close()
        with contextlib.suppress(OSError):
            self.cleanup()


_told: list[Entry] = []


def _open_barrier() -> None:
    """Lets everybody pass."""


def _leave_failure(of: meeting.Meeting) -> None:
    """Removes nothing: it counts until the process forgets it, or ends."""
    if of.entry is not None:
        _told.append(of.entry)


def random_delay(rng: random.Random) -> float:
    return rng.choice((0.0, 0.0, rng.random() * 0.004))
