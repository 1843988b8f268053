"""Three ways to bring one message to N worker processes, behind one small interface.

`arena` is this package. `out of band` is what engines do without it: a pickle whose tensors travel beside it as
buffers through a socket to each worker. `in-band pickle` is the plainest way: everything in one pickle, which is
written to a pipe per worker.

The engine holds a `Writer`, gives each worker process one `Endpoint` at its start, and the worker opens it.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import multiprocessing
import os
import pickle
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
import zmq

from arena.device.interface import Device
from arena.message import copies

if TYPE_CHECKING:
    from arena import ArenaConfig, Handle, MessageQueue
    from arena.tools.devices import WorkerDevice

OPEN_TIMEOUT_S = 120.0

pins_for: Device | None = None
"""What the arena's readers in this process pin their memory for; None: what they choose themselves."""


@dataclass(frozen=True)
class Counters:
    """What a writer has done since it was made: bytes that it copied, and its fallbacks by reason."""

    bytes_copied: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)

    def since(self, earlier: Counters) -> Counters:
        """The difference of two readings."""
        grown = {reason: count - earlier.fallbacks.get(reason, 0) for reason, count in self.fallbacks.items()}
        return Counters(self.bytes_copied - earlier.bytes_copied, {k: v for k, v in grown.items() if v})


class Reader(ABC):
    """A worker's end."""

    @abstractmethod
    def receive(self, timeout_s: float) -> Any:
        """The next message; `TimeoutError` if none comes."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this end holds."""

    def to_device(self, tensor: torch.Tensor, device: WorkerDevice) -> torch.Tensor:
        """A copy on the worker's device; the tensor may be dropped at once."""
        return copies.copy(device.device, tensor, device.where, None, non_blocking=True)

    def flush(self) -> int:
        """Give back what the device has read; how many dropped tensors it may still read."""
        return 0


class Endpoint(ABC):
    """A reader that has not been opened yet; it travels to the worker process."""

    @abstractmethod
    def open(self) -> Reader:
        """Connect."""


class Writer(ABC):
    """The engine's end."""

    @abstractmethod
    def endpoint(self, rank: int) -> Endpoint:
        """The endpoint of the worker `rank`."""

    @abstractmethod
    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once every worker is connected; after a `TimeoutError` it may be called again."""

    @abstractmethod
    def send(self, message: object, timeout_s: float) -> None:
        """Send to all workers."""

    @abstractmethod
    def counters(self) -> Counters:
        """Read the counters."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


class ArenaWriter(Writer):
    """`arena.MessageQueue`."""

    def __init__(self, n_workers: int, config: ArenaConfig | None = None, **queue_options: Any) -> None:
        from arena import ArenaConfig, MessageQueue

        self.queue: MessageQueue = MessageQueue(n_workers, n_workers, arena=config or ArenaConfig(), **queue_options)
        self._handle: Handle = self.queue.export_handle()

    def endpoint(self, rank: int) -> Endpoint:
        return ArenaEndpoint(self._handle, rank)

    def wait_until_ready(self, timeout_s: float) -> None:
        self.queue.wait_until_ready(timeout_s)

    def send(self, message: object, timeout_s: float) -> None:
        self.queue.enqueue(message, timeout_s)

    def counters(self) -> Counters:
        statistics = self.queue.statistics()
        return Counters(statistics.bytes_copied, dict(statistics.fallback_total))

    def close(self) -> None:
        self.queue.shutdown()


@dataclass(frozen=True)
class ArenaEndpoint(Endpoint):
    """The queue's handle and the rank."""

    handle: Handle
    rank: int

    def open(self) -> Reader:
        return ArenaReader(self.handle, self.rank)


class ArenaReader(Reader):
    """The reading end of the queue."""

    def __init__(self, handle: Handle, rank: int) -> None:
        from arena import MessageQueue

        self._queue = MessageQueue.create_from_handle(handle, rank, device=pins_for)
        self._queue.wait_until_ready(OPEN_TIMEOUT_S)

    def receive(self, timeout_s: float) -> Any:
        return self._queue.dequeue(timeout_s)

    def to_device(self, tensor: torch.Tensor, device: WorkerDevice) -> torch.Tensor:
        return self._queue.to_device(tensor, device.where)

    def flush(self) -> int:
        return self._queue.flush_releases()

    def close(self) -> None:
        self._queue.shutdown()


