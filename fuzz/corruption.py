"""Damaged bytes: in the segment, in records, in stubs, in handles, in frames.  A reader says so; it does not crash.

The queue under test is in a child process: ended by a signal, it is a failure.  Half of the cases are drawn from the seed,
half are led by coverage (``guided.py``).
"""

from __future__ import annotations

import dataclasses
import pickle
import struct
from random import Random
from typing import Any

import torch
import zmq

from arena import CacheHandle, MessageQueue, ObjectCache
from arena.errors import ArenaError
from arena.message import codec, tensors
from arena.message.outofband import identity
from arena.protocol.slots import Grant
from arena.shm.native import ffi
from fuzz import guided, messages
from fuzz.session import Failure, Session
from fuzz.workers import Ended, Pool, Side

BATCH = 25
CASES = 1000
SPECIAL = (0, 1, 2, 3, 7, 8, 0xFF, 4095, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)

REFUSALS = (ArenaError, TimeoutError)
"""What may be raised where damage is met: CorruptError, StaleSlotError, InvalidHandle, AttachError, MessageLost,
Cancelled and WriterDied (a damaged word may say so), and a time-out (a damaged word may hide a message)."""

STUB_REFUSALS = (*REFUSALS, ValueError, TypeError, RuntimeError, OverflowError)
"""A pickle that asks for what cannot be is torch's or Python's to refuse, too."""

HANDLE_REFUSALS = (*REFUSALS, ValueError, TypeError)
"""A handle that no longer is of the right types, or whose rank does not exist."""


def corruption(session: Session) -> None:
    """Damaged segment words, records, stubs, handles and frames: refused by a typed error, in a process that lives on."""
    if session.options.get("input"):
        try:
            damage_once(guided.Choices(bytes.fromhex(session.options["input"])))
        except Failure as failure:
            raise Failure(str(failure), f"--input {session.options['input']}") from None
        return
    seconds = None if session.seconds is None else session.seconds / 2
    drawn = dataclasses.replace(session, seconds=seconds)
    _drawn(drawn)
    if guided.is_available():
        session.count("led by coverage", guided.run(session, _guided_runs(session), seconds))
    else:
        session.count("not led by coverage: no atheris here (pip install 'shm-tensor-arena[fuzz]')")


def _guided_runs(session: Session) -> int:
    if session.runs is not None:
        return session.runs
    return -1 if session.seconds is not None else CASES


def _drawn(session: Session) -> None:
    with Pool() as pool:
        worker = pool.take()
        cases = session.cases(CASES)
        while batch := [case for case, _ in zip(cases, range(BATCH))]:
            worker.start(damage, session.seed, batch[0], len(batch))
            at = batch[0]
            try:
                while (sign := worker.next())[0] == "said":
                    done, what = sign[1]
                    at = done + 1
                    session.count(what)
            except (Ended, Failure) as failure:  # or what the one before has left behind
                first = max(batch[0], at - 1)
                raise Failure(f"case {at}: {failure}", f"--first {first} --runs {at - first + 1}") from None


def damage(side: Side, seed: int, first: int, n: int) -> None:
    """Some cases, each with a queue of its own."""
    for case in range(first, first + n):
        side.say((case, damage_once(Session(seed).rng(case))))


def damage_once(rng: Random) -> str:
    """One case, drawn from this generator; what was damaged, and what came of it.

    Raises:
        Failure: damage was shown, or did more than it may.
    """
    kind = rng.choice(KINDS)
    return f"{kind.__name__[1:]}: {kind(rng)}"


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
        end._out_of_band._open()  # as before the first message
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


def _stub(rng: Random) -> str:
    """What a pickle says of a tensor beside it: its dtype, shape and strides.  No byte outside of its own buffer is read."""
    writer, reader = _queue()
    try:
        end: Any = writer._end
        tensor = torch.arange(rng.choice([100, 4096]), dtype=torch.uint8)

        original = end._encoder._reduce_tensor
        end._encoder._reduce_tensor = lambda t: _altered(rng, original(t))
        writer.enqueue([1, tensor], 1)
        try:
            received: Any = reader.dequeue(0)
        except STUB_REFUSALS as error:
            return type(error).__name__
        if received[1].untyped_storage().nbytes() > max(tensor.nbytes, 1):
            raise Failure(f"{received[1].shape} of {received[1].dtype} over {tensor.nbytes} bytes")
        received[1].clone()
        return "fits"
    finally:
        reader.shutdown()
        writer.shutdown()


def _altered(rng: Random, reduced: Any) -> Any:
    """A reduction with one to three of its numbers wrong."""
    rebuild, (marker, dtype, shape, strides) = reduced
    for _ in range(rng.randint(1, 3)):
        what = rng.randrange(3)
        if what == 0:
            dtype = rng.choice([*tensors.DLPACK.values(), (9, 9), (0, 0), (255, 255), None])
        elif what == 1:
            shape = tuple(_number(rng) for _ in range(rng.randrange(5)))
        else:
            strides = tuple(_number(rng) for _ in range(rng.randrange(5)))
    return rebuild, (marker, dtype, shape, strides)


def _number(rng: Random) -> int:
    numbers: list[int] = [*range(8), 50, 100, 4096, -1, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63)]
    return rng.choice(numbers)


KINDS = (_segment, _segment, _record, _stub, _handle, _frames, _cache, _record)
