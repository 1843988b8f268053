"""What neither the arena nor the ring takes: whole payloads over a ZMQ socket, to each reader on its own.

The socket is ``ipc://`` in a 0700 directory.  Its file is unlinked as soon as it is bound: peers reach it through
``/proc/<pid>/fd/<n>`` of the writer, as they attach the memfd, so even a late reader needs no name.  Across PID namespaces
(``backing="shm"``) the name stays until all have joined.  A reader opens the file before it joins and connects through its
own descriptor: ZMQ connects when it pleases, and the name may be gone by then.

libzmq ends a process that has no descriptor for a connection that comes in.  So the file is that of a listening socket of
our own, where connections wait until the first message is sent out of band: only then, with the descriptors tried out, is
libzmq given the socket.  A queue that sends nothing so has no libzmq in its writer, whoever joins when.

Frames: the reader's identity (added and taken off by ZMQ), the message number, the buffer table, the pickle, each
inline buffer.  One frame alone, of no bytes, is no message: a reader is reached by it, and one that was cut short ends so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import zmq
from zmq.utils.garbage import gc as collector

from arena.errors import AttachError, MessageLost
from arena.shm import capacity, names
from arena.shm.descriptors import close_kept, open_kept
from arena.shm.layout import MemberWord
from arena.shm.shortage import SHORTAGES, refusal, require_descriptors, require_threads, typed

_NUMBER = struct.Struct("<Q")
_PATH_BYTES_MAX = 100  # sun_path has 108
LINGER_MS = 900
"""What messages under way are given at the end: less than the second within which ``shutdown`` ends another thread's call,
which may have to wait for that."""
_POLL_MS = 20
_WHAT = "a queue's out-of-band socket"
_DESCRIPTORS = 11
"""Of a context with one socket (6), its listener or connection, its file, what is opened for a moment; and, for a reader in
the writer's own process, the other end of the connection and its pidfd."""
_COLLECTOR_DESCRIPTORS = 8
_BACKLOG_SPARE = 4
"""So many readers may have ended before they were taken in; more wait for their turn, and are looked at less often."""
_THREADS = 2  # of a context


def identity(rank: int, entry: MemberWord) -> bytes:
    """A reader's address: no two incarnations of a rank share it."""
    return b"%d:%d:%d:%d" % (rank, entry.pid, entry.start, entry.serial)


def _as_capacity(error: zmq.ZMQError) -> Exception:
    return refusal(_WHAT, OSError(error.errno, str(error))) if error.errno in SHORTAGES else error


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """Around calls of libzmq, as ``typed``."""
    try:
        yield
    except zmq.ZMQError as error:
        raise _as_capacity(error) from error


def _listen(path: str, backlog: int) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(backlog)
        listener.setblocking(False)
        return listener.detach()


