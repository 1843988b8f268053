"""Which of a slot's pages are written, copied to or populated, and a shortage of them. One process, anonymous memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from slots_support import claimed

from arena.protocol import slots
from arena.protocol.slots import SlotWriter
from arena.protocol.warmth import Part, Warmth
from arena.shm import segment as segments
from arena.shm.layout import LINE, PAGE, Layout
from arena.shm.native import ffi, lib


class Fake:
    """The native calls, some of them replaced; ``calls`` are theirs."""

    def __init__(self, **replaced: Any) -> None:
        self._replaced = replaced
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in self._replaced:
            return getattr(lib, name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self._replaced[name]

        return call


def test_a_shortage_of_pages_is_an_errno_and_marks_nothing_warm(writer: SlotWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = claimed(writer, 2 * PAGE)
    source = ffi.new("char[]", 2 * PAGE)
    writer._fd = 3  # as if there were a file: the native call is replaced
    monkeypatch.setattr(slots, "is_kept", bool)
    monkeypatch.setattr(slots, "lib", Fake(arena_copy_cold=errno.ENOSPC, arena_populate=errno.ENOMEM))
    assert writer.copy(slot, source, 1) == errno.ENOSPC
    assert writer.populate(slot) == errno.ENOMEM
    monkeypatch.setattr(slots, "is_kept", lambda fd: False)
    assert writer.copy(slot, source, 1) == errno.ENOMEM
    assert [part.warm_bytes for part in writer._warmth.parts(0, 2 * PAGE)] == [0]


@pytest.mark.parametrize(("is_writable", "fd"), [(True, 0), (True, 3), (False, -1)])
def test_only_a_file_that_can_be_written_to_is(segment: Any, is_writable: bool, fd: int) -> None:
    """Where it cannot, new pages are filled through the mapping."""
    segment.fd, segment.writable_file = max(fd, 0), is_writable
    assert SlotWriter(segment)._fd == fd


@pytest.mark.parametrize("fd", [0, 3])
def test_new_pages_are_written_and_known_ones_copied_to(
    writer: SlotWriter, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer._fd = fd
    monkeypatch.setattr(slots, "is_kept", lambda of: of == fd)
    fake = Fake(arena_copy_cold=0, arena_copy=None)
    monkeypatch.setattr(slots, "lib", fake)
    source = ffi.new("char[]", 4 * PAGE)
    data, in_file = writer._mapping.data, writer._data_offset
    slot = claimed(writer, 2 * PAGE)
    assert writer.copy(slot, source, 1) == 0
    assert fake.calls == [("arena_copy_cold", fd, in_file, data, source, 2 * PAGE)]
    fake.calls.clear()
    assert writer.copy(slot, source, 1) == 0
    assert fake.calls == [("arena_copy", data, source, 2 * PAGE, 1)]
    writer.free(slot)
    fake.calls.clear()
    longer = claimed(writer, 3 * PAGE)
    assert writer.copy(longer, source, 1) == 0
    assert fake.calls == [
        ("arena_copy", data, source, 2 * PAGE, 1),
        ("arena_copy_cold", fd, in_file + 2 * PAGE, data + 2 * PAGE, source + 2 * PAGE, PAGE),
    ]


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_descriptor_that_is_the_applications_by_now_is_not_written_to(is_taken: bool, tmp_path: Path) -> None:
    """By closerange and a file of its own of that number, or none: the bytes come through the mapping."""
    segment = segments.create(Layout(1, 4, PAGE, 4 * PAGE))
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    try:
        writer = SlotWriter(segment)
        os.dup2(own, segment.fd) if is_taken else os.close(segment.fd)
        payload = bytes(range(256)) * (2 * PAGE // 256)
        assert writer.copy(claimed(writer, 2 * PAGE), ffi.from_buffer(payload), 1) == 0
        assert bytes(ffi.buffer(segment.mapping.data, 2 * PAGE)) == payload
        assert os.fstat(own).st_size == 0
    finally:
        segment.close()
        os.close(own)
        if is_taken:
            os.close(segment.fd)


def test_a_copy_of_a_piece_goes_where_it_belongs(segment: Any) -> None:
    """Chunk by chunk, in a slot that does not begin the area."""
    writer = SlotWriter(segment, chunk_bytes=2 * PAGE)
    claimed(writer, PAGE)
    slot = claimed(writer, 3 * PAGE)
    offset = writer.offsets[slot]
    payload = bytes(range(256)) * (3 * PAGE // 256)
    assert writer.copy(slot, ffi.from_buffer(payload), 1, at=PAGE // 2, nbytes=2 * PAGE) == 0
    area = bytes(ffi.buffer(segment.mapping.data, 8 * PAGE))
    assert area[offset + PAGE // 2 : offset + PAGE // 2 + 2 * PAGE] == payload[: 2 * PAGE]
    assert not any(area[: offset + PAGE // 2])
    assert not any(area[offset + PAGE // 2 + 2 * PAGE :])


def test_only_new_pages_are_populated_and_whole(segment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SlotWriter(segment, chunk_bytes=4 * PAGE)
    fake = Fake(arena_populate=0)
    monkeypatch.setattr(slots, "lib", fake)
    data = writer._mapping.data
    claimed(writer, PAGE)
    slot = claimed(writer, 2 * PAGE)
    assert writer.populate(slot, 100, PAGE) == 0
    assert fake.calls == [("arena_populate", data + PAGE, PAGE + 100, 1)]
    fake.calls.clear()
    assert writer.populate(slot) == 0
    assert fake.calls == [("arena_populate", data + PAGE, 2 * PAGE, 1)]


def test_populated_pages_are_not_populated_again(segment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SlotWriter(segment)
    fake = Fake(arena_populate=0)
    monkeypatch.setattr(slots, "lib", fake)
    slot = claimed(writer, 2 * PAGE)
    assert writer.populate(slot) == 0
    assert writer.populate(slot) == 0
    assert len(fake.calls) == 1


def test_warmth_grows_from_the_start_of_a_chunk_only() -> None:
    warmth = Warmth(16 * LINE)
    warmth.mark(Part(4 * LINE, LINE, 0))  # beyond a gap: what lies between was never filled
    assert [part.warm_bytes for part in warmth.parts(0, 16 * LINE)] == [0]
    warmth.mark(Part(0, 3, 0))
    warmth.mark(Part(LINE, LINE, 0))  # less than a line of gap: two buffers of one object
    assert [part.warm_bytes for part in warmth.parts(0, 32 * LINE)] == [2 * LINE, 0]
    warmth.mark(Part(0, LINE, 0))
    assert [part.warm_bytes for part in warmth.parts(LINE, 15 * LINE)] == [LINE]
    warmth.mark(Part(16 * LINE, 16 * LINE, 0))
    assert [part.warm_bytes for part in warmth.parts(0, 48 * LINE)] == [2 * LINE, 16 * LINE, 0]
    assert [part.warm_bytes for part in warmth.parts(20 * LINE, 2 * LINE)] == [2 * LINE]
