"""A device without hardware: a DMA engine that reads memory late, and a driver that refuses what a real one refuses.

Device memory is host memory, and time is virtual: nothing happens until somebody calls `advance`, `step` or `drain`, or
lets the `running` thread do so.  A copy from pinned memory reads the bytes piece by piece, by address, at random later
moments, and keeps nothing alive: whoever gives the memory back too early finds somebody else's bytes in the copy.

The driver's rules that are kept here:

* a range that shares a page with a registered one is refused (712), even if that one's memory is long unmapped;
* zero bytes, or more than ``register_bytes_max`` in one call, are refused (1); a range that is not registered cannot
  be unregistered (713);
* a failed `register` or `unregister` leaves its code behind: until it is drained, the thread's next call on a stream
  raises it;
* a copy from memory that is not registered at all has read its source when the call returns;
* a copy that is only partly over registered memory, or over two registered ranges, is refused (1).
"""

from __future__ import annotations

import ctypes
import heapq
import mmap
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from arena.device.interface import (
    ERROR_ALREADY_REGISTERED,
    ERROR_INVALID_VALUE,
    ERROR_NOT_REGISTERED,
    Device,
)
from arena.errors import DeviceError

PIECES_MAX = 4
_TICK_S = 0.0005
_LEAVE_AN_ERROR = ("register", "unregister")


@dataclass(eq=False)
class SimulatedStream:
    """Work in order: nothing of it starts before ``busy_until``, in the device's time."""

    gpu: int
    name: str
    busy_until: float = 0.0


@dataclass(eq=False)
class SimulatedEvent:
    """Done once the device has come to it."""

    device: SimulatedDevice
    done: bool = False

    def query(self) -> bool:
        self.device.enter("query")
        return self.done


@dataclass(order=True)
class _Work:
    at: float
    number: int
    run: Callable[[], object] = field(compare=False)
    host: range = field(compare=False)


class SimulatedDevice(Device):
    """Seeded, so that a schedule can be played again.

    Args:
        seed: of the delays.
        delay_max_s: the longest time that one piece of a copy takes, in the device's time.
        gpus: how many devices there are.
        register_bytes_max: the limit of one `register`.
        register_s: how long `register` and `unregister` really sleep, with the GIL free.
        page_bytes: ranges that share a page overlap.
    """

    name = "simulated"

    def __init__(
        self,
        seed: int = 0,
        *,
        delay_max_s: float = 0.01,
        gpus: int = 1,
        register_bytes_max: int = 64 << 30,
        register_s: float = 0.0,
        page_bytes: int = mmap.PAGESIZE,
    ) -> None:
        self.calls: list[str] = []
        """The names of all calls so far, in order."""
        self.violations: list[str] = []
        """What would have been undefined behaviour on a real device."""
        self.registered: dict[int, int] = {}
        """Registered ranges, address to number of bytes."""
        self.reason: str | None = None
        """What `unavailable` answers."""
        self.now = 0.0
        self._random = random.Random(seed)
        self._delay_max_s = delay_max_s
        self._register_bytes_max = register_bytes_max
        self._register_s = register_s
        self._page_bytes = page_bytes
        self._lock = threading.RLock()
        self._defaults = [SimulatedStream(gpu, f"gpu {gpu}, default stream") for gpu in range(gpus)]
        self._used = {0}
        self._thread = threading.local()
        self._work: list[_Work] = []
        self._numbers = 0
        self._last_errors: defaultdict[int, int] = defaultdict(int)
        self._faults: defaultdict[str, list[int]] = defaultdict(list)

    # ---- faults -------------------------------------------------------------------------------

    def fail(self, call: str, code: int, *, nth: int = 1, times: int = 1) -> None:
        """Let the ``nth`` next call of this name, and ``times - 1`` after it, raise a `DeviceError` with ``code``."""
        with self._lock:
            planned = self._faults[call]
            planned.extend([0] * (nth - 1 + times - len(planned)))
            planned[nth - 1 : nth - 1 + times] = [code] * times

    def enter(self, call: str) -> None:
        """Log a call, and let it fail if that was asked for."""
        with self._lock:
            self.calls.append(call)
            planned = self._faults[call]
            code = planned.pop(0) if planned else 0
        if code == 0:
            return
        if call in _LEAVE_AN_ERROR:
            self._refuse(code, f"{call}: injected fault")
        raise DeviceError(f"{call}: injected fault ({code})", code)

    # ---- driver -------------------------------------------------------------------------------

    def unavailable(self) -> str | None:
        return self.reason

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        self.enter("register")
        time.sleep(self._register_s)
        with self._lock:
            if not 0 < nbytes <= self._register_bytes_max:
                limit = self._register_bytes_max
                self._refuse(ERROR_INVALID_VALUE, f"register: {nbytes} bytes, must be between 1 and {limit}")
            for start, length in self.registered.items():
                if self._overlap(self._pages(address, nbytes), self._pages(start, length)):
                    self._refuse(ERROR_ALREADY_REGISTERED, f"register: {address:#x} overlaps the range at {start:#x}")
            self.registered[address] = nbytes

    def unregister(self, address: int) -> None:
        self.enter("unregister")
        time.sleep(self._register_s)
        with self._lock:
            if address not in self.registered:
                self._refuse(ERROR_NOT_REGISTERED, f"unregister: nothing is registered at {address:#x}")
            memory = range(address, address + self.registered.pop(address))
            if any(self._overlap(memory, work.host) for work in self._work):
                self.violations.append(f"unregistered {address:#x} under a copy that is still going on")

    def drain_error(self) -> int:
        self.enter("drain_error")
        return self._last_errors.pop(threading.get_ident(), 0)

    def before_unmap(self, address: int, nbytes: int) -> None:
        """To be called before memory is unmapped: it must neither be registered nor in use then.  The work that would
        have touched it is dropped, so that the violation is reported and not a crash."""
        with self._lock:
            memory = range(address, address + nbytes)
            for start, length in self.registered.items():
                if self._overlap(memory, range(start, start + length)):
                    self.violations.append(f"unmapped {start:#x} while it was registered")
            rest = [work for work in self._work if not self._overlap(memory, work.host)]
            if len(rest) < len(self._work):
                self.violations.append(f"unmapped {address:#x} under a copy that is still going on")
                heapq.heapify(rest)
                self._work = rest

    # ---- streams ------------------------------------------------------------------------------

    def new_stream(self, gpu: int = 0) -> SimulatedStream:
        """A side stream."""
        return SimulatedStream(gpu, f"gpu {gpu}, side stream")

    @contextmanager
    def stream(self, stream: SimulatedStream) -> Iterator[None]:
        """Make a stream, and its device, this thread's current one."""
        before = self._current(), self._current(stream.gpu)
        self._set_current(stream)
        try:
            yield
        finally:
            self._set_current(before[1])
            self._set_current(before[0])

    def current_stream(self, where: torch.device | str | int | None = None) -> SimulatedStream:
        self.enter("current_stream")
        return self._current(where)

    def stream_of(self, given: object) -> SimulatedStream:
        if not isinstance(given, SimulatedStream):
            raise ValueError(f"stream={given!r}: must be a stream of the device {self.name}")
        return given

    def used_streams(self) -> tuple[SimulatedStream, ...]:
        self.enter("used_streams")
        return tuple(self._current(gpu) for gpu in sorted(self._used))

    def record(self, stream: SimulatedStream) -> SimulatedEvent:
        self._enter_stream("record", stream)
        event = SimulatedEvent(self)

        def complete() -> None:
            event.done = True

        self._queue(stream, 0.0, complete)
        return event

    def delay(self, stream: SimulatedStream, seconds: float) -> None:
        """Keep a stream busy, in the device's time."""
        self._enter_stream("delay", stream)
        self._queue(stream, seconds, lambda: None)

    # ---- copies -------------------------------------------------------------------------------

    def empty_like(self, source: torch.Tensor, where: torch.device | str | int, stream: SimulatedStream) -> torch.Tensor:
        if _gpu_number(where, stream.gpu) != stream.gpu:
            raise ValueError(f"stream={stream!r}: must be a stream of the device that is copied to, {where}")
        self.enter("empty_like")
        return torch.empty_like(source)

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, stream: SimulatedStream, *, non_blocking: bool = True
    ) -> None:
        self._enter_stream("copy", stream)
        if source.layout is torch.strided:
            _check_alike(source, target)
        if source.layout is not torch.strided or not self._is_registered(source):
            staged = source.clone()
            self._queue(stream, self._some_time(), lambda: target.copy_(staged))
        else:
            for piece in self._pieces(source):
                self._queue(stream, self._some_time(), partial(_to_device, target, source.data_ptr(), piece), piece)
            if source.is_conj():  # the bytes do not say so; the device does what is left, as torch has it do
                self._queue(stream, 0.0, target.conj_physical_)
            if source.is_neg():
                self._queue(stream, 0.0, target.neg_)
        if not non_blocking:
            self._wait_for(stream)

    def copy_back(self, source: torch.Tensor, target: torch.Tensor, stream: SimulatedStream) -> None:
        """A copy from the device into pinned host memory, which changes late, piece by piece."""
        self._enter_stream("copy_back", stream)
        _check_alike(source, target)
        if not self._is_registered(target):
            raise ValueError("copy_back: the target must be registered memory")
        for piece in self._pieces(target):
            self._queue(stream, self._some_time(), partial(_to_host, source, target.data_ptr(), piece), piece)

    # ---- time ---------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """How much work is queued."""
        return len(self._work)

    def advance(self, seconds: float) -> None:
        """Let the device's time pass, and do what is due."""
        with self._lock:
            until = self.now + seconds
            while self._work and self._work[0].at <= until:
                self.step()
            self.now = until

    def step(self) -> bool:
        """Do the next piece of work, at once; False if there is none."""
        with self._lock:
            if not self._work:
                return False
            work = heapq.heappop(self._work)
            self.now = max(self.now, work.at)
            work.run()
            return True

    def drain(self) -> None:
        """Do all work."""
        while self.step():
            pass

    def abandon(self) -> None:
        """Forget all work, as a driver does once it has torn down a process."""
        with self._lock:
            self._work.clear()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the device's time be real time, in a thread of its own, for the duration of a ``with`` block."""
        stop = threading.Event()

        def run() -> None:
            before = time.monotonic()
            while not stop.wait(_TICK_S):
                now = time.monotonic()
                self.advance(now - before)
                before = now

        thread = threading.Thread(target=run, name="simulated-device", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # ---- inside -------------------------------------------------------------------------------

    def _enter_stream(self, call: str, stream: SimulatedStream) -> None:
        self.enter(call)
        left_behind = self._last_errors.pop(threading.get_ident(), 0)
        if left_behind:
            raise DeviceError(f"{call}: an earlier call had failed, and nobody drained its error", left_behind)
        with self._lock:
            self._used.add(stream.gpu)

    def _refuse(self, code: int, text: str) -> None:
        self._last_errors[threading.get_ident()] = code
        raise DeviceError(f"{text} ({code})", code)

    def _queue(self, stream: SimulatedStream, seconds: float, run: Callable[[], object], host: range = range(0)) -> None:
        with self._lock:
            stream.busy_until = max(stream.busy_until, self.now) + seconds
            self._numbers += 1
            heapq.heappush(self._work, _Work(stream.busy_until, self._numbers, run, host))

    def _wait_for(self, stream: SimulatedStream) -> None:
        with self._lock:
            self.advance(max(0.0, stream.busy_until - self.now))

    def _some_time(self) -> float:
        return self._random.uniform(0.0, self._delay_max_s)

    def _pieces(self, host: torch.Tensor) -> list[range]:
        """The addresses of a tensor's bytes, cut at random."""
        start, end = host.data_ptr(), host.data_ptr() + host.nbytes
        size = -(-host.nbytes // self._random.randint(1, PIECES_MAX)) or 1
        return [range(at, min(at + size, end)) for at in range(start, end, size)]

    def _is_registered(self, tensor: torch.Tensor) -> bool:
        memory = range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
        with self._lock:
            for start, length in self.registered.items():
                if start <= memory.start and memory.stop <= start + length:
                    return True
                if self._overlap(memory, range(start, start + length)):
                    text = f"copy: only a part of {memory} is in the range at {start:#x} ({ERROR_INVALID_VALUE})"
                    raise DeviceError(text, ERROR_INVALID_VALUE)
        return False

    def _pages(self, address: int, nbytes: int) -> range:
        page = self._page_bytes
        return range(address // page * page, -(-(address + nbytes) // page) * page)

    @staticmethod
    def _overlap(a: range, b: range) -> bool:
        return a.start < b.stop and b.start < a.stop and bool(a) and bool(b)

    def _current(self, where: torch.device | str | int | None = None) -> SimulatedStream:
        streams: dict[int, SimulatedStream] = getattr(self._thread, "streams", {})
        gpu: int = getattr(self._thread, "gpu", 0) if where is None else _gpu_number(where, 0)
        if not 0 <= gpu < len(self._defaults):
            raise DeviceError(f"{where!r}: there is no such device")
        return streams.get(gpu, self._defaults[gpu])

    def _set_current(self, stream: SimulatedStream) -> None:
        if not hasattr(self._thread, "streams"):
            self._thread.streams = {}
        self._thread.streams[stream.gpu] = stream
        self._thread.gpu = stream.gpu


def _gpu_number(where: torch.device | str | int, default: int) -> int:
    """``0``, ``"cuda:0"``, ``torch.device("cuda", 0)``, ``"sim:0"``; or a name without a number."""
    if isinstance(where, int):
        return where
    return int(str(where).partition(":")[2] or default)


def _check_alike(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.nbytes != target.nbytes or not (source.is_contiguous() and target.is_contiguous()):
        raise ValueError("the simulated device copies between contiguous tensors of one size only")


def _to_device(target: torch.Tensor, host: int, piece: range) -> None:
    """Read a piece of host memory, by address, into its place in a tensor on the device."""
    ctypes.memmove(target.data_ptr() + piece.start - host, piece.start, len(piece))


def _to_host(source: torch.Tensor, host: int, piece: range) -> None:
    """Write a piece of host memory, by address, from its place in a tensor on the device."""
    ctypes.memmove(piece.start, source.data_ptr() + piece.start - host, len(piece))
