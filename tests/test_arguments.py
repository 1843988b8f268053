"""Arguments and handles that cannot be: typed errors that name the value, the limit and the way out."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import SMALL, queue_of

from arena import ArenaConfig, Handle, MessageQueue, ObjectCache
from arena.errors import ArenaError, AttachError, Cancelled, InvalidHandle

# ---- arguments that cannot be ---------------------------------------------------------------------------------------

BAD_QUEUES: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((0, 0), {}, "n_reader=0"),
    ((64, 64), {}, "n_reader=64.*63"),
    ((True, 1), {}, "n_reader=True"),
    ((1.0, 1), {}, "n_reader=1.0"),
    ((2, 1), {}, "n_local_reader=1"),
    ((1, 2), {}, "n_local_reader=2"),
    ((2, 2), {"local_reader_ranks": [0, 0]}, r"local_reader_ranks=\[0, 0\]"),
    ((2, 2), {"local_reader_ranks": [0]}, r"local_reader_ranks=\[0\]"),
    ((2, 2), {"local_reader_ranks": 5}, "local_reader_ranks=5: must be a sequence"),
    ((2, 2), {"local_reader_ranks": [0, 2]}, "rank=2"),
    ((2, 2), {"local_reader_ranks": [-1, 0]}, "rank=-1"),
    ((1, 1), {"max_chunk_bytes": 1023}, "max_chunk_bytes=1023.*1024"),
    ((1, 1), {"max_chunk_bytes": 1 << 33}, "max_chunk_bytes=8589934592"),
    ((1, 1), {"max_chunks": 0}, "max_chunks=0"),
    ((1, 1), {"max_chunks": 1 << 17}, "max_chunks=131072.*65536"),
    ((1, 1), {"spin_us": -1}, "spin_us=-1"),
    ((1, 1), {"arena": 5}, "arena=5"),
]


@pytest.mark.parametrize(("arguments", "options", "text"), BAD_QUEUES)
def test_bad_arguments(arguments: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MessageQueue(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity_bytes": 0}, "capacity_bytes=0.*between 1 and"),
        ({"slots": 0}, "slots=0"),
        ({"slots": (1 << 20) + 1}, "slots=1048577"),
        ({"divert_bytes": 0}, "divert_bytes=0"),
        ({"divert_bytes": 1.5}, "divert_bytes=1.5"),
        ({"backing": "tmpfs"}, "backing='tmpfs'.*memfd, shm"),
        ({"prefault": "yes"}, "prefault='yes'"),
        ({"pin": True}, "pin=True"),
        ({"reader_access": "rw"}, "reader_access='rw'"),
        ({"huge_pages": 1}, "huge_pages=1"),
        ({"huge_pages": True, "reader_access": "private"}, "huge_pages=True.*'private'"),
        ({"quarantine_s": -1}, "quarantine_s=-1"),
        ({"quarantine_s": float("nan")}, "quarantine_s=nan"),
        ({"copy_threads": 0}, "copy_threads=0"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ArenaConfig(**options)


def test_the_wrong_end() -> None:
    with queue_of(1) as (writer, (reader,)):
        for call in (reader.export_handle, reader.reap, lambda: reader.enqueue(1)):
            with pytest.raises(ValueError, match="is for the writer; this is reader 0"):
                call()  # type: ignore[operator]
        with pytest.raises(ValueError, match="is for a reader; this is the writer"):
            writer.dequeue()


NO_INTEGERS, EMPTY, LARGE = "must be an integer or a sequence of integers", "at least one element", "too large"


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        *((shape, NO_INTEGERS) for shape in (None, 2.0, "ab", (2.5,), ([2],))),
        *((shape, EMPTY) for shape in (0, -1, (0, 1 << 70), (-1, -1))),
        *((shape, LARGE) for shape in (1 << 62, (1 << 70,), (1 << 62, 1 << 62), (1 << 32, 1 << 32))),
    ],
)
def test_shapes_of_loans_that_cannot_be(shape: Any, text: str) -> None:
    with MessageQueue(1, 1, arena=SMALL) as writer:
        with pytest.raises(ValueError, match=re.escape(f"shape={shape!r}: ") + f".*{text}"):
            writer.loan(shape, torch.float32)


def test_integers_of_other_libraries() -> None:
    """They become Python's at once: a handle's checksum, and what is pickled, know no other."""
    three, rank = np.int64(3), np.int32(2)
    config = ArenaConfig(capacity_bytes=np.int64(1 << 20), slots=np.uint8(4))  # type: ignore[arg-type]
    assert {type(config.slots), type(config.capacity_bytes)} == {int}
    with MessageQueue(three, arena=config, max_chunks=three, spin_us=np.int8(0)) as writer:  # type: ignore[arg-type]
        assert writer.export_handle().local_reader_ranks == (0, 1, 2)
        assert writer.loan(three, torch.int16).shape == writer.loan(3, torch.int16).shape == (3,)
        with MessageQueue.create_from_handle(pickle.loads(pickle.dumps(writer.export_handle())), rank) as reader:  # type: ignore[arg-type]
            with pytest.raises(TimeoutError):
                reader.dequeue(np.float32(0.01))  # type: ignore[arg-type]
    with ObjectCache(np.int64(1 << 20), np.int8(1), np.int32(1 << 16), max_objects=np.int8(8)) as cache:  # type: ignore[arg-type]
        with ObjectCache.attach(cache.export_handle(), np.int64(0), np.float64(1)) as cached:  # type: ignore[arg-type]
            assert cached.get(cache.put("key", 5)) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-0.001, -1, float("-inf"), np.float64(-1)])
def test_a_negative_timeout_is_none_left(timeout: Any) -> None:
    """As a caller's own deadline has it that is past."""
    with queue_of(1) as (writer, (reader,)):
        with pytest.raises(TimeoutError, match="within 0 s"):
            reader.dequeue(timeout)
        writer.enqueue(5, timeout)
        assert reader.dequeue(timeout) == 5