class OutOfBandWriter:
    """The writer's end.  Not thread-safe: the queue's lock guards it."""

    def __init__(self, *, named: bool, n_readers: int) -> None:
        require_descriptors(_DESCRIPTORS + 2 * n_readers, _WHAT)  # two: its connection, and the pidfd that watches it
        require_threads(_THREADS, _WHAT)
        parent = capacity.SHM_DIRECTORY if named else tempfile.gettempdir()
        if len(parent) > _PATH_BYTES_MAX - 40:
            parent = "/tmp"
        self._backlog = n_readers + _BACKLOG_SPARE
        self._directory_fd = self._listener = self._given = self._file = -1
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._reached: set[bytes] = set()  # since they joined: each once, however often a message is tried
        try:
            with typed(f"a directory for sockets in {parent}"):
                self._directory, self._directory_fd = names.new_directory(parent, lasting=named)
            self._path = f"{self._directory}/{names.SOCKET}"
            with typed(_WHAT):
                self._listener = open_kept(lambda: _listen(self._path, self._backlog))
            self.endpoint = f"ipc://{self._path}"
            if not named:
                self._file = _open_socket(self._path)
                self.endpoint = f"ipc:///proc/{os.getpid()}/fd/{self._file}"
                self.remove_name()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Gives libzmq the listening socket, before the first message; it takes in whoever is waiting.

        Raises:
            CapacityError: it would have no descriptors or threads; nothing is changed.
        """
        require_descriptors(_DESCRIPTORS + self._backlog + 1, _WHAT)
        require_threads(_THREADS, _WHAT)
        with _typed(), typed(_WHAT), ExitStack() as undo:
            context = zmq.Context()
            undo.callback(context.destroy, linger=0)
            router = context.socket(zmq.ROUTER)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unknown reader is an error, not a silent loss
            router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a process that left may join again, by the same name
            router.setsockopt(zmq.SNDHWM, 0)  # bounded by the queue instead, in bytes
            router.setsockopt(zmq.LINGER, LINGER_MS)
            self._given = open_kept(lambda: os.dup(self._listener))
            router.setsockopt(zmq.USE_FD, self._given)
            router.bind(f"ipc://{self._path}")
            self._socket, self._context = router, context
            undo.pop_all()

    def reach(self, readers: Mapping[bytes, Callable[[], bool]]) -> None:
        """Waits until each reader is connected, or is gone: its function says so, or raises.

        Before a message is handed to any: what one reader has of a message that then is not published stays with it
        until the next one, and would pile up.

        Raises:
            CapacityError: libzmq would have no descriptors or threads; nothing is changed.
        """
        if self._context is None or self._context.closed:  # an exception may have come right behind
            self._open()
        for reader, gone in readers.items():
            if reader not in self._reached:
                self._deliver([reader, b""], gone)  # which no reader takes for a message
                self._reached.add(reader)
        self._reached &= readers.keys()

    def send(self, number: int, frames: Sequence[bytes], reader: bytes, gone: Callable[[], bool]) -> None:
        """Hands a message for one reader, which was reached, to ZMQ; to nobody if it is gone.

        Raises:
            CapacityError: pyzmq has no descriptors or threads for its first large message; nothing was sent.
        """
        if not collector.is_alive() and max(map(len, frames)) >= zmq.COPY_THRESHOLD:  # it frees what is not copied
            require_descriptors(_COLLECTOR_DESCRIPTORS, _WHAT)
            require_threads(_THREADS + 1, _WHAT)
        self._deliver([reader, _NUMBER.pack(number), *frames], gone)

    def _deliver(self, parts: list[bytes], gone: Callable[[], bool]) -> None:
        while True:
            try:
                return self._send_whole(parts)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            if gone():
                return
            self._socket.poll(_POLL_MS)  # lets the handshake of a new connection through

    def _send_whole(self, parts: list[bytes]) -> None:
        """All parts, or a message that says by its number of frames that it was cut short."""
        begun = True  # a signal handler's exception may come right behind the native call of the first part
        try:
            try:
                self._socket.send(parts[0], zmq.SNDMORE, copy=False)
            except zmq.ZMQError:  # an unknown reader: nothing has begun
                begun = False
                raise
            for part in parts[1:-1]:
                self._socket.send(part, zmq.SNDMORE, copy=False)
            self._socket.send(parts[-1], copy=False)
            begun = False
        finally:
            if begun:  # an exception came in between: the next message must not be appended to this one
                self._socket.send(b"")

    def remove_name(self) -> None:
        """Takes the socket's file out of the file system; idempotent."""
        if self._directory_fd >= 0:
            with contextlib.suppress(OSError):  # somebody has removed it, or put something into it
                names.remove_directory(self._directory)
            close_kept(self._directory_fd)
            self._directory_fd = -1

    def close(self) -> None:
        """Ends the socket, giving messages under way ``LINGER_MS``; idempotent."""
        self.remove_name()
        if self._context is not None and not self._context.closed:
            self._context.destroy(linger=LINGER_MS)
        for fd in (self._given, self._listener, self._file):  # what was given, libzmq has mostly closed
            close_kept(fd)


def _open_socket(path: str) -> int:
    """A descriptor that leads to the writer's socket, whatever becomes of its name."""
    try:
        return open_kept(lambda: os.open(path, os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        raise AttachError(
            f"the writer's socket {path} cannot be reached ({error.strerror}): the writer has ended or shut down, or, with "
            "backing='shm', /dev/shm is not shared with it"
        ) from error


class OutOfBandReader:
    """A reader's end; one thread at a time."""

    def __init__(self, endpoint: str, reader: bytes) -> None:
        require_descriptors(_DESCRIPTORS, _WHAT)
        require_threads(_THREADS, _WHAT)
        self._fd = -1
        with _typed():
            self._context = zmq.Context()
        try:
            self._fd = _open_socket(endpoint.removeprefix("ipc://"))
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.setsockopt(zmq.IDENTITY, reader)
            self._socket.setsockopt(zmq.RCVHWM, 0)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, 0)  # the writer may never send anything so
            self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)  # a full backlog, or none, is looked at ever more rarely
            self._socket.connect(f"ipc:///proc/self/fd/{self._fd}")
        except zmq.ZMQError as error:
            self.close()
            raise _as_capacity(error) from error
        except BaseException:
            self.close()
            raise

    def receive(self, number: int, n_frames: int, check: Callable[[], None]) -> list[memoryview]:
        """The frames of message ``number``; while there is none, ``check`` is called and may raise.

        Earlier messages, which this reader's dequeue gave up, are skipped.

        Raises:
            MessageLost: the next message is a later one, or has another number of frames.
        """
        while self._socket.getsockopt(zmq.RCVMORE):  # an exception cut the last one short
            self._socket.recv(copy=False)
        while True:
            while not self._socket.poll(_POLL_MS):
                check()
            first, *frames = self._socket.recv_multipart(copy=False)
            if not frames and not first.bytes:  # cut short behind its address
                continue
            found = _NUMBER.unpack(first.bytes)[0] if len(first.bytes) == _NUMBER.size else -1
            if 0 <= found < number:
                continue
            if found != number or len(frames) != n_frames:
                raise MessageLost(
                    f"out of band, message {number} of {n_frames} frames was expected; {found} of {len(frames)} came"
                )
            return [memoryview(frame.buffer).cast("B") for frame in frames]

    def close(self) -> None:
        """Ends the socket; idempotent."""
        if not self._context.closed:
            self._context.destroy(linger=0)
        close_kept(self._fd)
