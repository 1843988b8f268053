"""Damaged bytes: in the segment, in records, in handles, in frames.  A reader says so; it does not crash.

The queue under test is in a child process: ended by a signal, it is a failure.
"""

from __future__ import annotations

import dataclasses
import pickle
import struct
from random import Random
from typing import Any

import zmq

from arena import CacheHandle, MessageQueue, ObjectCache
from arena.errors import ArenaError
from arena.message import codec
from arena.message.outofband import identity
from arena.protocol.slots import Grant
from arena.shm.native import ffi
from fuzz import messages
from fuzz.session import Failure, Session
from fuzz.workers import Ended, Pool, Side

BATCH = 25
SPECIAL = (0, 1, 2, 3, 7, 8, 0xFF, 4095, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)

REFUSALS = (ArenaError, TimeoutError)
"""What may be raised where damage is met: CorruptError, StaleSlotError, InvalidHandle, AttachError, MessageLost,
Cancelled and WriterDied (a damaged word may say so), and a time-out (a damaged word may hide a message)."""

HANDLE_REFUSALS = (*REFUSALS, ValueError, TypeError)
"""A handle that no longer is of the right types, or whose rank does not exist."""


def corruption(session: Session) -> None:
    """Damaged segment words, records, handles and frames: refused by a typed error, in a process that lives on."""
    with Pool() as pool:
        worker = pool.take()
        cases = session.cases(1000)
        while batch := [case for case, _ in zip(cases, range(BATCH))]:
            worker.start(damage, session.seed, batch[0], len(batch))
            at = batch[0]
            try:
                while (sign := worker.next())[0] == "said":
                    at, what = sign[1]
                    session.count(what)
            except (Ended, Failure) as failure:
                replay = f"python -m fuzz bytes --seed {session.seed} --first {at} --runs 1"
                raise Failure(f"case {at} or the next one: {failure}\n  {replay}") from None


def damage(side: Side, seed: int, first: int, n: int) -> None:
    """Some cases, each with a queue of its own."""
    for case in range(first, first + n):
        rng = Session(seed).rng(case)
        kind = rng.choice([_segment, _segment, _record, _handle, _frames, _cache])
        side.say((case, f"{kind.__name__[1:]}: {kind(rng)}"))