def test_a_queue_says_who_it_is_and_how_large() -> None:
    with queue_of(2) as (writer, (_, reader)):
        of = writer.export_handle().segment.layout
        arena = f"arena of {of.data_bytes} bytes in {of.n_slots} slots"
        assert repr(writer) == f"MessageQueue(writer of 2 readers, {arena})"
        assert repr(reader) == f"MessageQueue(reader 1, {arena})"
    assert repr(writer) == f"MessageQueue(writer of 2 readers, {arena})", "also after the end"
    with pytest.raises(Cancelled, match="shut down"):
        writer.statistics()


def test_a_cache_says_how_full_it_is() -> None:
    with ObjectCache(1 << 20, 0) as cache:
        cache.put("image", torch.ones(10_000))
        assert repr(cache) == f"ObjectCache(1 objects, {cache.statistics().bytes_in_use} of {1 << 20} bytes)"


@pytest.mark.parametrize("timeout", [True, float("nan"), "1", 1j])
def test_bad_timeouts(timeout: Any) -> None:
    with queue_of(1) as (writer, (reader,)):
        for call in (lambda: writer.enqueue(1, timeout), lambda: reader.dequeue(timeout)):
            with pytest.raises(ValueError, match=re.escape(f"timeout={timeout!r}")):
                call()


def test_ranks_that_cannot_be() -> None:
    with MessageQueue(4, 4, local_reader_ranks=[3, 1, 0, 2], arena=None) as writer:
        handle = writer.export_handle()
        for rank in (4, -1, None, "0", True, 1.0):
            with pytest.raises(ValueError, match=r"rank=.*\[3, 1, 0, 2\]"):
                MessageQueue.create_from_handle(handle, rank)  # type: ignore[arg-type]
        with MessageQueue.create_from_handle(handle, 1):
            with pytest.raises(AttachError, match=r"rank 1 is taken by process \d+"):
                MessageQueue.create_from_handle(handle, 1)
        with pytest.raises(ValueError, match="device='cuda': must be"):
            MessageQueue.create_from_handle(handle, 0, device="cuda")  # type: ignore[arg-type]
        for thing in (None, "handle", handle.segment):
            with pytest.raises(ValueError, match="handle="):
                MessageQueue.create_from_handle(thing, 0)  # type: ignore[arg-type]
        for join in (MessageQueue.create_from_handle, ObjectCache.attach):
            with pytest.raises(ValueError, match=r"^handle is bytes: of a pickled Handle, give pickle.loads\(handle\)$"):
                join(pickle.dumps(handle), 0)  # type: ignore[arg-type]


# ---- handles --------------------------------------------------------------------------------------------------------


def altered(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, bytes):
        return bytes(len(value))
    if isinstance(value, tuple):
        return (*value, 9)
    return value + 1


SEGMENT_FIELDS = [
    "segment_id", "backing", "path", "device", "inode", "creator_pid", "creator_start", "boot_id", "pid_namespace", "layout",
]  # fmt: skip
LAYOUT_FIELDS = ["n_readers", "n_slots", "ring_bytes", "data_bytes"]


