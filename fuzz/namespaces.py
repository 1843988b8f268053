"""A /dev/shm of one's own, as small as one likes, that nobody else sees."""

from __future__ import annotations

import ctypes
import os

_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18


def make_small_dev_shm(nbytes: int) -> None:
    """This thread, and what it starts, goes on with a /dev/shm of that size.

    Raises:
        OSError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "making the mounts private")
    _check(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={nbytes}".encode()), "mounting a tmpfs")


def enter_mounts_of(pid: int) -> None:
    """This thread, and what it starts, goes on with that process's /dev/shm.

    Raises:
        OSError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    directory = os.getcwd()
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(libc.unshare(_CLONE_FS), "unshare")  # other threads may not move with this one
        _check(libc.setns(fd, _CLONE_NEWNS), "setns")
    finally:
        os.close(fd)
    os.chdir(directory)


def _check(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
