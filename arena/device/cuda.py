"""The real device: CUDA, and ROCm, which torch offers under the same names.

Nothing here initialises CUDA: a process that has not done so itself has no device.  Memory is registered through the
runtime library that torch itself has loaded: a process may hold two of them (torch's and the system's), each keeps its
own last error, and an error left in torch's would surface in a later, unrelated call.  ``ctypes`` frees the GIL.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from arena.device.interface import Device, Event
from arena.errors import DeviceBusy, DeviceError

# Typed by hand here: torch's annotations of these are incomplete and differ by version and build.
_is_initialized: Callable[[], bool] = torch.cuda.is_initialized
_new_event: Callable[[], Any] = torch.cuda.Event
_new_stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream

_REGISTER_PORTABLE = 1
_REGISTER_READ_ONLY = 8
_CAPTURE_MODE_RELAXED = 2
_CAPTURE_ERRORS = range(900, 909)
"""What is refused only as long as a graph is captured, in this stream or in one that the default stream waits for."""


class _Runtime:
    """Five functions of the CUDA or HIP runtime, from the one that torch's own library is linked to."""

    def __init__(self) -> None:
        self.prefix = "hip" if torch.version.hip else "cuda"
        # Looking a name up in an opened library also searches what it is linked to, and nothing else.
        self._library = ctypes.CDLL(_loaded_library(f"libc10_{self.prefix}.so"), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        self.host_register = self._function("HostRegister", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self.host_unregister = self._function("HostUnregister", ctypes.c_void_p)
        self.get_last_error = self._function("GetLastError")
        self.exchange_capture_mode = self._function("ThreadExchangeStreamCaptureMode", ctypes.POINTER(ctypes.c_int))
        self._error_string = self._function("GetErrorString", ctypes.c_int, result=ctypes.c_char_p)

    def error_text(self, code: int) -> str:
        return f"{(self._error_string(code) or b'unknown error').decode()} ({code})"

    def _function(self, name: str, *arguments: Any, result: Any = ctypes.c_int) -> Any:
        function = getattr(self._library, self.prefix + name)
        function.argtypes, function.restype = arguments, result
        return function


def _loaded_library(name: str) -> str:
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path) == name:
                return f"/{path}"
    raise OSError(f"{name} is not loaded")


class CudaDevice(Device):
    """All CUDA or ROCm devices that this process uses, through torch."""

    name = "cuda"

    def __init__(self) -> None:
        self._runtime: _Runtime | None = None
        self._no_runtime: str | None = None
        self._loading = threading.Lock()

    def unavailable(self) -> str | None:
        if not _is_initialized():
            return "this process has not initialised CUDA"
        try:
            if not _used_devices():
                return "this process has no CUDA context yet"
        except DeviceError as error:
            return str(error)
        with self._loading:
            if self._runtime is None and self._no_runtime is None:
                self._load()
        return self._no_runtime

    def register(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        flags = _REGISTER_PORTABLE | (_REGISTER_READ_ONLY if read_only else 0)
        with self._context() as runtime:
            code = runtime.host_register(address, nbytes, flags)
        self._check(code, f"HostRegister of {nbytes} bytes at {address:#x}")

    def unregister(self, address: int) -> None:
        with self._context() as runtime:
            code = runtime.host_unregister(address)
        self._check(code, f"HostUnregister at {address:#x}")

    def drain_error(self) -> int:
        return int(self._loaded().get_last_error())

    def current_stream(self, where: torch.device | str | int | None = None) -> torch.cuda.Stream:
        with _as_device_error("current stream" if where is None else f"current stream of {where!r}"):
            return torch.cuda.current_stream(where)

    def stream_of(self, given: object) -> torch.cuda.Stream:
        if isinstance(given, torch.cuda.Stream):
            return given
        if isinstance(given, torch.Stream) and given.device.type == "cuda":
            # As `torch.accelerator` gives it: older versions of torch cannot hash it, nor record an event in it.
            return _new_stream(stream_id=given.stream_id, device_index=given.device_index, device_type=given.device_type)
        raise ValueError(f"stream={given!r}: must be a stream of the device {self.name}")

    def used_streams(self) -> tuple[torch.cuda.Stream, ...]:
        with _as_device_error("current streams"):
            return tuple(torch.cuda.current_stream(index) for index in _used_devices())

    def record(self, stream: torch.cuda.Stream) -> Event:
        with _as_device_error("stream"), _current(stream):
            if torch.cuda.is_current_stream_capturing():
                raise DeviceBusy(f"{stream} is being captured into a graph: an event recorded now would belong to it")
        with _as_device_error("event record"), self._relaxed(stream.device_index):
            event = _new_event()
            event.record(stream)
        return _CudaEvent(event, self, stream.device_index)

    def empty_like(self, source: torch.Tensor, where: torch.device | str | int, stream: torch.cuda.Stream) -> torch.Tensor:
        with _as_device_error(f"device {where!r}"):
            place = torch.device(where)
        if place.type != stream.device.type or place.index not in (None, stream.device_index):
            raise ValueError(f"stream={stream}: must be a stream of the device that is copied to, {place}")
        # Under the stream, so that the allocator knows whose memory it is.
        with _as_device_error("memory for a copy"), _current(stream):
            return torch.empty_like(source, device=where)

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, stream: torch.cuda.Stream, *, non_blocking: bool = True
    ) -> None:
        with _as_device_error("copy"), _current(stream):
            target.copy_(source, non_blocking=non_blocking)

    def query(self, event: Any, index: int) -> bool:
        """Whether an event on one of the devices is done."""
        with _as_device_error("event query"), self._relaxed(index):
            return bool(event.query())

    def _load(self) -> None:
        try:
            self._runtime = _Runtime()
        except (OSError, AttributeError) as error:
            self._no_runtime = f"torch's CUDA runtime cannot be reached: {error}"

    def _loaded(self) -> _Runtime:
        reason = None if self._runtime else self.unavailable()
        if self._runtime is None:
            raise DeviceError(f"no device: {reason}")
        return self._runtime

    def _check(self, code: int, what: str) -> None:
        if code != 0:
            runtime = self._loaded()
            raise DeviceError(f"{runtime.prefix}{what}: {runtime.error_text(code)}", code)

    @contextmanager
    def _context(self) -> Iterator[_Runtime]:
        """On a device that this process uses."""
        reason = self.unavailable()
        if reason is not None:
            raise DeviceError(f"no device: {reason}")
        with _as_device_error("device context"), self._relaxed(_used_devices()[0]) as runtime:
            yield runtime

    @contextmanager
    def _relaxed(self, index: int) -> Iterator[_Runtime]:
        """Make a device with a context of this process the current one, and keep a graph capture in another thread valid.

        A new thread's current device is number 0, whichever one the process uses, and a call there would create a
        context, with its memory, on somebody else's device.  And without the mode, registering memory or querying an
        event here would end a capture with an error.
        """
        runtime = self._loaded()
        mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
        with torch.cuda.device(index):
            runtime.exchange_capture_mode(ctypes.byref(mode))
            try:
                yield runtime
            finally:
                runtime.exchange_capture_mode(ctypes.byref(mode))


class _CudaEvent:
    def __init__(self, event: Any, device: CudaDevice, index: int) -> None:
        self._event = event
        self._device = device
        self._index = index

    def query(self) -> bool:
        return self._device.query(self._event, self._index)


def _used_devices() -> list[int]:
    has_context: Callable[[int], bool] = getattr(torch._C, "_cuda_hasPrimaryContext")  # noqa: B009 (absent in CPU builds)
    with _as_device_error("devices in use"):
        return [index for index in range(torch.cuda.device_count()) if has_context(index)]


@contextmanager
def _current(stream: torch.cuda.Stream) -> Iterator[None]:
    """Make a stream the current one.  Its device first: what `torch.cuda.stream` alone would go back to at its end, in a
    thread that has chosen none, is device number 0, and a context is created there."""
    with torch.cuda.device(stream.device_index), torch.cuda.stream(stream):
        yield


@contextmanager
def _as_device_error(what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AssertionError) as error:  # the latter from a torch that was built without CUDA
        code = int(getattr(error, "error_code", 0) or 0)
        raise (DeviceBusy if code in _CAPTURE_ERRORS else DeviceError)(f"{what}: {error}", code) from error
