"""Which pages of the data area have been filled before: pure, and private to the writer.

Of each chunk, all pages below a mark: extents take the lowest free place of a chunk, so what was used lies together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from arena.shm.layout import LINE, align


class Part(NamedTuple):
    """A piece of a range that lies in one chunk; the first ``warm_bytes`` of it have been filled before."""

    offset: int
    nbytes: int
    warm_bytes: int


class Warmth:
    """Not thread-safe in the sense that a mark may be lost; that costs time and nothing else.

    Args:
        chunk_bytes: what extents do not cross if they fit.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._marks: dict[int, int] = {}  # chunk -> end of its warm part

    def parts(self, offset: int, nbytes: int) -> Iterator[Part]:
        """A range, chunk by chunk."""
        end = offset + nbytes
        while offset < end:
            chunk = offset // self._chunk_bytes
            length = min(end, (chunk + 1) * self._chunk_bytes) - offset
            yield Part(offset, length, max(0, min(length, self._marks.get(chunk, 0) - offset)))
            offset += length

    def mark(self, part: Part) -> None:
        """A part has been filled; a gap between two buffers of one object is less than a line."""
        chunk = part.offset // self._chunk_bytes
        before = self._marks.get(chunk, chunk * self._chunk_bytes)
        if part.offset <= align(before, LINE):
            self._marks[chunk] = max(before, part.offset + part.nbytes)
