"""Gates: memory that a device may still read goes back when the device is done with it, and not before.

The last drop of a pinned lease only puts its grant on a native list.  Here, in the reader's own time, each such grant gets
its *gate*: the events that must have completed before it is released.  They stand for

* every copy that ``to_device`` issued from the lease, recorded behind the copy, on the copy's stream;
* every use that ``record_use`` told of, recorded when it told;
* everything else: the current streams of all devices that this process uses, when the lease began and again when its end is
  noticed (a later event stands for more work, so later is safe).

Gates are looked at in ``dequeue``, while a reader waits, and in ``flush_releases``; nothing here waits for a device.

When a device cannot say whether it is done, a lease is *quarantined*: its slot stays taken until this process has ended,
for better a slot lost than a byte changed under a copy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from arena.config import Pin
from arena.device.interface import Device, Event, Stream
from arena.device.pinning import Pinning
from arena.errors import CapacityError, DeviceBusy, DeviceError
from arena.message import copies
from arena.protocol.slots import release
from arena.ratelimit import RateLimit
from arena.shm.native import Lease, ffi, lib
from arena.shm.segment import Segment

log = logging.getLogger("arena.device")

GATE_SLICE_US = 2_000
"""How long a reader sleeps at most while one of its gates is shut."""

_IDLE_SLICE_US = 1_000_000
_LOCK_TIMEOUT_S = 1.0

_warnings = RateLimit(60.0)

_TROUBLE = (DeviceError, RuntimeError)  # torch raises the latter for what its driver says


class _Mark:
    """A point in a stream; passed for good once the device has said so."""

    __slots__ = ("_event", "_passed")

    def __init__(self, event: Event) -> None:
        self._event = event
        self._passed = False

    def is_passed(self) -> bool:
        self._passed = self._passed or self._event.query()
        return self._passed


@dataclass(eq=False)
class _Use:
    """A copy from a range of the data area: its mark, or the stream that would take none yet; neither: nobody can tell."""

    start: int
    stop: int
    mark: _Mark | None = None
    stream: Stream | None = None

    @property
    def is_lost(self) -> bool:
        return self.mark is None and self.stream is None


@dataclass(eq=False)
class _Gate:
    """A dropped grant, the marks that it waits for, and the streams that have yet to be marked."""

    grant: Any
    marks: list[_Mark] = field(default_factory=list)
    unmarked: list[Stream] = field(default_factory=list)


class Gates:
    """What one reader has pinned and leased.  Thread-safe.

    Until something is pinned nothing waits: leases are released by the drop itself.

    Args:
        segment: the reader's.
        row: the reader's place in its tables.
        device: what reads the memory.
        pin: when memory is pinned, as in ``ArenaConfig``.
        readonly: the mapping may only be read.
        chunk_bytes: what is pinned at once; by default what `Pinning` takes.
    """

    def __init__(
        self,
        segment: Segment,
        row: int,
        device: Device,
        *,
        pin: Pin = "auto",
        readonly: bool = False,
        chunk_bytes: int | None = None,
    ) -> None:
        self._segment = segment
        self._mapping = segment.mapping
        self._row = row
        self._device = device
        self._base = segment.data_address
        self._readonly = readonly
        self.pinning = Pinning(
            device, self._base, segment.layout.data_bytes, pin=pin, chunk_bytes=chunk_bytes, read_only=readonly,
            populate=self._populate,
        )  # fmt: skip
        self._native = lib.arena_gates_open()
        if not self._native:
            raise MemoryError("no memory for the gates of a reader")
        self._polling = threading.Lock()
        self._activating = threading.Lock()
        self._is_active = False  # something may be pinned, so drops wait
        self._is_closed = False
        self._streams: dict[int, Sequence[Stream]] = {}  # a grant's address -> what was current when its lease began
        self._uses: dict[_Use, None] = {}
        self._gates: dict[_Gate, None] = {}
        self._quarantine: list[_Gate] = []
        self._thread: threading.Thread | None = None

    # ---- leases ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Pins what ``pin`` wants pinned before its first use, if this process uses the device already."""
        if self._may_pin():
            self._activate()
            self.pinning.start()

    def admit(self, leases: Iterable[Lease]) -> None:
        """Before any view of them exists: pins their memory, if that may be, and lets their drops come here."""
        may_pin = self._may_pin()
        if may_pin and not self._is_active:
            self._activate()
        for lease in leases:
            grant = lease.grant
            lib.arena_grant_gate(ffi.cast("arena_grant *", grant), self._native, lease.data - self._base, lease.nbytes)
            if self._is_active:
                with suppress(*_TROUBLE):  # where there is trouble, it is met again at the end of the lease
                    self._streams[grant] = self._device.used_streams()
            if may_pin:
                self.pinning.ensure(lease.data - self._base, lease.nbytes)

    def _may_pin(self) -> bool:
        return not self._is_closed and self.pinning.reason_unpinned is None

    def _activate(self) -> None:
        """From here on drops wait, the writer knows that this process's death does not end its copies at once, and the
        mapping stays until it is unpinned."""
        with self._activating:
            if not self._is_active:
                lib.arena_map_retain(self._mapping)
                lib.arena_member_pin(self._mapping, self._row)
                lib.arena_gates_shut(self._native)
                self._is_active = True

    def _populate(self, offset: int, nbytes: int) -> None:
        error = lib.arena_populate(self._mapping.data + offset, nbytes, 0 if self._readonly else 1)
        if error:
            raise CapacityError(f"{nbytes} bytes at {offset} cannot be pinned: errno {error}, no memory for their pages")

    # ---- uses -----------------------------------------------------------------------------------------------

    def copy(
        self, tensor: torch.Tensor, where: torch.device | str | int, stream: Stream | None, *, non_blocking: bool
    ) -> torch.Tensor:
        """A tensor's copy on the device; the memory it is read from, if it is ours, is kept until the copy is done."""
        stream, target = copies.target_of(self._device, tensor, where, stream)
        self._pin(tensor)
        start = tensor.data_ptr() - self._base
        cuts = self.pinning.split(start, tensor.nbytes) if self._is_pinned(tensor) else []
        try:
            for source, part in copies.pieces(tensor, target, start, cuts):
                self._device.copy(source, part, stream, non_blocking=non_blocking)
        finally:  # what was issued before a failure reads the memory too
            self._mark_use(tensor, stream)
        return target

    def _pin(self, tensor: torch.Tensor) -> None:
        """The device may have been unused when the lease began."""
        start, nbytes = self._range(tensor)
        if nbytes and self._may_pin():
            self._activate()
            self.pinning.ensure(start, nbytes)

    def record_use(self, tensor: torch.Tensor, stream: Stream) -> None:
        """What was issued to a stream so far may read a tensor's memory."""
        self._mark_use(tensor, stream)

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a device may read any of it by itself."""
        start, nbytes = self._range(tensor)
        return self._is_active and nbytes > 0 and self.pinning.needs_gate(start, nbytes)

    def _mark_use(self, tensor: torch.Tensor, stream: Stream) -> None:
        if not self._is_pinned(tensor):
            return
        start, nbytes = self._range(tensor)
        use = _Use(start, start + nbytes)
        try:
            use.mark = _Mark(self._device.record(stream))
        except DeviceBusy:
            use.stream = stream
        except _TROUBLE as error:
            _warn("an event cannot be recorded behind a copy", error)
        self._uses[use] = None

    def _range(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Offset and length of the storage behind a CPU tensor in the data area; (0, 0) if it is not there."""
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            start = storage.data_ptr() - self._base
            if 0 <= start < self._segment.layout.data_bytes:
                return start, storage.nbytes()
        return 0, 0

    # ---- gates ----------------------------------------------------------------------------------------------

    @property
    def open_total(self) -> int:
        """Dropped leases that wait for a device: a waiting reader looks again soon."""
        return len(self._gates)

    @property
    def quarantined(self) -> int:
        """Dropped leases that nobody can say the device is done with."""
        return len(self._quarantine)

    def poll(self) -> None:
        """Looks at what was dropped and at the gates, and releases what no device reads any more.  Never waits."""
        if self._is_active and self._polling.acquire(blocking=False):
            try:
                self._poll()
            finally:
                self._polling.release()

    def flush(self) -> int:
        """`poll`, even if another thread is at it; returns how many dropped leases still wait."""
        with self._turn():
            if self._is_active:
                self._poll()
            return len(self._gates) + len(self._quarantine)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._polling.acquire(timeout=_LOCK_TIMEOUT_S):
            raise TimeoutError(f"another thread looks at the gates for more than {_LOCK_TIMEOUT_S} s")
        try:
            yield
        finally:
            self._polling.release()

    def _poll(self) -> None:
        dropped = list(_chain(lib.arena_gates_pop(self._native)))
        if dropped:
            self._shut(dropped)
        if self._gates:
            self._mark()
            self._settle()
        self._forget_uses()

    def _shut(self, dropped: Iterable[Any]) -> None:
        """A gate for each dropped grant that a device may still read."""
        extent = ffi.new("uint64_t[2]")
        for grant in dropped:
            lib.arena_grant_extent(grant, extent)
            uses = self._uses_of(*extent)
            streams = self._streams.pop(_address(grant), ())
            if not uses and not self.pinning.needs_gate(*extent):
                release(grant)
                continue
            gate = _Gate(grant, [use.mark for use in uses if use.mark], [use.stream for use in uses if use.stream])
            self._gates[gate] = None
            try:
                gate.unmarked += {*streams, *self._device.used_streams()}
            except _TROUBLE as error:
                self._keep(gate, error)
            if any(use.is_lost for use in uses):
                self._keep(gate, None)

    def _uses_of(self, offset: int, nbytes: int) -> list[_Use]:
        """The uses of an extent; they are its gate's from now on."""
        uses = [use for use in list(self._uses) if use.start < offset + nbytes and offset < use.stop]
        for use in uses:
            del self._uses[use]
        return uses

    def _mark(self) -> None:
        """Marks the streams of new gates: one mark in each stream serves all of them."""
        marks: dict[Stream, _Mark | None] = {}
        for gate in [gate for gate in self._gates if gate.unmarked]:
            try:
                for stream in gate.unmarked:
                    if stream not in marks:
                        marks[stream] = self._mark_in(stream)
            except _TROUBLE as error:
                self._keep(gate, error)
                continue
            gate.marks += [mark for stream in gate.unmarked if (mark := marks[stream])]
            gate.unmarked = [stream for stream in gate.unmarked if marks[stream] is None]

    def _mark_in(self, stream: Stream) -> _Mark | None:
        try:
            return _Mark(self._device.record(stream))
        except DeviceBusy:  # being captured into a graph: at the next look
            return None

    def _settle(self) -> None:
        """Releases what is behind an open gate."""
        for gate in list(self._gates):
            try:
                gate.marks = [mark for mark in gate.marks if not mark.is_passed()]
            except _TROUBLE as error:
                self._keep(gate, error)
                continue
            if not gate.marks and not gate.unmarked:
                del self._gates[gate]
                release(gate.grant)

    def _keep(self, gate: _Gate, error: Exception | None) -> None:
        """Nobody can say when the device is done: the slot stays taken."""
        if gate in self._gates:
            del self._gates[gate]
            self._quarantine.append(gate)
            _warn("a slot stays taken, as the device cannot say whether it still reads it", error)

    def _forget_uses(self) -> None:
        """A copy that is done needs no gate; one that the device cannot tell of keeps its lease for good."""
        for use in list(self._uses):
            if use.mark is not None:
                try:
                    if use.mark.is_passed():
                        del self._uses[use]
                except _TROUBLE as error:
                    use.mark = None
                    _warn("the device cannot say whether a copy is done", error)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """No lease follows.  Unpins, and lets go of the mapping, once nothing is leased and no gate is shut: now, or in a
        thread of its own that sleeps until then.  If the interpreter ends before, so does the process, and its memory."""
        self._is_closed = True
        if not self._is_active:
            lib.arena_gates_close(self._native)
        elif not self._finish():
            with suppress(RuntimeError):  # no thread starts any more: the interpreter is about to end
                self._thread = threading.Thread(target=self._linger, name="arena-gates", daemon=True)
                self._thread.start()

    def _finish(self) -> bool:
        """One look; whether it was the last."""
        with self._turn():
            self._poll()
        if lib.arena_gates_leases(self._native):
            return False
        if self.pinning.unpin():
            lib.arena_map_release(self._mapping)
        lib.arena_gates_close(self._native)
        return True

    def _linger(self) -> None:
        while not self._finish():
            if lib.arena_gates_leases(self._native) == len(self._quarantine):
                return  # for good
            lib.arena_gates_wait(self._native, GATE_SLICE_US if self._gates else _IDLE_SLICE_US)


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _chain(grant: Any) -> Iterable[Any]:
    """Grants that were dropped; each may be released once the next is known."""
    while grant:
        following = lib.arena_grant_next(grant)
        yield grant
        grant = following


def _warn(what: str, error: Exception | None) -> None:
    if _warnings.allows(what):
        log.warning("%s: %s", what, str(error))  # not the exception: its frames hold tensors
