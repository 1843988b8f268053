"""Gates: memory that a device may still read goes back when the device is done with it, and not before.

The last drop of a pinned lease only puts its grant on a native list.  Here, in the reader's own time, each such grant gets
its *gate*: the events that must have completed before it is released.  They stand for

* every copy that ``to_device`` issued from the lease, recorded behind the copy, on the copy's stream;
* every use that ``record_use`` told of, recorded when it told;
* everything else: the current streams of all devices that this process uses, when the lease began, or where nothing was
  pinned yet when the first memory was, and again when its end is noticed (a later event stands for more, so later is safe).

Gates are looked at in ``dequeue``, while a reader waits, when it gets an object, and in ``flush_releases``; nothing here
waits for a device.

When a device cannot say whether it is done, a lease is *quarantined*: its slot stays taken until this process has ended,
for better a slot lost than a byte changed under a copy.

An exception, as of a signal handler, may end a look anywhere.  So each step leaves what the next look goes on from: a grant
is written down by the call that takes it off the native list, and crossed out by the call that releases it; its gate is
written down once it is whole, and what the gate was made of is forgotten after that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from arena.config import Pin
from arena.device.interface import Device, Stream
from arena.device.pinning import Pinning
from arena.errors import CapacityError, DeviceBusy, DeviceError
from arena.message import copies
from arena.message.marks import Gate, Mark, Use
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
        self._looking: Any = threading.RLock()  # held by the thread that looks: an RLock knows whose it is
        self._activating = threading.RLock()
        self._is_active = False  # something may be pinned, so drops wait
        self._is_closed = False
        self._first_streams: Sequence[Stream] = ()  # what was current when the first memory was about to be pinned
        self._streams: dict[int, Sequence[Stream]] = {}  # a later grant's address -> what was when its lease began
        self._uses: dict[Use, None] = {}
        self._chains: list[Any] = []  # taken off the native list, and yet to be followed
        self._grants: dict[int, Any] = {}  # dropped and not released, by address
        self._gates: dict[int, Gate] = {}  # theirs
        self._thread: threading.Thread | None = None

    # ---- leases ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Pins what ``pin`` wants pinned before its first use, if this process uses the device already."""
        if self._may_pin():
            self._activate()
            self.pinning.start()

    def admit(self, leases: Sequence[Lease]) -> None:
        """Before any view of them exists: pins their memory, if that may be, and lets their drops come here."""
        may_pin = self._may_pin()
        if may_pin and not self._is_active:
            self._activate()
        streams = self._current_streams() if self._is_active and leases else ()
        for lease in leases:
            grant = lease.grant
            lib.arena_grant_gate(ffi.cast("arena_grant *", grant), self._native, lease.data - self._base, lease.nbytes)
            if streams:
                self._streams[grant] = streams
            if may_pin:
                self.pinning.ensure(lease.data - self._base, lease.nbytes)

    def _may_pin(self) -> bool:
        return not self._is_closed and self.pinning.reason_unpinned is None

    def _activate(self) -> None:
        """From here on drops wait, the writer knows that this process's death does not end its copies at once, and the
        mapping stays until it is unpinned."""
        with self._activating:
            if not self._is_active:
                self._first_streams = self._current_streams()
                lib.arena_map_retain(self._mapping)
                lib.arena_member_pin(self._mapping, self._row)
                lib.arena_gates_shut(self._native)
                self._is_active = True

    def _current_streams(self) -> Sequence[Stream]:
        with suppress(*_TROUBLE):  # where there is trouble, it is met again at the end of the leases
            return self._device.used_streams()
        return ()

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
        start, cuts = 0, []
        # Pinned or not: a thread may pin some of it before the driver looks.
        if tensor.numel() and self._range(tensor)[1] and copies.is_flat(tensor):  # else it may have no address at all
            start = tensor.data_ptr() - self._base
            cuts = self.pinning.split(start, tensor.nbytes)
        use = self._note_use(tensor, stream)
        try:
            for source, part in copies.pieces(tensor, target, start, cuts):
                self._device.copy(source, part, stream, non_blocking=non_blocking)
        finally:  # what was issued before a failure reads the memory too
            self._mark_use(use)
        return target

    def _pin(self, tensor: torch.Tensor) -> None:
        """The device may have been unused when the lease began."""
        start, nbytes = self._range(tensor)
        if nbytes and self._may_pin():
            self._activate()
            self.pinning.ensure(start, nbytes)

    def record_use(self, tensor: torch.Tensor, stream: Stream) -> None:
        """What was issued to a stream so far may read a tensor's memory."""
        copies.check_tensor(tensor)
        self._mark_use(self._note_use(tensor, self._device.stream_of(stream)))

    def _may_be_read(self, start: int, nbytes: int) -> bool:
        """Whether a device may read any of a range by itself."""
        return self._is_active and nbytes > 0 and self.pinning.needs_gate(start, nbytes)

    def _note_use(self, tensor: torch.Tensor, stream: Stream) -> Use:
        """Before anything is issued: whatever comes in between, the lease's gate marks the stream then."""
        start, nbytes = self._range(tensor)
        use = Use(start, start + nbytes, stream=stream)
        self._uses[use] = None
        return use

    def _mark_use(self, use: Use) -> None:
        if not self._may_be_read(use.start, use.stop - use.start):
            self._uses.pop(use, None)
            return
        self._uses[use] = None  # again: the gate of another lease of this memory, an object's, may have taken it too early
        try:
            use.mark = Mark(self._device.record(use.stream))
        except DeviceBusy:
            return
        except _TROUBLE as error:
            _warn("an event cannot be recorded behind a copy", error)
        use.stream = None

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
        return sum(not gate.is_quarantined for gate in list(self._gates.values()))

    @property
    def quarantined(self) -> int:
        """Dropped leases that nobody can say the device is done with."""
        return sum(gate.is_quarantined for gate in list(self._gates.values()))

    def poll(self) -> None:
        """Looks at what was dropped and at the gates, and releases what no device reads any more.  Never waits."""
        if self._is_active:
            self._look(0.0)

    def flush(self) -> int:
        """`poll`, even if another thread is at it; returns how many dropped leases still wait."""
        if self._is_active and not self._look(_LOCK_TIMEOUT_S):
            raise TimeoutError(f"another thread looks at the gates for more than {_LOCK_TIMEOUT_S} s")
        return len(self._grants)

    def _look(self, timeout_s: float) -> bool:
        """One look, if no other thread is at one for longer; whether there was one."""
        if self._looking._is_owned():
            return True  # from a signal handler, in the middle of its own thread's look
        try:
            if not self._looking.acquire(timeout=timeout_s):
                return False
            self._poll()
            return True
        finally:
            try:  # noqa: SIM105 - Python code before the release is a place for a signal handler
                self._looking.release()
            except RuntimeError:  # it was not taken
                pass

    def _poll(self) -> None:
        self._take()
        for address in [address for address in self._grants if address not in self._gates]:
            self._shut(address)
        if self._gates:
            self._mark()
            self._settle()
        self._forget_uses()

    def _take(self) -> None:
        """Writes down what was dropped since the last look."""
        self._chains.extend(map(lib.arena_gates_pop, [self._native]))  # one call, within which no signal handler runs
        while self._chains:
            grant = self._chains[-1]
            if not grant:
                self._chains.pop()
                continue
            self._grants[_address(grant)] = grant
            self._chains[-1] = lib.arena_grant_next(grant)

    def _shut(self, address: int) -> None:
        """A gate for a dropped grant that a device may still read."""
        extent = ffi.new("uint64_t[2]")
        lib.arena_grant_extent(self._grants[address], extent)
        uses = self._uses_of(*extent)
        if not uses and not self.pinning.needs_gate(*extent):
            self._release(address)
            return
        gate = Gate([use.mark for use in uses if use.mark], [use.stream for use in uses if use.stream])
        try:
            gate.unmarked += {*self._streams.get(address, self._first_streams), *self._device.used_streams()}
        except _TROUBLE as error:
            self._keep(gate, error)
        if any(use.is_lost for use in uses):
            self._keep(gate, None)
        self._gates[address] = gate
        for use in uses:  # they are the gate's from now on
            self._uses.pop(use, None)

    def _uses_of(self, offset: int, nbytes: int) -> list[Use]:
        return [use for use in list(self._uses) if use.start < offset + nbytes and offset < use.stop]

    def _release(self, address: int) -> None:
        """No device reads it any more.  Interrupted, it leaves a grant without a gate, which the next look gives one."""
        self._gates.pop(address, None)
        self._streams.pop(address, None)
        list(map(release, map(self._grants.pop, [address])))  # one call, within which no signal handler runs

    def _mark(self) -> None:
        """Marks the streams of new gates: one mark in each stream serves all of them."""
        marks: dict[Stream, Mark | None] = {}
        for gate in [gate for gate in self._gates.values() if gate.unmarked and not gate.is_quarantined]:
            try:
                for stream in gate.unmarked:
                    if stream not in marks:
                        marks[stream] = self._mark_in(stream)
            except _TROUBLE as error:
                self._keep(gate, error)
                continue
            gate.marks += [mark for stream in gate.unmarked if (mark := marks[stream])]
            gate.unmarked = [stream for stream in gate.unmarked if marks[stream] is None]

    def _mark_in(self, stream: Stream) -> Mark | None:
        try:
            return Mark(self._device.record(stream))
        except DeviceBusy:  # being captured into a graph: at the next look
            return None

    def _settle(self) -> None:
        """Releases what is behind an open gate."""
        for address, gate in list(self._gates.items()):
            if gate.is_quarantined:
                continue
            try:
                gate.marks = [mark for mark in gate.marks if not mark.is_passed()]
            except _TROUBLE as error:
                self._keep(gate, error)
                continue
            if not gate.marks and not gate.unmarked:
                self._release(address)

    def _keep(self, gate: Gate, error: Exception | None) -> None:
        """Nobody can say when the device is done: the slot stays taken."""
        if not gate.is_quarantined:
            gate.is_quarantined = True
            _warn("a slot stays taken, as the device cannot say whether it still reads it", error)

    def _forget_uses(self) -> None:
        """A copy that is done needs no gate; one that the device cannot tell of keeps its lease for good."""
        for use in list(self._uses):
            if use.mark is not None:
                try:
                    if use.mark.is_passed():
                        self._uses.pop(use, None)
                except _TROUBLE as error:
                    use.mark = None
                    _warn("the device cannot say whether a copy is done", error)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """No lease follows.  Unpins, and lets go of the mapping, once nothing is leased and no gate is shut: now, or in a
        thread of its own that sleeps until then.  If the interpreter ends before, so does the process, and its memory."""
        self._is_closed = True
        is_over = False
        try:
            is_over = self._finish()
        finally:
            if not is_over:
                self._thread = threading.Thread(target=self._linger, name="arena-gates", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # no threads, or the interpreter is about to end
                    self._thread = None
                    _warn("slots that are still read stay taken until this process ends, as no thread starts to wait", error)

    def _finish(self) -> bool:
        """One look; whether it was the last."""
        if self._native is None:
            return True
        if self._is_active:
            self.flush()
            if lib.arena_gates_leases(self._native):
                return False
        is_free = self._is_active and self.pinning.unpin()
        native, self._native = self._native, None  # an exception from here on leaves something, and frees nothing twice
        if is_free:
            lib.arena_map_release(self._mapping)
        lib.arena_gates_close(native)
        return True

    def _linger(self) -> None:
        while not self._finish():
            if lib.arena_gates_leases(self._native) == self.quarantined:
                return  # for good
            lib.arena_gates_wait(self._native, GATE_SLICE_US if self.open_total else _IDLE_SLICE_US)


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _warn(what: str, error: Exception | None) -> None:
    if _warnings.allows(what):
        log.warning("%s: %s", what, str(error))  # not the exception: its frames hold tensors
