"""One region of KV blocks in host memory, shared by all workers of an engine instance.

The region is ``num_chunks`` rows of ``kv_bytes_per_chunk`` bytes.  In a row, worker ``r`` owns ``cpu_page_size`` bytes
at ``r * cpu_page_size``; canonical tensors, which all workers share, are carved from the row's start instead.

The processes find each other by the engine's id, through a small file that is locked for moments; the memory itself
has no name, so no crash can leak it (`arena.shm.rendezvous`).
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, get_args

import torch

from arena.config import Backing, Pin, in_range
from arena.device.cuda import CudaDevice
from arena.device.interface import Device
from arena.errors import ArenaError, ForkedError
from arena.offload_held import RELEASED, Held
from arena.shm import membership, outcome, population
from arena.shm.hugepages import advise_huge_pages
from arena.shm.meeting import Barrier, Meeting
from arena.shm.membership import Wanted
from arena.shm.numa import Numa, Policy
from arena.shm.population import Progress, Range

if TYPE_CHECKING:
    from typing_extensions import Self

MemoryCheck = Callable[[int], None]
"""Called with the region's size by its creator; raises if there is not enough memory."""


class SharedOffloadRegion:
    """Host memory for KV blocks that all workers of an instance map.

    The first process to come makes the memory, the others come in through any one that is alive, and so does a late
    scheduler or a worker that was started again.  Nobody waits for the first one.  When the last one leaves, or dies,
    the memory is gone; after a SIGKILL of all, a file of 4 KiB stays, which the next start takes over.

    Thread-safe.  In a forked child every use raises `ForkedError`, and touching the bytes of a tensor is a fault.

    Args:
        engine_id: the name of the instance.
        num_chunks: rows of the region.
        rank: this worker's rank; None for a process that wants the whole region.
        kv_bytes_per_chunk: bytes of a row, a multiple of the page.
        cpu_page_size: a worker's share of each row.
        barrier: called once by every process, however it fails, after it has mapped and populated; then a failure of
            one is an error in all.
        creator_memory_check: called by the creator alone with the region's size, before it makes the memory; it raises
            where there is too little.  Other processes wait for it: let it take well under a second.  An ``OSError`` of
            its own that says that something has run out (as ENOMEM) is the cause of a CapacityError.
        populate_only_on_creator: the creator takes all pages, the others none; needs a barrier.
        backing: ``"memfd"``: memory without a name; ``"shm"``: a named file, for processes in several PID namespaces.
        pin: when the region is registered with the device: ``"auto"`` and ``"eager"``: here, ``"background"``: by a
            thread, ``"off"``: not.  If it cannot be, that is reported once and the region is not pinned.
        nonce: something that all processes of this instance know and no other instance does.  Without it, an instance
            that starts while workers of the one before still live would share their memory, if their ranks differ.
        numa: ``"local"``, ``"interleave"`` or a node: where the pages that this process takes are to lie.
        huge_pages: ask for huge pages; where there are none, small ones are used.
        populate_threads: how many threads take pages; by default this worker's part of the CPUs.
        progress: called as pages are taken, with the bytes done and the bytes in all.
        device: what to register with; by default CUDA.

    Raises:
        ValueError: an argument is out of range; the text says what would do.
        AttachError: a live instance with another nonce has the name, the rank is taken, sizes differ, or the memory is
            out of reach.
        CapacityError: the memory is not there.
        ArenaError: another process of the instance failed.  The text is its error's; so is the type, if it is one of
            `arena.errors`, and if not (an ``OSError``, a ``ValueError``), the text names it.
        TimeoutError: a process has the entry locked for more than a second; the text names it.
    """

    BLOCK_SIZE_ALIGNMENT: int = mmap.PAGESIZE

    def __init__(
        self,
        engine_id: str,
        num_chunks: int,
        rank: int | None,
        kv_bytes_per_chunk: int,
        cpu_page_size: int,
        barrier: Barrier | None = None,
        *,
        creator_memory_check: MemoryCheck | None = None,
        populate_only_on_creator: bool = False,
        backing: Backing = "memfd",
        pin: Pin = "off",
        nonce: str | bytes | None = None,
        numa: Numa = None,
        huge_pages: bool = False,
        populate_threads: int | None = None,
        progress: Progress | None = None,
        device: Device | None = None,
    ) -> None:
        _check_callable("barrier", barrier)
        meeting = Meeting(barrier)
        self._held: Held | None = None
        try:
            _check_names(engine_id, backing, pin)
            if nonce is not None and not isinstance(nonce, str | bytes):
                raise ValueError(f"nonce={nonce!r}: must be a string, bytes or None")
            meeting.wanted = wanted = Wanted(  # to tell the others of a wrong argument, it is enough to know whom
                engine_id,
                membership.nonce_bytes(nonce),
                rank=None,
                nbytes=0,
                row_bytes=0,
                backing=backing,
                huge_pages=huge_pages,
                meets=barrier is not None,
                check=creator_memory_check,
            )
            shape = _Shape.checked(num_chunks, rank, kv_bytes_per_chunk, cpu_page_size)
            _check_callable("creator_memory_check", creator_memory_check)
            _check_callable("progress", progress)
            if device is not None and not isinstance(device, Device):
                raise ValueError(f"device={device!r}: must be an arena.device.interface.Device, or None for CUDA")
            if populate_only_on_creator and barrier is None:
                raise ValueError("populate_only_on_creator needs a barrier: without one, joiners would use empty pages")
            if populate_threads is not None:
                populate_threads = in_range("populate_threads", populate_threads, 1, 256)
            policy = Policy.parse(numa)
            self.engine_id = engine_id
            self.num_chunks = shape.num_chunks
            self.rank = shape.rank
            self.kv_bytes_per_chunk = shape.row_bytes
            self.cpu_page_size = shape.cpu_page_size
            self.total_size_bytes = shape.num_chunks * shape.row_bytes
            self._cursors = threading.Lock()
            self._worker_offset = 0 if self.rank is None else self.rank * self.cpu_page_size
            self._canonical_offset = 0
            meeting.wanted = replace(wanted, rank=self.rank, nbytes=self.total_size_bytes, row_bytes=self.kv_bytes_per_chunk)
            meeting.member = meeting.join(meeting.wanted)
            self._held = Held(meeting.member)
            self._finalizer = weakref.finalize(self, self._held.release)
            if huge_pages:
                advise_huge_pages(meeting.member.mapping, meeting.member.memory_fd)
            if not populate_only_on_creator or self.is_creator:
                self._populate(policy, populate_threads, progress, everything=populate_only_on_creator or rank is None)
            if populate_only_on_creator and self.is_creator:
                outcome.populate(meeting.member)
            self._base: torch.Tensor | None = self._held.tensor(self.total_size_bytes)
            if pin != "off":
                self.pin_memory(device, background=pin == "background")
        except BaseException as error:
            try:
                meeting.fail(error)
            finally:
                self._abandon(meeting)
            raise
        try:
            meeting.arrive(must_be_populated=populate_only_on_creator)
        except BaseException:
            self._abandon(meeting)
            raise

    def _abandon(self, meeting: Meeting) -> None:
        """Leaves nothing of a construction that failed."""
        self._base = None
        try:
            if meeting.member is not None:
                (self._held or Held(meeting.member)).release()
        finally:
            meeting.clear()

    # ---- views ----

    @property
    def base_tensor(self) -> torch.Tensor:
        """All bytes of the region, as one int8 tensor."""
        self._use()
        base = self._base
        if base is None:  # another thread has released it just now
            raise ArenaError(RELEASED)
        return base

    def create_next_worker_view(self, tensor_page_size: int) -> torch.Tensor:
        """This worker's bytes of the next tensor: shape (num_chunks, tensor_page_size), one row apart, int8.

        Raises:
            ValueError: the region has no rank, or the worker's share of the row has no room for it; nothing has moved.
        """
        base = self.base_tensor
        nbytes = in_range("tensor_page_size", tensor_page_size, 1, None)
        if self.rank is None:
            raise ValueError("a region without a rank has no worker views: use create_next_canonical_view")
        end = (self.rank + 1) * self.cpu_page_size
        with self._cursors:
            offset = self._worker_offset
            self._worker_offset = self._advance(offset, nbytes, end, f"rank {self.rank}'s cpu_page_size")
        return self._rows(base, offset, nbytes)

    def create_next_canonical_view(self, tensor_page_size: int) -> torch.Tensor:
        """The bytes of the next tensor that all workers share: the same for each; shape and stride as of a worker's.

        Raises:
            ValueError: the row has no room for it; nothing has moved.
        """
        base = self.base_tensor
        nbytes = in_range("tensor_page_size", tensor_page_size, 1, None)
        with self._cursors:
            offset = self._canonical_offset
            end = self.kv_bytes_per_chunk
            self._canonical_offset = self._advance(offset, nbytes, end, "the row, kv_bytes_per_chunk")
        return self._rows(base, offset, nbytes)

    def create_kv_memoryview(self) -> memoryview:
        """The region without a copy, of shape (num_chunks, kv_bytes_per_chunk)."""
        return self.base_tensor.view(self.num_chunks, self.kv_bytes_per_chunk).numpy().data

    @staticmethod
    def _advance(offset: int, nbytes: int, end: int, what: str) -> int:
        if offset + nbytes > end:
            raise ValueError(f"tensor_page_size={nbytes}: {what}, has {end - offset} bytes left")
        return offset + nbytes

    def _rows(self, base: torch.Tensor, offset: int, nbytes: int) -> torch.Tensor:
        return torch.as_strided(base, (self.num_chunks, nbytes), (self.kv_bytes_per_chunk, 1), offset)

    # ---- pages ----

    @property
    def is_creator(self) -> bool:
        """Whether this process made the memory."""
        return self._use().member.is_creator

    def _populate(self, policy: Policy | None, threads: int | None, progress: Progress | None, *, everything: bool) -> None:
        held = self._use()
        base = held.member.mapping.data
        ranges: Iterable[Range] = [(0, self.total_size_bytes)]
        total_bytes = self.total_size_bytes
        if everything and policy is not None:
            policy.bind_memory(base, total_bytes)
            policy = None
        if not everything:  # a policy per row would cut the mapping into as many parts: the threads have it instead
            own = list(
                population.own_pages(self.num_chunks, self.kv_bytes_per_chunk, self._worker_offset, self.cpu_page_size)
            )
            ranges, total_bytes = own, sum(nbytes for _, nbytes in own)
        if threads is None:
            workers = 1 if everything else self.kv_bytes_per_chunk // self.cpu_page_size
            threads = max(1, population.default_threads() // workers)
        keep = partial(held.tensor, self.total_size_bytes)
        population.populate(base, ranges, total_bytes, threads=threads, progress=progress, policy=policy, keep=keep)

    # ---- pinning ----

    def pin_memory(self, device: Device | None = None, *, background: bool = False) -> bool:
        """Registers the region with a device, whole rows at a time; for a process that meets its device later.

        Returns:
            Whether all of it is registered now.  If it cannot be, none of it is, and the log says why.
        """
        held = self._use()
        held.pin(device or CudaDevice(), self.total_size_bytes, self.kv_bytes_per_chunk, background=background)
        return self.is_pinned

    @property
    def is_pinned(self) -> bool:
        """Whether all of the region is registered with the device."""
        held = self._unless_forked()
        return held is not None and held.pinning is not None and held.pinning.is_pinned(0, self.total_size_bytes)

    @property
    def pinned_addresses(self) -> tuple[tuple[int, int], ...]:
        """Address and length of every range that is registered."""
        held = self._unless_forked()
        return () if held is None or held.pinning is None else held.pinning.pinned_addresses

    # ---- the end ----

    def cleanup(self) -> None:
        """Unpins and gives the memory up, and the name if this is the last process; idempotent.

        Tensors that somebody still holds stay valid: they keep the mapping.
        """
        self._base = None
        if self._held is None:
            return
        if not self._held.is_closed:
            membership.step("cleanup")
        self._held.release()  # also what another call of this left undone, that a signal handler's exception cut short
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cleanup()

    def __repr__(self) -> str:
        state = ", released" if self._held is None or self._held.is_closed else ""
        return f"SharedOffloadRegion({self.engine_id!r}, rank={self.rank}, {self.total_size_bytes} bytes{state})"

    def _use(self) -> Held:
        if self._held is None or self._held.is_closed:
            raise ArenaError(RELEASED)
        self._unless_forked()
        return self._held

    def _unless_forked(self) -> Held | None:
        if self._held is not None and self._held.member.pid != os.getpid():
            raise ForkedError("this region was inherited through fork: make one in the child, with a rank of its own")
        return self._held


def _check_names(engine_id: str, backing: Backing, pin: Pin) -> None:
    if not isinstance(engine_id, str) or not engine_id or not _is_text(engine_id):
        raise ValueError(f"engine_id={engine_id!r}: must be a name")
    for name, value, choice in (("backing", backing, Backing), ("pin", pin, Pin)):
        if value not in get_args(choice):
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(get_args(choice))}")


