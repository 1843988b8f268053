"""Reader processes of the benchmarks: started once, they run functions of this module on request.

A message is a pair: whether the readers shall answer with the time at which they had it, and the body; `None` ends
a `follow`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from arena.bench.peers import resident_bytes
from arena.tools.processes import deaf_to_interrupts, die_with_parent
from arena.tools.transports import Endpoint, PipeReader, PipeWriter, Reader, Writer

RECEIVE_TIMEOUT_S = 120.0
SEND_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 5.0
PIPE = "pipe"


class Context:
    """What a reader process keeps between requests."""

    def __init__(self, connection: Connection, pipe: Connection) -> None:
        self.connection = connection
        self.ends: dict[str, Reader] = {PIPE: PipeReader(pipe)}


def connect(context: Context, name: str, endpoint: Endpoint) -> None:
    """Open an endpoint under a name."""
    context.ends[name] = endpoint.open()


def disconnect(context: Context, name: str) -> None:
    """Close it."""
    context.ends.pop(name).close()


def follow(context: Context, name: str, keep: int) -> None:
    """Receive until the end, answer where asked to, keep the last few bodies alive."""
    end = context.ends[name]
    kept: deque[Any] = deque(maxlen=keep)
    while (message := end.receive(RECEIVE_TIMEOUT_S)) is not None:
        received_ns = time.monotonic_ns()
        kept.append(message[1])
        if message[0]:
            context.connection.send(received_ns)
        del message


def time_receives(context: Context, name: str, count: int, dropping: bool) -> list[int]:
    """Nanoseconds of each receive of messages that are there already, with or without letting go of the body."""
    end = context.ends[name]
    times = []
    for _ in range(count):
        start_ns = time.monotonic_ns()
        message = end.receive(RECEIVE_TIMEOUT_S)
        received_ns = time.monotonic_ns()
        del message
        times.append((time.monotonic_ns() if dropping else received_ns) - start_ns)
    return times


def resident(context: Context) -> int:
    """Resident memory of the reader process."""
    return resident_bytes()


def _serve(connection: Connection, pipe: Connection) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    context = Context(connection, pipe)
    while True:
        function, arguments = connection.recv()
        try:
            connection.send(function(context, *arguments))
        except Exception as error:
            connection.send(error)


class Pool:
    """The reader processes, as many as the largest request so far needed."""

    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._pipes: list[tuple[Connection, Connection]] = []
        self._processes: list[BaseProcess] = []

    def pids(self, count: int) -> list[int]:
        """Process ids of the first `count` readers."""
        return [process.pid or 0 for process in self._processes[:count]]

    def pipes(self, count: int) -> Writer:
        """A writer to the pipes that the first `count` readers have had from their start, under the name `PIPE`."""
        self._grow(count)
        return PipeWriter(count, self._pipes[:count])

    def start(self, count: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the first `count` readers run `function`; `answers` gives what they return."""
        self._grow(count)
        for connection in self._connections[:count]:
            connection.send((function, arguments))

    def answers(self, count: int) -> list[Any]:
        """The next answer of each of the first `count` readers; an error of theirs is raised here."""
        answers = []
        for connection in self._connections[:count]:
            answer = connection.recv()
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers

    def call(self, count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`start` and `answers`."""
        self.start(count, function, *arguments)
        return self.answers(count)

    @contextlib.contextmanager
    def connected(self, writer: Writer, count: int, name: str = "queue") -> Iterator[None]:
        """The first `count` readers at the other end of `writer`, which is closed afterwards."""
        try:
            self._grow(count)
            for rank, connection in enumerate(self._connections[:count]):
                connection.send((connect, (name, writer.endpoint(rank))))
            writer.wait_until_ready(CONNECT_TIMEOUT_S)
            self.answers(count)
            yield
            self.call(count, disconnect, name)
        finally:
            writer.close()

    @contextlib.contextmanager
    def following(self, writer: Writer, count: int, name: str = "queue", keep: int = 0) -> Iterator[None]:
        """The first `count` connected readers in `follow`."""
        self.start(count, follow, name, keep)
        yield
        writer.send(None, SEND_TIMEOUT_S)
        self.answers(count)

    def _grow(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        while len(self._processes) < count:
            ours, theirs = context.Pipe()
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(theirs, receiving), daemon=True)
            with deaf_to_interrupts():
                process.start()
            theirs.close()
            receiving.close()
            self._connections.append(ours)
            self._pipes.append((receiving, sending))
            self._processes.append(process)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(EXIT_TIMEOUT_S)
        for connection in self._connections:
            connection.close()
        for _, sending in self._pipes:
            sending.close()