def changed(rng: Random, data: bytes) -> bytes:
    """The bytes with one to three of them, or a word, or a stretch, made wrong."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(len(out) or 1), rng.randrange(5)
        if kind == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and len(out) >= 8:
            struct.pack_into("<Q", out, at // 8 * 8 % (len(out) - 7), rng.choice(SPECIAL))
        elif kind == 2 and len(out) >= 8:
            place = at // 8 * 8 % (len(out) - 7)
            word = struct.unpack_from("<Q", out, place)[0]
            struct.pack_into("<Q", out, place, (word + rng.choice([-8, -1, 1, 8, 1 << 32])) % 2**64)
        elif kind == 3:
            del out[at : at + rng.randrange(1, 16)]
        else:
            out[at:at] = rng.randbytes(rng.randrange(1, 16))
    return bytes(out)


def _queue() -> tuple[MessageQueue, MessageQueue]:
    writer = MessageQueue(1, 1, None, messages.CHUNK_BYTES, messages.CHUNKS, arena=messages.ARENA)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    writer.wait_until_ready(10)
    return writer, reader


def _read_all(reader: MessageQueue, n: int, held: list[Any]) -> str:
    """Whatever comes must be right; the name of the first refusal."""
    found = "unnoticed"
    for _ in range(n):
        try:
            message: Any = reader.dequeue(0)
        except REFUSALS as error:
            found = type(error).__name__ if found == "unnoticed" else found
            continue
        wrong = messages.wrong(message)
        if "small tensor" in wrong:  # the bytes of inline buffers have no checksum: damaged, but nobody else's
            return "inline bytes"
        if wrong:
            raise Failure(f"shown though damaged: {wrong}")
        held.append(message)
    return found


def _segment(rng: Random) -> str:
    """Words of header, members, slots, rows or ring, while messages are under way; reader and writer go on."""
    writer, reader = _queue()
    held: list[Any] = []
    try:
        start = rng.randrange(6)
        for number in range(start, start + 4):
            writer.enqueue(messages.build(number, writer), 1)
        _read_all(reader, rng.randrange(3), held)
        may_be_released = _damage_words(rng, writer)
        found = _read_all(reader, 5, held)
        try:
            for number in range(6):
                writer.enqueue(messages.build(number, writer), 0)
            writer.reap()
            writer.statistics()
        except REFUSALS as error:
            found += f" and {type(error).__name__} of the writer"
        _read_all(reader, 5, held)
        for message in [] if may_be_released else held:
            if wrong := messages.wrong(message):
                raise Failure(f"held, and changed: {wrong}")
    finally:
        held.clear()
        reader.shutdown()
        writer.shutdown()
    return found


def _damage_words(rng: Random, writer: MessageQueue) -> bool:
    """Whether a ``done`` word was among them: it may now say that a slot is released, which is no damage that shows."""
    segment = writer._end.segment
    of = segment.layout
    parts = [
        (0, 384), (4096, of.slots_offset), (of.slots_offset, of.done_offset), (of.done_offset, of.hold_offset),
        (of.hold_offset, of.ring_offset), (of.ring_offset, of.ring_offset + 2048),
    ]  # fmt: skip
    control = ffi.buffer(segment.mapping.control, of.control_bytes)
    hit = [rng.choice(parts) for _ in range(rng.randint(1, 4))]
    for start, end in hit:
        at = rng.randrange(start, max(start + 8, end - 7)) // 8 * 8
        word = struct.unpack_from("<Q", control, at)[0]
        near = (word + rng.choice([-4096, -8, -1, 1, 8, 4096])) % 2**64
        struct.pack_into("<Q", control, at, rng.choice([near, rng.choice(SPECIAL), rng.randrange(2**64)]))
    return any(start == of.done_offset for start, _ in hit)


def _record(rng: Random) -> str:
    """A record as a reader takes it out of the ring, damaged."""
    grants = [Grant(i, rng.randrange(1, 9)) for i in range(rng.randrange(3))]
    buffers = [
        codec.Buffer(codec.Kind(rng.randrange(4)), rng.randrange(max(1, len(grants))), 0, rng.randrange(64))
        for _ in range(rng.randrange(4))
    ]
    inline = [b"x" * buffer.nbytes for buffer in buffers if buffer.kind < codec.Kind.SLOT_TENSOR]
    body = pickle.dumps(rng.random())
    whole = b"".join([*codec.pack(0, 1, [body], grants, buffers, len(inline)), body, *inline])
    try:
        record = codec.Record(memoryview(changed(rng, whole)))
        if record.plain_pickle() is None:
            record.grants()
            found = record.buffers(record.table())
            [*record.payload([b.nbytes for b in found if b.kind < codec.Kind.SLOT_TENSOR])]
    except ArenaError as error:
        return type(error).__name__
    return "unnoticed"


def _handle(rng: Random) -> str:
    """A field of a handle, sealed again half of the time."""
    with MessageQueue(1, 1, arena=messages.ARENA) as writer:
        handle = writer.export_handle()
        segment = handle.segment
        of = segment.layout
        if rng.random() < 0.5:
            field = rng.choice(dataclasses.fields(of)).name
            of = dataclasses.replace(of, **{field: _other(rng, getattr(of, field))})
            segment = dataclasses.replace(segment, layout=of)
        else:
            names = [f.name for f in dataclasses.fields(segment) if f.name not in ("layout", "path", "backing")]
            field = rng.choice(names)
            segment = dataclasses.replace(segment, **{field: _other(rng, getattr(segment, field))})
        bad: Any = dataclasses.replace(handle, segment=segment)
        if rng.random() < 0.5:
            bad = bad.sealed()
        try:
            reader = MessageQueue.create_from_handle(bad, rng.choice([0, 0, 1, -1]))
        except HANDLE_REFUSALS as error:
            return type(error).__name__
        reader.shutdown()
        return "unnoticed"


def _other(rng: Random, value: Any) -> Any:
    if isinstance(value, bytes):
        return changed(rng, value)
    if isinstance(value, str):
        return value + "x"
    return rng.choice([*SPECIAL, -1, value + 1, value * 2, value ^ 1, None, "x"])


def _frames(rng: Random) -> str:
    """Frames that the writer did not send, before those of a real message."""
    writer, reader = _queue()
    try:
        end: Any = writer._end
        socket = end._out_of_band._socket
        address = identity(0, end.members.entry(0))
        while True:
            try:
                number = changed(rng, struct.pack("<Q", rng.choice([0, 1, 2, 99])))
                frames = [rng.randbytes(rng.randrange(64)) for _ in range(rng.randrange(5))]
                socket.send_multipart([address, number, *frames])
                break
            except zmq.ZMQError:  # the reader's connection is still under way
                socket.poll(5)
        writer.enqueue(messages.build(5, writer), 5)
        return _read_all(reader, 1, [])
    finally:
        reader.shutdown()
        writer.shutdown()


def _cache(rng: Random) -> str:
    """A cache's handle, damaged."""
    with ObjectCache(1 << 20, 0, max_objects=4) as store:
        handle: Any = store.put("key", messages.large(1))
        store.put("other", messages.large(2))
        data = changed(rng, handle.to_bytes())
        try:
            value: Any = store.get(CacheHandle.from_bytes(data))
        except ArenaError as error:
            return type(error).__name__
        if data != handle.to_bytes() or not bool((value == messages.large(1)).all()):
            raise Failure(f"an altered handle {data.hex()} led to something")
        return "unnoticed"


