"""A segment: made, found by its handle, checked, mapped as asked, and gone with its last user."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import python

from arena.errors import AttachError, CapacityError, CorruptError, InvalidHandle
from arena.shm import segment
from arena.shm.layout import PAGE, Layout
from arena.shm.native import ffi, lib
from arena.shm.segment import Segment, SegmentHandle

LAYOUT = Layout(n_readers=2, n_slots=4, ring_bytes=2 * PAGE, data_bytes=4 * PAGE)


@pytest.fixture(params=["memfd", "shm"])
def made(request: pytest.FixtureRequest) -> Iterator[Segment]:
    new = segment.create(LAYOUT, backing=request.param)
    yield new
    segment.unlink(new.handle)
    new.close()


def data(of: Segment) -> Any:
    return ffi.buffer(of.mapping.data, LAYOUT.data_bytes)


def altered(handle: SegmentHandle, **changes: Any) -> SegmentHandle:
    return dataclasses.replace(handle, **changes)


def test_two_mappings_of_one_memory(made: Segment) -> None:
    attached = segment.attach(pickle.loads(pickle.dumps(made.handle)))
    assert attached.data_address != made.data_address
    data(made)[:5] = b"hello"
    assert data(attached)[:5] == b"hello"
    data(attached)[PAGE : PAGE + 2] = b"ok"
    assert data(made)[PAGE : PAGE + 2] == b"ok"
    attached.close()


def test_new_memory_is_zero(made: Segment) -> None:
    assert bytes(data(made)) == bytes(LAYOUT.data_bytes)


def test_private_access_keeps_writes_to_itself(made: Segment) -> None:
    attached = segment.attach(made.handle, "private")
    data(attached)[:4] = b"mine"
    assert data(made)[:4] == bytes(4)
    data(made)[PAGE : PAGE + 4] = b"them"
    assert data(attached)[PAGE : PAGE + 4] == b"them"
    attached.close()


def test_readonly_access_faults_on_a_write(made: Segment) -> None:
    """Looked up in the kernel's own table of mappings."""
    attached = segment.attach(made.handle, "readonly")
    address = f"{attached.data_address:x}-"
    (line,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.startswith(address))
    assert line.split()[1] == "r--s"
    attached.close()


