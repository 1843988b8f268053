"""What an offload region holds of its process: its place, its mapping, and what is pinned of it."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from functools import partial
from typing import Any

import torch

from arena.device.interface import Device
from arena.device.pinning import REGISTER_BYTES_MAX, Pinning
from arena.errors import ArenaError
from arena.shm import rendezvous
from arena.shm.capacity import HUGE_PAGE
from arena.shm.membership import Member
from arena.shm.native import address_of, capsules, lib, to_tensor

log = logging.getLogger("arena.offload")

RELEASED = "this region was released by cleanup(): make a new one"

_INT8 = (0, 8)  # as DLPack says it


class Held:
    """What a region holds of its process, apart from the region so that it can outlive it for a moment."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.pinning: Pinning | None = None
        self._turn: Any = threading.RLock()  # held by the thread that pins or gives up: an RLock knows whose it is
        self.is_closed = False  # nothing is pinned any more
        self._is_unmapped = False

    def tensor(self, nbytes: int) -> torch.Tensor:
        """All of it, as a tensor whose storage keeps the mapping."""
        return to_tensor(partial(capsules.of_mapping, address_of(self.member.mapping), 0, nbytes), _INT8, (nbytes,), None)

    def pin(self, device: Device, nbytes: int, row_bytes: int, *, background: bool) -> None:
        """Registers it, unless it is already; after a failure, tries again."""
        try:
            with self._turn:
                if self.is_closed:
                    raise ArenaError(RELEASED)
                self._pin(device, nbytes, row_bytes, background=background)
        finally:
            if self.is_closed:  # by a signal handler in the middle of this: what it has left is done now
                self.release()

    def _pin(self, device: Device, nbytes: int, row_bytes: int, *, background: bool) -> None:
        if self.pinning is None or (self.pinning.reason_unpinned is not None and self.pinning.unpin()):
            huge = os.fstatvfs(self.member.memory_fd).f_bsize == HUGE_PAGE
            self.pinning = Pinning(
                device,
                address_of(self.member.mapping.data),
                nbytes,
                row_bytes=row_bytes,
                pin="background" if background else "eager",
                chunk_bytes=None if background else REGISTER_BYTES_MAX,
                page_bytes=HUGE_PAGE if huge else mmap.PAGESIZE,
            )
        if (reason := device.unavailable()) is not None:
            log.warning("the region is not pinned: %s", reason)
        if not self.is_closed:
            self.pinning.start()

    def release(self) -> None:
        """Unpins, unmaps and leaves, in this order; nothing in a forked child, which has none of it.

        Waits for another thread that pins.  In a signal handler, in the middle of its own thread's pinning, it is done when
        that returns.
        """
        if self.member.pid != os.getpid():
            return
        self.is_closed = True
        if self.pinning is not None:
            self.pinning.close()
        if self._turn._is_owned():
            return
        with self._turn:
            self._give_up()

    def _give_up(self) -> None:
        """Everything that can be given up, whatever raises, as a signal handler: perhaps nobody comes back for the rest."""
        try:
            if not self._is_unmapped:
                self._unmap()
        finally:
            rendezvous.leave(self.member)

    def _unmap(self) -> None:
        is_unpinned = False
        try:
            self._is_unmapped = True
            is_unpinned = self._unpin()
        finally:
            if is_unpinned or self._unpin():
                lib.arena_map_release(self.member.mapping)
            else:
                log.warning("the region stays mapped until this process ends: the device may still know its memory")

    def _unpin(self) -> bool:
        return self.pinning is None or self.pinning.unpin()
