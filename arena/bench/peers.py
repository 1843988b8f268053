"""What the figures are compared with, besides the transports of `arena.tools.transports`: the C library's memcpy."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator

import torch

MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None)
_libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc.memcpy.restype = ctypes.c_void_p
_libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_libc.memset.restype = ctypes.c_void_p
_libc.clock_getcpuclockid.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_int))


class SharedBuffer:
    """Anonymous shared memory of the same kind as an arena's, as the target of a plain `memcpy`."""

    def __init__(self, nbytes: int) -> None:
        descriptor = os.memfd_create("arena-bench")
        try:
            os.ftruncate(descriptor, nbytes)
            self._mapping = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        self._start = (ctypes.c_char * nbytes).from_buffer(self._mapping)

    def populate(self) -> None:
        """Take all pages, by the kernel in one call where it can."""
        try:
            self._mapping.madvise(MADV_POPULATE_WRITE)
        except OSError:
            _libc.memset(ctypes.addressof(self._start), 0, len(self._mapping))

    def copy_from(self, tensor: torch.Tensor) -> None:
        """One single-threaded `memcpy` of the tensor's bytes."""
        if tensor.nbytes > len(self._mapping) or not tensor.is_contiguous():
            raise ValueError(f"a contiguous tensor of at most {len(self._mapping)} bytes is needed")
        _libc.memcpy(ctypes.addressof(self._start), tensor.data_ptr(), tensor.nbytes)

    def view(self) -> memoryview:
        """The bytes."""
        return memoryview(self._start).cast("B")

    def close(self) -> None:
        """Unmap."""
        del self._start
        self._mapping.close()


@contextlib.contextmanager
def shared_buffer(nbytes: int, *, warm: bool) -> Iterator[SharedBuffer]:
    """A `SharedBuffer`, its pages taken if `warm`."""
    buffer = SharedBuffer(nbytes)
    try:
        if warm:
            buffer.populate()
        yield buffer
    finally:
        buffer.close()


def processor_clock(pid: int) -> int:
    """The clock that counts the processor time of a whole process, for `time.clock_gettime_ns`."""
    clock = ctypes.c_int()
    if error := _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(error, os.strerror(error))
    return clock.value


def resident_bytes() -> int:
    """Resident memory of this process, shared pages included."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE
