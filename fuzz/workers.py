"""Processes that run one function after another, with torch and arena loaded once, in the server that they come from.

Each is ended by its pid.  One that dies shows as ``Ended`` where its answer was expected; one that hangs as a ``Failure``.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzz.session import Failure

LIMIT_S = 30.0
"""What has given no sign for so long hangs.  The machine may be busy; nothing here is a measurement."""

_reaping = threading.Lock()
"""``multiprocessing`` looks after all children whenever one starts or is asked after: not from two threads at once."""

_PRELOAD = ["torch", "numpy", "arena", "arena.cache", "fuzz.workers", "fuzz.match", "fuzz.messages"]


class Ended(Exception):
    """A worker's process has ended; ``exit_code`` is negative for a signal."""

    def __init__(self, pid: int, exit_code: int | None) -> None:
        super().__init__(f"process {pid} ended with {describe(exit_code)}")
        self.exit_code = exit_code


class Side:
    """What a function in a worker is given: a way to speak and to be told, and what is kept between functions."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.kept: dict[str, Any] = {}

    def say(self, what: object) -> None:
        """Sends something before the end of the function."""
        self._pipe.send_bytes(pickle.dumps(("said", what)))

    def hear(self, timeout_s: float = LIMIT_S) -> Any:
        """What ``Worker.tell`` sent."""
        if not self._pipe.poll(timeout_s):
            raise Failure(f"was told nothing within {timeout_s:.0f} s")
        return self._pipe.recv()

    def heard(self, timeout_s: float = 0.0) -> bool:
        """Whether something was told by then."""
        return self._pipe.poll(timeout_s)


class Worker:
    """A process; not started anew when it ends."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _reaping, _quiet_environment():
            self.process.start()
        theirs.close()
        pid = self.process.pid
        if pid is None:
            raise RuntimeError("a worker has not started")
        self.pid = pid

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Has a module-level function run; its first argument is the ``Side``."""
        self.pipe.send((function, arguments))

    def tell(self, what: object) -> None:
        """For ``Side.hear``; nothing if the process has ended."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(what)

    def next(self, timeout_s: float = LIMIT_S) -> tuple[str, Any]:
        """``("said", x)`` or ``("returned", x)``; what the function raised is raised here.

        Raises:
            Ended: the process has.
            Failure: nothing came in time.
        """
        if not self.pipe.poll(timeout_s):
            raise Failure(f"process {self.pid} hangs: no sign within {timeout_s:.0f} s; it waits in {where(self.pid)}")
        try:
            kind, what = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            with _reaping:
                self.process.join()
                exit_code = self.process.exitcode
            raise Ended(self.pid, exit_code) from None
        if kind == "raised":
            raise Failure(f"process {self.pid} raised\n{what}")
        return kind, what

    def result(self, timeout_s: float = LIMIT_S) -> Any:
        """What the function returned; what it said before is passed over."""
        while True:
            kind, what = self.next(timeout_s)
            if kind == "returned":
                return what

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.start(function, *arguments)
        return self.result()

    def signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        with _reaping:
            if self.process.is_alive():
                with contextlib.suppress(ProcessLookupError):  # it has ended this moment
                    os.kill(self.pid, number)

    def is_stopped(self) -> bool:
        """Whether a SIGSTOP has taken effect."""
        return state_of(self.pid) == "T"

    def end(self) -> None:
        """Ends the process and waits until it is gone."""
        self.signal(signal.SIGKILL)
        with _reaping:
            self.process.join()
            self.process.close()
        self.pipe.close()


class Pool:
    """Workers, one of them forked ahead; all are ended with it."""

    def __init__(self) -> None:
        self._spare: deque[Worker] = deque()
        self._taken: list[Worker] = []
        self.pids: set[int] = set()

    def take(self) -> Worker:
        """A worker that nobody else has."""
        worker = self._spare.popleft() if self._spare else self._new()
        self._taken.append(worker)
        return worker

    def fork_ahead(self) -> None:
        """Starts the next one, while others work."""
        if not self._spare:
            self._spare.append(self._new())

    def _new(self) -> Worker:
        worker = Worker()
        self.pids.add(worker.pid)
        return worker

    def give_back(self, worker: Worker) -> None:
        """It has done what it was asked and lives."""
        self._taken.remove(worker)
        self._spare.append(worker)

    def end(self, worker: Worker) -> None:
        """Ends one of them."""
        self._taken.remove(worker)
        worker.end()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        while self._taken or self._spare:
            (self._taken or self._spare).pop().end()


def wait_any(workers: list[Worker], timeout_s: float) -> list[Worker]:
    """Those that have said or returned something, or have ended."""
    ready = connection.wait([worker.pipe for worker in workers], timeout_s)
    return [worker for worker in workers if worker.pipe in ready]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = LIMIT_S) -> None:
    """Waits for something that must come.

    Raises:
        Failure: it did not.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.0005)


def describe(exit_code: int | None) -> str:
    """``signal SIGKILL``, ``exit 1``."""
    if exit_code is not None and exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    return f"exit {exit_code}"


def state_of(pid: int) -> str:
    """The state letter of proc(5) ``stat``, or nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text[text.rindex(")") + 2]


def where(pid: int) -> str:
    """What the kernel says a process waits in."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() or "user space"
    except OSError:
        return "?"


@contextlib.contextmanager
def _quiet_environment() -> Any:
    """The server starts with the first worker: its libraries then have no threads of their own that a fork would lose."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # what the imports left is never garbage: looking through it would take most of the time
    side = Side(pipe)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:  # the harness has gone
            return
        try:
            answer = pickle.dumps(("returned", function(side, *arguments)))
        except Exception as error:
            answer = pickle.dumps(("raised", "".join(traceback.format_exception(error))))
        pipe.send_bytes(answer)
