"""Pinning a shared mapping, chunk by chunk, as it is used.

A device reads pinned memory by itself, and other memory through a copy that the driver makes first.  Pinning takes all
pages of what it pins, so it is done lazily: the first tensor that lies in a chunk pins that chunk.  A chunk holds whole
rows (slots of one size, KV rows), and is registered whole or not at all, because a driver refuses a copy from memory
that is registered only in part.

Anything that goes wrong is reported once and means "not pinned": the memory is as usable as before, only slower.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from arena.config import Pin
from arena.device.interface import ERROR_NOT_REGISTERED, Device
from arena.errors import ArenaError, DeviceError
from arena.ratelimit import RateLimit

logger = logging.getLogger("arena.device")

REGISTER_BYTES_MAX = 64 << 30
"""The most that one call registers: drivers refuse a few hundred GiB at once."""

LAZY_CHUNK_BYTES = 64 << 20
"""What one tensor pins beside itself, at most, where memory is pinned as it is used."""

WARN_EVERY_S = 60.0
"""The same trouble is reported at most once in this time, however many mappings have it."""

_warnings = RateLimit(WARN_EVERY_S)
_STAYS = "memory cannot be unpinned, so it stays mapped"
_UNPINNED = "memory is not pinned, so copies to the device are slower"


@dataclass(frozen=True)
class Chunk:
    """A part of a mapping that is pinned in one call."""

    offset: int
    nbytes: int


def plan_chunks(
    total_bytes: int, row_bytes: int = 1, chunk_bytes: int = REGISTER_BYTES_MAX, page_bytes: int = mmap.PAGESIZE
) -> list[Chunk]:
    """Cut ``total_bytes`` into chunks of at most ``chunk_bytes``, that meet at multiples of both the row and the page.

    Two chunks never share a page: drivers register whole pages and refuse one that is registered already.

    Raises:
        ValueError: a size is out of range, or no such chunk is small enough.
    """
    for name, value in (("row_bytes", row_bytes), ("chunk_bytes", chunk_bytes), ("page_bytes", page_bytes)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    if total_bytes < 0:
        raise ValueError(f"total_bytes={total_bytes}: must not be negative")
    if total_bytes <= chunk_bytes:
        return [Chunk(0, total_bytes)] if total_bytes else []
    unit = math.lcm(row_bytes, page_bytes)
    if unit > chunk_bytes:
        raise ValueError(
            f"rows of {row_bytes} bytes meet a page of {page_bytes} bytes every {unit} bytes, "
            f"which is more than one chunk holds ({chunk_bytes}): pad the rows to whole pages"
        )
    size = chunk_bytes // unit * unit
    return [Chunk(at, min(size, total_bytes - at)) for at in range(0, total_bytes, size)]


def chunk_bytes_of(pin: Pin) -> int | None:
    """How much one call pins at most; None where nothing is pinned."""
    if pin == "off":
        return None
    return REGISTER_BYTES_MAX if pin == "eager" else LAZY_CHUNK_BYTES


class _State(Enum):
    PAGEABLE = "pageable"
    REGISTERING = "registering"
    PINNED = "pinned"


class Pinning:
    """What one process has pinned of one mapping.  Thread-safe; no lock is held while the driver works.

    A signal handler or a finalizer may call it in the middle of a call of its own thread: nothing waits for that one.

    Args:
        device: the device that is to read the memory.
        address: where the mapping begins; at a page.
        nbytes: its length.
        row_bytes: the unit that no chunk boundary may cut.
        pin: ``"auto"``: what is used, when it is used, by the thread that uses it; ``"eager"``: everything at once, or
            nothing; ``"background"``: everything, by a thread; ``"off"``: nothing.
        chunk_bytes: the most to pin in one call; by default 64 MiB, and with ``"eager"`` as much as the driver takes.
        read_only: the mapping may only be read.
        populate: called with an offset and a length before that range is registered, to take its pages in a way that
            reports a shortage; lets other threads run.
        page_bytes: the size of the mapping's pages.
    """

    def __init__(
        self,
        device: Device,
        address: int,
        nbytes: int,
        *,
        row_bytes: int = 1,
        pin: Pin = "auto",
        chunk_bytes: int | None = None,
        read_only: bool = False,
        populate: Callable[[int, int], None] | None = None,
        page_bytes: int = mmap.PAGESIZE,
    ) -> None:
        if address % page_bytes:
            raise ValueError(f"address={address:#x}: must be a multiple of the page, {page_bytes}")
        if chunk_bytes is None:
            chunk_bytes = max(chunk_bytes_of(pin) or LAZY_CHUNK_BYTES, math.lcm(row_bytes, page_bytes))
        self.chunks = plan_chunks(nbytes, row_bytes, min(chunk_bytes, REGISTER_BYTES_MAX), page_bytes)
        self._device = device
        self._address = address
        self._nbytes = nbytes
        self._pin: Pin = pin
        self._read_only = read_only
        self._populate = populate
        self._states = [_State.PAGEABLE] * len(self.chunks)
        self._failure: str | None = None
        self._closed = False
        self._pid = os.getpid()
        self._registering: dict[int, int] = {}  # a chunk's number -> the thread that is at it
        self._lock = threading.RLock()  # not through the Condition, whose __enter__ a signal handler can end
        self._changed = threading.Condition(self._lock)
        self._unpinning: Any = threading.RLock()
        self._thread: threading.Thread | None = None

    # ---- pinning ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with what need not wait for the first use: all, where ``pin`` is ``"eager"`` or ``"background"``."""
        if self._pin in ("eager", "background"):
            self.ensure(0, self._nbytes)

    def ensure(self, offset: int, nbytes: int) -> bool:
        """Pin a range that is about to be used; tell whether all of it is pinned now.

        Does not raise, and where ``pin="background"`` does not wait.  The answer may be True later, and stays True.
        """
        wanted = self._covering(offset, nbytes)
        if self._all_pinned(wanted):
            return True
        if self._may_not_pin() is not None:
            return False
        if self._pin == "background":
            self._start_thread()
            return self._all_pinned(wanted)
        return self._pin_chunks(range(len(self.chunks)) if self._pin == "eager" else wanted)

    def _pin_chunks(self, wanted: range) -> bool:
        """Pin these chunks or, when one fails, none of those that were not pinned before.

        All of them count as being registered until it is known which: nobody takes one for pinned that is undone.
        """
        taken: list[int] = []
        registered: list[int] = []
        try:
            self._take(wanted, taken)
            for index in taken:
                if self._closed:
                    break
                # Noted before the call: were it interrupted, a note too many does no harm, and one too few would.
                registered.append(index)
                self._register(self.chunks[index])
        except (ArenaError, OSError, MemoryError) as error:
            self._report(_UNPINNED, error)
            registered = [index for index in registered[:-1] if not self._unregister(index)]
        finally:
            try:
                self._set(taken, registered)
            except BaseException:  # a signal handler's: others would wait for these chunks for ever
                self._set(taken, registered)
                raise
        return self._all_pinned(wanted)

    def _take(self, wanted: range, taken: list[int]) -> None:
        """Reserve those of these chunks that are to be registered now, once no other thread is at work on any."""
        me = threading.get_ident()
        with self._lock:
            if any(self._registering.get(index) == me for index in wanted):
                return
            self._changed.wait_for(lambda: self._registering.keys().isdisjoint(wanted))
            if self._failure is not None:
                return
            for index in wanted:
                if self._states[index] is _State.PAGEABLE:
                    taken.append(index)
                    self._registering[index] = me
                    self._states[index] = _State.REGISTERING

    def _register(self, chunk: Chunk) -> None:
        if self._populate is not None:
            self._populate(chunk.offset, chunk.nbytes)
        self._device.register(self._address + chunk.offset, chunk.nbytes, read_only=self._read_only)

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is not None or self._closed:
                return
            thread = threading.Thread(target=self._pin_all, name="arena-pin", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._report(_UNPINNED, error)
            else:
                self._thread = thread

    def _pin_all(self) -> None:
        # One by one: what is pinned already may be in use when a later one fails, so it stays.
        for index in range(len(self.chunks)):
            if not self._pin_chunks(range(index, index + 1)):
                return

    # ---- unpinning ----------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more is pinned: a call that is under way ends with the chunk that it is at."""
        self._closed = True

    def unpin(self) -> bool:
        """Undo everything, for good; to be called before the memory is unmapped, and it may be called again.

        Returns:
            True when nothing is registered any more.  False when the driver refused: then the memory must stay mapped,
            since the driver would take a later mapping at this address for this one.  False as well in the middle of a
            call of the same thread, which pins or unpins: to be called again when that has returned.
        """
        if os.getpid() != self._pid:
            return True  # a forked child has pinned nothing, and its parent's locks may be held for ever
        self.close()
        if self._unpinning._is_owned() or threading.get_ident() in list(self._registering.values()):
            return False
        with self._unpinning:
            with self._lock:
                self._changed.wait_for(lambda: not self._registering)
            pinned = [index for index, state in enumerate(self._states) if state is _State.PINNED]
            for index in pinned:
                if self._unregister(index):
                    self._set([index], [])
            return _State.PINNED not in self._states

    def _unregister(self, index: int) -> bool:
        """Tell whether the chunk is free of the driver now."""
        try:
            self._device.unregister(self._address + self.chunks[index].offset)
        except DeviceError as error:
            is_free = error.code == ERROR_NOT_REGISTERED
            self._report("the driver no longer knew memory that was pinned" if is_free else _STAYS, error)
            return is_free
        return True

    # ---- what is so ---------------------------------------------------------------------------

    @property
    def pinned_addresses(self) -> tuple[tuple[int, int], ...]:
        """Address and length of every range that is registered."""
        pinned = (chunk for chunk, state in zip(self.chunks, self._states, strict=True) if state is _State.PINNED)
        return tuple((self._address + chunk.offset, chunk.nbytes) for chunk in pinned)

    @property
    def pinned_bytes(self) -> int:
        """How much is registered."""
        return sum(nbytes for _, nbytes in self.pinned_addresses)

    @property
    def reason_unpinned(self) -> str | None:
        """Why memory that is used is not pinned; None when nothing stands in the way."""
        return self._may_not_pin()

    def is_pinned(self, offset: int, nbytes: int) -> bool:
        """Whether the device reads all of a range by itself."""
        return self._all_pinned(self._covering(offset, nbytes))

    def needs_gate(self, offset: int, nbytes: int) -> bool:
        """Whether a device may still read some of a range after a copy was issued.

        To be asked when the last view is gone, not when it was made: memory may have been pinned in between.
        """
        return any(self._states[index] is not _State.PAGEABLE for index in self._covering(offset, nbytes))

    def split(self, offset: int, nbytes: int) -> list[Chunk]:
        """Cut a range where chunks meet, for a copy that must not cross from one into the next."""
        parts = []
        for index in self._covering(offset, nbytes):
            chunk = self.chunks[index]
            start = max(offset, chunk.offset)
            parts.append(Chunk(start, min(offset + nbytes, chunk.offset + chunk.nbytes) - start))
        return parts

    # ---- inside -------------------------------------------------------------------------------

    def _may_not_pin(self) -> str | None:
        if self._pin == "off":
            return 'pin="off"'
        if os.getpid() != self._pid:
            return "this process is a forked child"
        if self._closed:
            return "the mapping is closed"
        return self._failure or self._device.unavailable()

    def _covering(self, offset: int, nbytes: int) -> range:
        """The numbers of the chunks that a range touches."""
        if not 0 <= offset <= offset + nbytes <= self._nbytes:
            raise ValueError(f"offset={offset}, nbytes={nbytes}: not within the {self._nbytes} bytes of the mapping")
        if nbytes == 0:
            return range(0)
        size = self.chunks[0].nbytes
        return range(offset // size, (offset + nbytes - 1) // size + 1)

    def _all_pinned(self, chunks: range) -> bool:
        return all(self._states[index] is _State.PINNED for index in chunks)

    def _set(self, indexes: list[int], pinned: list[int]) -> None:
        """Of these chunks, those in ``pinned`` are pinned, and the others are not."""
        kept = frozenset(pinned)
        with self._lock:
            for index in indexes:
                self._states[index] = _State.PINNED if index in kept else _State.PAGEABLE
                self._registering.pop(index, None)
            self._changed.notify_all()

    def _report(self, consequence: str, error: Exception) -> None:
        """Remember the first failure, which ends all attempts, and leave no error behind in the driver."""
        with self._lock:
            first, self._failure = self._failure is None, self._failure or str(error) or repr(error)
        if isinstance(error, DeviceError):
            with suppress(DeviceError):
                self._device.drain_error()
        if first and _warnings.allows(f"{consequence} {type(error).__name__} {getattr(error, 'code', '')}"):
            logger.warning("%s: %s", consequence, error)