def test_a_memfd_cannot_be_cut_or_grown() -> None:
    made = segment.create(LAYOUT)
    for nbytes in (0, LAYOUT.total_bytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(made.fd, nbytes)
    made.close()


def test_close_is_idempotent(made: Segment) -> None:
    attached = segment.attach(made.handle)
    for _ in range(3):
        attached.close()
    assert not attached.alive
    assert made.alive


def test_the_mapping_lives_as_long_as_a_lease() -> None:
    made = segment.create(LAYOUT)
    grant = lib.arena_grant_open(made.mapping, 0, 1, 7)
    live = lib.arena_maps_live()
    made.close()
    assert lib.arena_maps_live() == live
    lib.arena_grant_drop(grant)
    assert lib.arena_maps_live() == live - 1


def test_a_closed_segment_is_not_found(made: Segment) -> None:
    handle = made.handle
    segment.unlink(handle)
    made.close()
    with pytest.raises(AttachError, match=r"does not exist|another file by now"):
        segment.attach(handle)


@pytest.mark.parametrize("at", ["posix_fallocate", "_handle"])
def test_a_name_that_somebody_removes_meanwhile_hides_no_error(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cleans /dev/shm up: the first error is what its caller sees, and nothing is kept."""

    def remove_and_fail(*_: object) -> None:
        for path in Path("/dev/shm").glob(f"arena-{os.getpid()}-*"):
            path.unlink()
        raise MemoryError("on purpose")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(segment if hasattr(segment, at) else os, at, remove_and_fail)
    with pytest.raises(MemoryError, match="on purpose"):
        segment.create(LAYOUT, backing="shm")
    assert os.listdir("/proc/self/fd") == before


def test_unlink_removes_only_its_own_file() -> None:
    """Another file under the same name stays."""
    made = segment.create(LAYOUT, backing="shm")
    path = Path(made.handle.path)
    path.unlink()
    path.write_text("of the next generation")
    segment.unlink(made.handle)
    assert path.read_text() == "of the next generation"
    path.unlink()
    segment.unlink(made.handle)
    made.close()


def test_a_name_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    made = segment.create(LAYOUT, backing="shm")
    path = Path(made.handle.path)
    path.rename(tmp_path.joinpath("moved")) if path.stat().st_dev == tmp_path.stat().st_dev else path.unlink()
    path.symlink_to(f"/proc/self/fd/{made.fd}")
    with pytest.raises(AttachError, match="symbolic link"):
        segment.attach(made.handle)
    path.unlink()
    made.close()


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 31, 32, 40, 48, 56, 64])
def test_a_header_that_differs_is_refused(made: Segment, offset: int) -> None:
    """Magic, version, readers, id, creator, and every size."""
    header = ffi.buffer(made.mapping.control, PAGE)
    header[offset] = bytes([header[offset][0] ^ 1])
    with pytest.raises(CorruptError, match="the header of"):
        segment.attach(made.handle)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(-1, 4, 2 * PAGE, 4 * PAGE), Layout(64, 4, 2 * PAGE, 4 * PAGE), Layout(2, -4, 2 * PAGE, 4 * PAGE),
        Layout(2, 4, 0, 4 * PAGE), Layout(2, 4, 100, 4 * PAGE), Layout(2, 4, -PAGE, 4 * PAGE),
        Layout(2, 4, 2 * PAGE, 100), Layout(2, 4, 2 * PAGE, -PAGE),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be(made: Segment, layout: Layout) -> None:
    with pytest.raises(InvalidHandle, match=r"export_handle\(\)"):
        segment.attach(altered(made.handle, layout=layout))


def test_a_size_that_the_file_does_not_have(made: Segment) -> None:
    larger = dataclasses.replace(LAYOUT, data_bytes=8 * PAGE)
    with pytest.raises(InvalidHandle, match=f"has {LAYOUT.total_bytes} bytes, the handle says {larger.total_bytes}"):
        segment.attach(altered(made.handle, layout=larger))


def test_another_file(made: Segment) -> None:
    with pytest.raises(AttachError, match=rf"the handle's is {made.handle.inode + 1}\)"):
        segment.attach(altered(made.handle, inode=made.handle.inode + 1))


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.EACCES, "same user.*same one, use backing='shm'"), (errno.EPERM, "ptrace"), (errno.EIO, "Input/output error")],
)
def test_an_open_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch, number: int, text: str) -> None:
    made = segment.create(LAYOUT)

    def refuse(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(AttachError, match=text):
            segment.attach(made.handle)
    made.close()


def test_no_namespace_shared(made: Segment) -> None:
    elsewhere = altered(made.handle, pid_namespace=made.handle.pid_namespace + 1)
    if made.handle.backing == "memfd":
        with pytest.raises(AttachError, match="backing='shm'"):
            segment.attach(elsewhere)
    else:
        segment.attach(elsewhere).close()  # a name means the same in every PID namespace


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_a_failure_while_making_one_leaves_nothing(monkeypatch: pytest.MonkeyPatch, backing: Any) -> None:
    """No descriptor, mapping or file: the check after each test looks."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "on purpose")

    for name in ("_write_header", "_handle"):
        with monkeypatch.context() as patched:
            patched.setattr(segment, name, fail)
            with pytest.raises(OSError, match="on purpose"):
                segment.create(LAYOUT, backing=backing)


def test_no_room_to_map_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, of: Layout, access: str) -> None:
        raise segment._no_memory("map", of, OSError(errno.ENOMEM, "Cannot allocate memory"))

    monkeypatch.setattr(segment, "_map", refuse)
    with pytest.raises(CapacityError, match=r"cannot map a segment of \d+ bytes.*ulimit -v"):
        segment.create(LAYOUT)


FORK = """
import gc, os, sys, warnings
import torch
from arena import ArenaConfig, MessageQueue
from arena.errors import ForkedError
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=4, divert_bytes=1024))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
writer.enqueue(torch.arange(2048))
held = reader.dequeue(60)
loan = writer.loan((100,), torch.uint8)

def child(end):
    warnings.simplefilter("ignore")
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    calls = [lambda: writer.enqueue(1), lambda: reader.dequeue(0), writer.statistics, lambda: writer.wait_until_ready(0)]
    for call in calls:
        try:
            call()
        except ForkedError as error:
            assert "anew in the child" in str(error)
        else:
            os._exit(9)
    end()

def drop():
    global writer, reader, held, loan
    writer.shutdown()
    reader.shutdown()
    del writer, reader, held, loan
    gc.collect()
    os._exit(0)

def join_anew():
    end = MessageQueue.create_from_handle(other.export_handle(), 0)
    try:
        end.dequeue(0)
    except TimeoutError:
        os._exit(0)

print(child(sys.exit), child(lambda: os._exit(0)), child(drop), writer.statistics().slots_free)
other = MessageQueue(1, 1, arena=None)
print(child(join_anew))
assert torch.equal(held, torch.arange(2048))
del held, loan
print(writer.statistics().slots_free)
writer.enqueue("still there")
print(reader.dequeue(60))
"""


def test_a_forked_child_is_inert() -> None:
    """However it ends, and whatever it drops: its parent's leases, segment and queue are untouched."""
    done = python(FORK, warnings="ignore")  # pyzmq warns of sockets that a child inherits and must not close
    assert (done.stdout, done.stderr, done.returncode) == ("0 0 0 2\n0\n4\nstill there\n", "", 0)