def _is_text(name: str) -> bool:
    """Whether it can be encoded: a lone surrogate (of a file name that is not UTF-8) cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise ValueError(f"{name}={value!r}: must be something to call, or None")


@dataclass(frozen=True)
class _Shape:
    """A region's sizes, as Python's integers."""

    num_chunks: int
    rank: int | None
    row_bytes: int
    cpu_page_size: int

    @staticmethod
    def checked(num_chunks: object, rank: object, kv_bytes_per_chunk: object, cpu_page_size: object) -> _Shape:
        """Refuses what is out of range; the text says what would do."""
        rows = in_range("num_chunks", num_chunks, 1, None)
        row_bytes = in_range("kv_bytes_per_chunk", kv_bytes_per_chunk, 1, None)
        page = mmap.PAGESIZE
        if row_bytes % page:
            nearest = max(page, (row_bytes + page // 2) // page * page)
            raise ValueError(f"kv_bytes_per_chunk={row_bytes}: must be a multiple of {page}; the nearest is {nearest}")
        if rank is None:
            return _Shape(rows, None, row_bytes, in_range("cpu_page_size", cpu_page_size, 0, None))
        share = in_range("cpu_page_size", cpu_page_size, 1, row_bytes)
        return _Shape(rows, in_range("rank", rank, 0, row_bytes // share - 1), row_bytes, share)