class OutOfBandWriter(Writer):
    """ZMQ over `ipc://`: the tensors' buffers go into each worker's socket, uncopied until there.

    The address is in the abstract namespace, so that no file can be left over however the process ends.
    """

    def __init__(self, n_workers: int) -> None:
        self._n_workers = self._missing = n_workers
        self._address = f"ipc://@arena-demo-{os.getpid()}-{secrets.token_hex(8)}"
        self._bytes_copied = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.XPUB)
        self._socket.set(zmq.XPUB_VERBOSE, 1)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(self._address)

    def endpoint(self, rank: int) -> Endpoint:
        return OutOfBandEndpoint(self._address)

    def wait_until_ready(self, timeout_s: float) -> None:
        while self._missing:
            if not self._socket.poll(int(timeout_s * 1e3)):
                raise TimeoutError(f"{self._missing} of {self._n_workers} workers have not subscribed")
            self._socket.recv()
            self._missing -= 1

    def send(self, message: object, timeout_s: float) -> None:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle_out_of_band(message, buffers.append)
        frames: list[Any] = [head, *(buffer.raw() for buffer in buffers)]
        self._socket.send_multipart(frames, copy=False)
        self._bytes_copied += self._n_workers * sum(len(frame) for frame in frames)

    def counters(self) -> Counters:
        return Counters(self._bytes_copied)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@dataclass(frozen=True)
class OutOfBandEndpoint(Endpoint):
    """The socket's address."""

    address: str

    def open(self) -> Reader:
        return OutOfBandReader(self.address)


class OutOfBandReader(Reader):
    """A subscriber; its tensors lie in the frames that ZMQ has received, without another copy."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.SUBSCRIBE, b"")
        self._socket.connect(address)

    def receive(self, timeout_s: float) -> Any:
        if not self._socket.poll(int(timeout_s * 1e3)):
            raise TimeoutError(f"no message within {timeout_s} s")
        head, *buffers = self._socket.recv_multipart(copy=False)
        return pickle.loads(head.buffer, buffers=[buffer.buffer for buffer in buffers])

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def pickle_out_of_band(message: object, emit: Callable[[pickle.PickleBuffer], object]) -> bytes:
    """Pickle with the bytes of CPU tensors handed to `emit` instead of written into the pickle."""
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, protocol=5, buffer_callback=emit)
    pickler.dispatch_table = copyreg.dispatch_table | {torch.Tensor: _reduce_tensor}
    pickler.dump(message)
    return sink.getvalue()


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _rebuild_tensor, (pickle.PickleBuffer(flat), tensor.dtype, tuple(tensor.shape))


def _rebuild_tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(shape)


class PipeWriter(Writer):
    """One `pickle.dumps`, written to a pipe per worker; the pipes may be given, as (receiving, sending) ends.

    `send` knows no time limit: while a worker is stopped, and its pipe full, it waits. Writes that do not block would keep
    to one, but cost this peer a quarter more processor time for a message of 20 MB: the comparison would not be fair.
    """

    def __init__(self, n_workers: int, pipes: Sequence[tuple[Connection, Connection]] | None = None) -> None:
        self._pipes = pipes or [multiprocessing.Pipe(duplex=False) for _ in range(n_workers)]
        self._bytes_copied = 0

    def endpoint(self, rank: int) -> Endpoint:
        return PipeEndpoint(self._pipes[rank][0])

    def wait_until_ready(self, timeout_s: float) -> None:
        """Close the reading ends here: the workers have theirs, and a dead worker must break its pipe."""
        for receiving, _ in self._pipes:
            receiving.close()

    def send(self, message: object, timeout_s: float) -> None:
        data = pickle.dumps(message, protocol=5)
        for _, sending in self._pipes:
            sending.send_bytes(data)
        self._bytes_copied += (1 + len(self._pipes)) * len(data)

    def counters(self) -> Counters:
        return Counters(self._bytes_copied)

    def close(self) -> None:
        for pipe in self._pipes:
            for end in pipe:
                with contextlib.suppress(OSError):
                    end.close()


@dataclass(frozen=True)
class PipeEndpoint(Endpoint):
    """The reading end of a pipe."""

    connection: Connection

    def open(self) -> Reader:
        return PipeReader(self.connection)


class PipeReader(Reader):
    """Reads one pickle at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive(self, timeout_s: float) -> Any:
        if not self._connection.poll(timeout_s):
            raise TimeoutError(f"no message within {timeout_s} s")
        return pickle.loads(self._connection.recv_bytes())

    def close(self) -> None:
        self._connection.close()


TRANSPORTS: Mapping[str, Callable[[int], Writer]] = {
    "arena": ArenaWriter,
    "out of band": OutOfBandWriter,
    "in-band pickle": PipeWriter,
}