def change_segment(handle: Handle, name: str) -> Handle:
    value = getattr(handle.segment, name)
    other: Any = dataclasses.replace(value, n_slots=value.n_slots + 1) if name == "layout" else altered(value)
    return dataclasses.replace(handle, segment=dataclasses.replace(handle.segment, **{name: other}))


def change_layout(handle: Handle, name: str) -> Handle:
    of = handle.segment.layout
    other = dataclasses.replace(of, **{name: getattr(of, name) + (4096 if name.endswith("bytes") else 1)})
    return dataclasses.replace(handle, segment=dataclasses.replace(handle.segment, layout=other))


def change_field(handle: Handle, name: str) -> Handle:
    return dataclasses.replace(handle, **{name: altered(getattr(handle, name))})


CHANGES: dict[str, Callable[[Handle], Handle]] = {
    **{name: lambda handle, name=name: change_segment(handle, name) for name in SEGMENT_FIELDS},  # type: ignore[misc]
    **{name: lambda handle, name=name: change_layout(handle, name) for name in LAYOUT_FIELDS},  # type: ignore[misc]
    **{
        name: lambda handle, name=name: change_field(handle, name)  # type: ignore[misc]
        for name in ("endpoint", "local_reader_ranks", "reader_access", "spin_us", "checksum")
    },
}


@pytest.mark.parametrize("field", CHANGES)
def test_an_altered_handle_says_so(field: str) -> None:
    with MessageQueue(2, 2, arena=SMALL) as writer:
        with pytest.raises(InvalidHandle, match=r"altered; call export_handle\(\) again"):
            MessageQueue.create_from_handle(CHANGES[field](writer.export_handle()), 0)


@pytest.mark.parametrize("field", [*SEGMENT_FIELDS, *LAYOUT_FIELDS])
def test_a_forged_segment_is_refused(field: str) -> None:
    """Also with a checksum that fits: each field is compared with what it leads to."""
    with MessageQueue(2, 2, arena=SMALL) as writer:
        with pytest.raises(ArenaError):
            MessageQueue.create_from_handle(CHANGES[field](writer.export_handle()).sealed(), 0)


def test_a_handle_of_another_segment() -> None:
    with MessageQueue(1, 1, arena=SMALL) as one, MessageQueue(1, 1, arena=SMALL) as other:
        mixed = dataclasses.replace(
            one.export_handle(),
            segment=dataclasses.replace(one.export_handle().segment, path=other.export_handle().segment.path),
        )
        with pytest.raises(AttachError, match="another file by now"):
            MessageQueue.create_from_handle(mixed.sealed(), 0)


def test_a_handle_from_another_machine_or_namespace() -> None:
    with MessageQueue(1, 1, arena=SMALL) as writer:
        handle = writer.export_handle()
        elsewhere = dataclasses.replace(handle, segment=dataclasses.replace(handle.segment, boot_id="other"))
        with pytest.raises(AttachError, match=r"another machine.*remote readers"):
            MessageQueue.create_from_handle(elsewhere.sealed(), 0)
        contained = dataclasses.replace(handle, segment=dataclasses.replace(handle.segment, pid_namespace=1))
        with pytest.raises(AttachError, match=r"another PID namespace.*backing='shm'"):
            MessageQueue.create_from_handle(contained.sealed(), 0)


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_a_handle_of_a_closed_writer(backing: Any) -> None:
    writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=2, backing=backing), max_chunk_bytes=1024)
    handle = writer.export_handle()
    writer.shutdown()
    with pytest.raises(AttachError, match=r"closed the segment|does not exist|another file"):
        MessageQueue.create_from_handle(handle, 0)


def test_handles_travel() -> None:
    """Pickled, copied, used twice: a handle is a value."""
    with MessageQueue(2, 2, arena=SMALL) as writer:
        handle = writer.export_handle()
        assert pickle.loads(pickle.dumps(handle)) == copy.deepcopy(handle) == handle
        with MessageQueue.create_from_handle(pickle.loads(pickle.dumps(handle)), 0) as first:
            with MessageQueue.create_from_handle(handle, 1) as second:
                writer.enqueue("hello")
                assert first.dequeue(10) == second.dequeue(10) == "hello"


def test_a_handle_of_more_ranks_than_the_segment_has_is_refused() -> None:
    """Its checksum is right: the member's entry would lie in the slot table."""
    with MessageQueue(1, 1, arena=SMALL) as writer:
        handle = dataclasses.replace(writer.export_handle(), local_reader_ranks=(0, 1, 2)).sealed()
        with pytest.raises(InvalidHandle, match=r"3 ranks for a segment of 1 readers"):
            MessageQueue.create_from_handle(handle, 2)
