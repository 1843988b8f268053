"""The arena's options, checked where they are given."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

Backing = Literal["memfd", "shm"]
Prefault = Literal["lazy", "background", "eager"]
Pin = Literal["auto", "eager", "background", "off"]
ReaderAccess = Literal["shared", "readonly", "private"]

SLOTS_MAX = 1 << 20
CAPACITY_BYTES_MAX = 1 << 46
COPY_THREADS_MAX = 64

_CHOICES = {"backing": Backing, "prefault": Prefault, "pin": Pin, "reader_access": ReaderAccess}


@dataclass(frozen=True)
class ArenaConfig:
    """Options of one arena; immutable, picklable.

    Attributes:
        capacity_bytes: size of the data area.  Pages are taken as they are first used, so an unused arena costs nothing.
        slots: how many buffers can be held at once by messages whose tensors are still alive.
        divert_bytes: a buffer of at least this size goes into the arena, a smaller one travels in the ring.
        backing: ``"memfd"`` (no name, no ``/dev/shm`` limit) or ``"shm"`` (for readers in another PID namespace).
        prefault: when pages are taken: at first use, by a thread, or all at construction.
        pin: whether readers register the memory with the device driver.
        reader_access: ``"shared"``: a reader that writes into a tensor is seen by the others, as in a tensor shared
            between threads; ``"readonly"``: a write is a fault; ``"private"``: a reader's writes are its own.
        huge_pages: ask for huge pages (``MFD_HUGETLB``, else transparent ones).
        quarantine_s: how long what a dead reader held while pinned is kept back.
        copy_threads: threads of one copy into the arena; more than one pays from 4 MB, where cores are idle.

    Raises:
        ValueError: an option is out of range; the text names it, its value and what is allowed.
    """

    capacity_bytes: int = 2 << 30
    slots: int = 1024
    divert_bytes: int = 64 << 10
    backing: Backing = "memfd"
    prefault: Prefault = "lazy"
    pin: Pin = "auto"
    reader_access: ReaderAccess = "shared"
    huge_pages: bool = False
    quarantine_s: float = 2.0
    copy_threads: int = 1

    def __post_init__(self) -> None:
        in_range("capacity_bytes", self.capacity_bytes, 1, CAPACITY_BYTES_MAX)
        in_range("slots", self.slots, 1, SLOTS_MAX)
        in_range("divert_bytes", self.divert_bytes, 1, CAPACITY_BYTES_MAX)
        in_range("copy_threads", self.copy_threads, 1, COPY_THREADS_MAX)
        for name, choice in _CHOICES.items():
            if getattr(self, name) not in get_args(choice):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(get_args(choice))}")
        if not isinstance(self.huge_pages, bool):
            raise ValueError(f"huge_pages={self.huge_pages!r}: must be True or False")
        if not isinstance(self.quarantine_s, (int, float)) or not 0 <= self.quarantine_s <= 3600:
            raise ValueError(f"quarantine_s={self.quarantine_s!r}: must be between 0 and 3600 seconds")

    def __repr__(self) -> str:
        changed = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default)
        return f"ArenaConfig({', '.join(changed)})"


def in_range(name: str, value: object, least: int, most: int) -> None:
    """Refuses an argument that is no integer or out of range, with a ValueError that says so."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be an integer between {least} and {most}")
