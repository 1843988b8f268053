"""Real reader processes and interpreters for the tests, always ended, and by their pid.

Readers come from one forkserver per session that has torch and arena loaded: a new process takes milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch

from arena import ArenaConfig, Handle, MessageQueue, ObjectCache
from arena.endpoint import Endpoint

WATCHDOG_S = 120.0
"""Ends a test that hangs; no test asks whether something was faster than this."""

_PRELOAD = ["torch", "numpy", "arena", "support", "cache_support", "traffic"]

AReader = TypeVar("AReader", bound="Reader")

SMALL = ArenaConfig(capacity_bytes=8 << 20, slots=8, divert_bytes=4096)


@contextmanager
def may_be_lost(kind: type[BaseException]) -> Iterator[None]:
    """An exception that a signal handler raised in a finalizer or a callback of the collector, where Python loses it.

    pytest would keep it, and with its traceback the frames and tensors below.
    """
    before = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, kind):
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that must come; how long it takes is no matter."""
    deadline = time.monotonic() + WATCHDOG_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WATCHDOG_S:.0f} s: {what}")
        time.sleep(0.001)


def is_in_call(end: Endpoint) -> bool:
    """Whether another thread is inside a call."""
    free = end._turn.acquire(False)
    if free:
        end._turn.release()
    return not free


def settle() -> None:
    """Waits until ZMQ's threads have opened what they open for a new connection."""
    before, now = -1, len(os.listdir("/proc/self/fd"))
    while before != now:
        time.sleep(0.05)
        before, now = now, len(os.listdir("/proc/self/fd"))


class Unpicklable:
    """Cannot be pickled: a message fails here, when everything before it has been placed."""

    def __reduce__(self) -> Any:
        raise ValueError("not this one")


class Unloadable:
    """Pickles, and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ZeroDivisionError("unpickling failed on purpose")


# ---- ends in this process -------------------------------------------------------------------------------------------


@contextmanager
def queue_of(
    n_readers: int = 1, *, arena: ArenaConfig | None = SMALL, **options: Any
) -> Iterator[tuple[MessageQueue, list[MessageQueue]]]:
    """A writer and its readers, all in this process and joined."""
    with ExitStack() as stack:
        writer = stack.enter_context(MessageQueue(n_readers, n_readers, arena=arena, **options))
        handle = writer.export_handle()
        readers = [stack.enter_context(MessageQueue.create_from_handle(handle, rank)) for rank in range(n_readers)]
        writer.wait_until_ready(WATCHDOG_S)
        yield writer, readers


# ---- readers in processes of their own ------------------------------------------------------------------------------


class Side:
    """What a function that runs in a reader's process is given: its queue, and what it keeps between calls."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.kept: dict[str, Any] = {}


def join(handle: Handle, rank: int) -> Side:
    """What a reader's process begins with."""
    return Side(MessageQueue.create_from_handle(handle, rank))


class RemoteError(Exception):
    """A function failed in a reader's process; the text is its traceback."""


class Reader:
    """A reader in its own process, which runs one function after another.

    The functions are module-level ones of ``support`` or of a module that is cheap to import; their first argument is the
    ``Side``.
    """

    begin: Callable[[Handle, int], Any] = staticmethod(join)

    def __init__(self, handle: Handle, rank: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self.rank = rank
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.begin, handle, rank), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self.process.pid
        if pid is None:
            raise RuntimeError("the reader has not started")
        return pid

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Has a function run; ``result`` waits for it."""
        self._pipe.send((function, arguments))

    def result(self) -> Any:
        """What the started function returned; what it raised is raised here."""
        if not self._pipe.poll(WATCHDOG_S):
            raise TimeoutError(f"reader {self.rank} (pid {self.pid}) gave no answer within {WATCHDOG_S:.0f} s")
        answer, error = pickle.loads(self._pipe.recv_bytes())
        if error is not None:
            raise error
        return answer

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a function there and returns what it returns."""
        self.start(function, *arguments)
        return self.result()

    def end(self) -> None:
        """Ends the process, by its pid, and waits until it is gone."""
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self.process.join()
        self.process.close()
        self._pipe.close()


def _serve(pipe: Connection, begin: Callable[[Handle, int], Any], handle: Handle, rank: int) -> None:
    side = begin(handle, rank)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:  # the test has gone
            return
        try:
            answer = pickle.dumps((function(side, *arguments), None))
        except Exception as error:
            answer = _pickled_error(error)
        pipe.send_bytes(answer)  # a plain pickle: the pipe's own would share tensors through files


def _pickled_error(error: Exception) -> bytes:
    try:
        return pickle.dumps((None, error))
    except Exception:  # it cannot be pickled
        return pickle.dumps((None, RemoteError("".join(traceback.format_exception(error)))))


@contextmanager
def processes_of(kind: type[AReader], writer: MessageQueue | ObjectCache, ranks: int) -> Iterator[list[AReader]]:
    """That many reader processes of a kind, joined; ended however the test ends."""
    readers: list[AReader] = []
    try:
        for rank in range(ranks):
            readers.append(kind(writer.export_handle(), rank))
        writer.wait_until_ready(WATCHDOG_S)
        yield readers
    finally:
        for reader in readers:
            reader.end()


def readers_of(writer: MessageQueue, ranks: int) -> AbstractContextManager[list[Reader]]:
    """That many readers of a queue, as ``processes_of``."""
    return processes_of(Reader, writer, ranks)


# ---- what readers are asked to run ----------------------------------------------------------------------------------


def dequeue(side: Side, timeout: float | None = WATCHDOG_S) -> Any:
    """The next message, sent back by an ordinary pickle."""
    return side.queue.dequeue(timeout)


def dequeue_bytes(side: Side) -> Any:
    """The next message, a tensor that no ordinary pickle carries, as bytes."""
    received: Any = side.queue.dequeue(WATCHDOG_S)
    return received.view(torch.uint8).clone()


def hold(side: Side, name: str) -> None:
    """Keeps the next message."""
    side.kept[name] = side.queue.dequeue(WATCHDOG_S)


def drop(side: Any, name: str) -> None:
    """Lets what is kept go."""
    del side.kept[name]


def kept(side: Any, name: str) -> Any:
    """What is kept, sent back by an ordinary pickle."""
    return side.kept[name]


def shutdown(side: Side) -> None:
    side.queue.shutdown()


# ---- interpreters ---------------------------------------------------------------------------------------------------


def python(code: str, *, warnings: str = "error") -> subprocess.CompletedProcess[str]:
    """Runs a program in a fresh interpreter, in which every warning is an error; killed if it hangs."""
    command = [sys.executable, "-W", warnings, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)


def example(path: Path) -> str:
    """Runs an example, in which every warning is an error and nothing may be said on standard error; what it printed."""
    whole_lines = {**os.environ, "PYTHONUNBUFFERED": ""}  # else two processes may write a line and its end by turns
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WATCHDOG_S, check=False, env=whole_lines)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Starts a function in a thread; calling the result waits for it and gives what it returned or raised."""
    outcome: list[Any] = [None, None]

    def work() -> None:
        try:
            outcome[0] = function()
        except BaseException as error:
            outcome[1] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def join() -> Any:
        thread.join(WATCHDOG_S)
        if thread.is_alive():
            raise TimeoutError(f"a thread did not end within {WATCHDOG_S:.0f} s")
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    return join
