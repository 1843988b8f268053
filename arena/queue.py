"""A broadcast queue whose large buffers do not travel: they are copied once, into shared memory.

The two ends are in ``writer.py`` and ``reader.py``; this is the face of both.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Sequence
from numbers import Integral
from types import TracebackType
from typing import Any, Literal

import torch

from arena.cache import ObjectCache
from arena.cache_reader import CacheReader, claim_rank
from arena.config import CAPACITY_BYTES_MAX, ArenaConfig, in_range
from arena.device.interface import Device, Stream
from arena.endpoint import NEVER, Deadline
from arena.handle import Handle, checked_handle
from arena.message.tensors import DIMS_MAX
from arena.reader import ReaderEnd
from arena.shm.layout import READERS_MAX
from arena.writer import WriterEnd

__all__ = ["Handle", "MessageQueue"]

CHUNK_BYTES_MIN = 1 << 10
CHUNK_BYTES_MAX = 1 << 32


class MessageQueue:
    """One writer, and readers that each get every message, in order.

    The process that calls the constructor is the writer.  It sends ``export_handle()`` to its readers by any channel;
    each calls ``create_from_handle(handle, rank)``.

    A ``timeout`` is in seconds: None for ever; 0, or what is negative, looks once.

    Thread safety: any method may be called from any thread; calls that use the ring take turns.  Process safety: after a
    fork the object is inert in the child and raises ``ForkedError``; a child opens the handle anew.

    Args:
        n_reader: number of readers.
        n_local_reader: how many of them are on this machine; all, in this version, which is the default.
        local_reader_ranks: their ranks; by default ``range(n_local_reader)``.
        max_chunk_bytes: a message (without what is diverted) that is larger goes out of band, over ZMQ.
        max_chunks: the ring holds ``max_chunk_bytes * max_chunks`` bytes, of which only what is used takes memory.
        connect_ip: the address that remote readers connect to; none in this version.
        arena: options of the arena; None for a queue without one.
        spin_us: how long a reader looks again before it parks, once per wait.  0 unless a core per reader lies idle.
        on_reader_death: ``"continue"``: the death is logged and counted, the others go on, and a new process may take the
            rank.  ``"raise"``: the same, and the next ``enqueue`` or ``wait_until_ready`` tells its caller with
            ``ReaderDied``, once per death.

    Raises:
        ValueError: an argument is out of range; the text names it, its value and what is allowed.
        CapacityError: the memory is not there.
    """

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int | None = None,
        local_reader_ranks: Sequence[int] | None = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: str | None = None,
        *,
        arena: ArenaConfig | None = ArenaConfig(),  # noqa: B008 - immutable
        spin_us: int = 0,
        on_reader_death: Literal["continue", "raise"] = "continue",
    ) -> None:
        ranks = _checked_ranks(n_reader, n_local_reader, local_reader_ranks)
        max_chunk_bytes = in_range("max_chunk_bytes", max_chunk_bytes, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
        max_chunks = in_range("max_chunks", max_chunks, 1, 1 << 16)
        spin_us = in_range("spin_us", spin_us, 0, 1_000_000)
        if connect_ip is not None:
            raise ValueError(f"connect_ip={connect_ip!r}: this version has no remote readers; leave it None")
        if arena is not None and not isinstance(arena, ArenaConfig):
            raise ValueError(f"arena={arena!r}: must be an ArenaConfig or None")
        if on_reader_death not in ("continue", "raise"):
            raise ValueError(f"on_reader_death={on_reader_death!r}: must be 'continue' or 'raise'")
        end = WriterEnd(ranks, max_chunk_bytes, max_chunks, arena, spin_us)
        try:
            end.raise_on_death = on_reader_death == "raise"
            self._adopt(end)
        except BaseException:  # a signal handler's
            end.shutdown()
            raise

    @classmethod
    def create_from_handle(cls, handle: Handle, rank: int, *, device: Device | None = None) -> MessageQueue:
        """Joins a queue as the reader ``rank``.

        Args:
            handle: what ``export_handle`` returned.
            rank: one of the local readers.
            device: what reads the tensors' memory; by default CUDA, once this process has initialised it itself.
                Another one is for tests: ``arena.device.simulated``.

        Raises:
            AttachError: the segment is not to be reached from here, or the rank is taken.
            InvalidHandle: the handle was altered.
            ValueError: there is no such rank.
        """
        handle = checked_handle(handle)
        if device is not None and not isinstance(device, Device):
            raise ValueError(f"device={device!r}: must be an arena.device.interface.Device, or None for CUDA")
        queue = cls.__new__(cls)
        end = ReaderEnd(handle, rank, device)
        try:
            queue._adopt(end)
        except BaseException:  # a signal handler's
            end.shutdown()
            raise
        return queue

    def _adopt(self, end: WriterEnd | ReaderEnd) -> None:
        self._end = end
        self._has_cache = False
        self._finalizer = weakref.finalize(self, end.shutdown)  # dropped, or left at interpreter exit

    def _writer(self, what: str) -> WriterEnd:
        if not isinstance(self._end, WriterEnd):
            raise ValueError(f"{what} is for the writer; this is reader {self._end.rank}")
        return self._end

    def _reader(self, what: str) -> ReaderEnd:
        if not isinstance(self._end, ReaderEnd):
            raise ValueError(f"{what} is for a reader; this is the writer")
        return self._end

    # ---- both ends --------------------------------------------------------------------------------------------

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Writer: until every reader has joined.  Reader: until the writer has admitted it.

        Raises:
            TimeoutError: names the ranks that are missing, and the readers that have joined and died meanwhile.
            Cancelled: shutdown() in another thread.
            WriterDied: the writer has ended.
            ReaderDied: as ``enqueue`` says: one that had joined has died before all were there.
        """
        self._end.wait_until_ready(Deadline.after(timeout))

    def broadcast_object(self, obj: object = None) -> object:
        """Enqueues ``obj`` in the writer, dequeues in a reader; returns the object."""
        if isinstance(self._end, WriterEnd):
            self.enqueue(obj)
            return obj
        return self.dequeue()

    def statistics(self) -> Any:
        """The queue in numbers, as of now: in the writer ``Statistics``, in a reader ``LeaseStatistics``.

        Raises:
            Cancelled: after shutdown(), when there is nothing left to count.
        """
        return self._end.statistics()

    def shutdown(self) -> None:
        """Ends blocked calls, leaves the queue and gives everything back; tensors that live stay valid.

        From any thread or signal handler; idempotent.
        """
        self._end.shutdown()

    def __repr__(self) -> str:
        end, of = self._end, self._end.handle.segment.layout
        role = f"writer of {of.n_readers} readers" if isinstance(end, WriterEnd) else f"reader {end.rank}"
        return f"MessageQueue({role}, arena of {of.data_bytes} bytes in {of.n_slots} slots)"

    def __reduce__(self) -> Any:
        raise TypeError("a queue does not travel: send export_handle(), and call create_from_handle(handle, rank) there")

    def __enter__(self) -> MessageQueue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    # ---- the writer -------------------------------------------------------------------------------------------

    def export_handle(self) -> Handle:
        """What ``create_from_handle`` needs."""
        return self._writer("export_handle").handle

    def enqueue(self, obj: object, timeout: float | None = None) -> None:
        """Publishes an object to every reader; the first call waits until all have joined.

        A reader sees the values of this moment: what the caller does to a tensor afterwards is not seen, except in a loan.

        Raises:
            TimeoutError: no room within ``timeout`` seconds; names the readers that are behind.  Nothing was sent.
            Cancelled: shutdown() in another thread.
            ReaderDied: a reader has died, and the queue was made with ``on_reader_death="raise"``.  Nothing was sent.
            ValueError: another thread put a loan of this message into a cache at this moment.  Nothing was sent.
            whatever pickling raises.  Nothing was sent, and nothing is held.
        """
        end = self._end if type(self._end) is WriterEnd else self._writer("enqueue")
        end.enqueue(obj, NEVER if timeout is None else Deadline.after(timeout))

    def loan(self, shape: int | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor inside the arena, to be filled in place; enqueueing it, or a view of it, copies nothing.

        After that it is the readers' memory too: do not write to it again.  Enqueued a second time, it is copied.

        Args:
            shape: as ``torch.empty`` takes it, in one argument; at least one element.
            dtype: any but quantised, sub-byte and float8 ones.  For float8, ``view(dtype)`` of a loan of ``torch.uint8``.

        Raises:
            CapacityError: no slot, extent or memory; the text says which.
            ValueError: there is no such shape, or no loan of this dtype.
        """
        return self._writer("loan").loan(_checked_shape(shape), dtype, NEVER)

    def reap(self) -> int:
        """Looks for dead readers now; returns how many were found.  ``enqueue`` does so by itself, now and then."""
        return self._writer("reap").reap()

    def object_cache(
        self,
        *,
        reserve_bytes: int | None = None,
        reserve_slots: int | None = None,
        max_object_bytes: int | None = None,
    ) -> ObjectCache:
        """A cache in this queue's arena: one memory for both.  Its readers are the queue's, by ``cache_reader``.

        Args:
            reserve_bytes: what the cache leaves to messages; a quarter of the arena by default.
            reserve_slots: as many slots it leaves to them; a quarter by default.
            max_object_bytes: larger objects are not cached.

        Raises:
            ValueError: the queue has no arena, or has a cache already.
            Cancelled: after shutdown().
        """
        end = self._writer("object_cache")
        return end.in_turn(NEVER, self._object_cache, end, reserve_bytes, reserve_slots, max_object_bytes)

    def _object_cache(
        self, end: WriterEnd, reserve_bytes: int | None, reserve_slots: int | None, max_object_bytes: int | None
    ) -> ObjectCache:
        of = end.segment.layout
        if not of.data_bytes or self._has_cache:
            raise ValueError("this queue has no arena" if not of.data_bytes else "this queue has a cache already")
        cache = ObjectCache.in_segment(
            end,
            reserve_bytes=of.data_bytes // 4 if reserve_bytes is None else reserve_bytes,
            reserve_slots=of.n_slots // 4 if reserve_slots is None else reserve_slots,
            max_object_bytes=max_object_bytes,
        )
        self._has_cache = True
        return cache

    # ---- a reader ---------------------------------------------------------------------------------------------

    def cache_reader(self, timeout: float | None = 30.0) -> CacheReader:
        """Gets the objects of the writer's ``object_cache``.

        Args:
            timeout: how long to wait, where a process that had the rank has died, for the writer to see that.

        Raises:
            TimeoutError: the rank was not free in time.
            Cancelled: shutdown() here or in the writer.
            WriterDied: the writer has ended before it saw the death.
        """
        end = self._reader("cache_reader")
        deadline = Deadline.after(timeout)
        return end.in_turn(deadline, self._cache_reader, end, deadline)

    @staticmethod
    def _cache_reader(end: ReaderEnd, deadline: Deadline) -> CacheReader:
        claim_rank(end, deadline)
        return CacheReader(end, end.row, end.handle.reader_access, end.gates)

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> object:
        """The next message.  Its large tensors are views of the arena: each holds its slot until its storage is dropped.

        Args:
            timeout: seconds; None for ever.
            indefinite: a long wait is normal and not worth a warning.

        Raises:
            TimeoutError: no message in time.
            WriterDied: the writer has ended, and every message it published was read.
            Cancelled: shutdown() here, or in the writer with every message read.
            CorruptError: the ring or the message is damaged.
            whatever unpickling raises; the message is then gone, and its slots are released.
        """
        end = self._end if type(self._end) is ReaderEnd else self._reader("dequeue")
        return end.dequeue(NEVER if timeout is None else Deadline.after(timeout), indefinite)

    def to_device(
        self,
        tensor: torch.Tensor,
        device: torch.device | str | int,
        *,
        stream: Stream | None = None,
        non_blocking: bool = True,
    ) -> torch.Tensor:
        """A copy of a CPU tensor on a device, of the same shape and dtype.

        The tensor may be dropped at once: its slot is given back when the copy is done.

        Args:
            tensor: any, whether it came through the arena or not.
            device: where to.
            stream: where the copy is queued, a stream of that device; by default its current one.
            non_blocking: return before the copy is done, where the memory is pinned.

        Raises:
            ValueError: the stream is another device's.
            DeviceError: the device refused.
        """
        return self._reader("to_device").to_device(tensor, device, stream, non_blocking=non_blocking)

    def record_use(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Says, after it was queued, that work in a stream reads a tensor: its slot is given back when that is done.

        Not needed for ``to_device``, nor for streams that are current, in the thread that dequeues, when the tensor comes.
        """
        self._reader("record_use").record_use(tensor, stream)

    def flush_releases(self) -> int:
        """Gives back what no device reads any more, without waiting for one; ``dequeue`` does so too.

        Returns:
            how many dropped tensors a device may still read.

        Raises:
            TimeoutError: another thread is at it and has not come to an end within a second; nothing is lost.
        """
        return self._reader("flush_releases").flush_releases()


def _checked_ranks(n_reader: int, n_local_reader: int | None, local_reader_ranks: Sequence[int] | None) -> list[int]:
    n_reader = in_range("n_reader", n_reader, 1, READERS_MAX)
    n_local_reader = n_reader if n_local_reader is None else in_range("n_local_reader", n_local_reader, 0, n_reader)
    if n_local_reader != n_reader:
        raise ValueError(f"n_local_reader={n_local_reader}: without remote readers it must equal n_reader={n_reader}")
    if local_reader_ranks is not None and not isinstance(local_reader_ranks, Sequence):
        raise ValueError(f"local_reader_ranks={local_reader_ranks!r}: must be a sequence of ranks, or None")
    ranks = list(range(n_local_reader)) if local_reader_ranks is None else list(local_reader_ranks)
    ranks = [in_range("a local reader rank", rank, 0, n_reader - 1) for rank in ranks]
    if len(set(ranks)) != n_local_reader or len(ranks) != n_local_reader:
        raise ValueError(f"local_reader_ranks={ranks}: must be {n_local_reader} different ranks")
    return ranks


def _checked_shape(shape: Any) -> torch.Size:
    try:
        sizes = [operator.index(each) for each in ((shape,) if isinstance(shape, Integral) else shape)]
    except TypeError:
        raise ValueError(f"shape={shape!r}: must be an integer or a sequence of integers") from None
    if min(sizes, default=1) < 1:
        raise ValueError(f"shape={shape!r}: a loan has at least one element")
    if len(sizes) > DIMS_MAX:
        raise ValueError(f"shape={shape!r}: a loan has at most {DIMS_MAX} dimensions")
    if math.prod(sizes) > CAPACITY_BYTES_MAX:
        raise ValueError(f"shape={shape!r}: too large; no arena has more than {CAPACITY_BYTES_MAX} bytes")
    return torch.Size(sizes)
