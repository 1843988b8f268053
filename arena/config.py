"""The arena's options, checked where they are given."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Backing = Literal["memfd", "shm"]
Prefault = Literal["lazy", "background", "eager"]
Pin = Literal["auto", "eager", "background", "off"]
ReaderAccess = Literal["shared", "readonly", "private"]

SLOTS_MAX = 1 << 20
CAPACITY_BYTES_MAX = 1 << 46
COPY_THREADS_MAX = 64

_INTEGERS = {
    "capacity_bytes": CAPACITY_BYTES_MAX, "slots": SLOTS_MAX,
    "divert_bytes": CAPACITY_BYTES_MAX, "copy_threads": COPY_THREADS_MAX,
}  # fmt: skip
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
        huge_pages: ask for huge pages (``MFD_HUGETLB``, else transparent ones); not with ``"private"`` access.
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
        for name, most in _INTEGERS.items():
            object.__setattr__(self, name, in_range(name, getattr(self, name), 1, most))
        for name, choice in _CHOICES.items():
            if getattr(self, name) not in get_args(choice):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(get_args(choice))}")
        if not isinstance(self.huge_pages, bool):
            raise ValueError(f"huge_pages={self.huge_pages!r}: must be True or False")
        if self.huge_pages and self.reader_access == "private":
            raise ValueError("huge_pages=True: not with reader_access='private', whose copies are of small pages")
        if not isinstance(self.quarantine_s, (int, float)) or not 0 <= self.quarantine_s <= 3600:
            raise ValueError(f"quarantine_s={self.quarantine_s!r}: must be between 0 and 3600 seconds")

    def __repr__(self) -> str:
        changed = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default)
        return f"ArenaConfig({', '.join(changed)})"


def as_integer(value: Any) -> int | None:
    """An integer of any library as Python's; None if it is none, or a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def in_range(name: str, value: object, least: int, most: int | None) -> int:
    """An argument as an integer; refuses what is none or out of range, with a ValueError that says so."""
    number = as_integer(value)
    if number is None or number < least or (most is not None and number > most):
        limit = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name}={value!r}: must be an integer {limit}")
    return number
