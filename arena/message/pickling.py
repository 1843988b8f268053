"""The writer's side of a message: one pickle, and beside it the buffers that it asks for.

Large buffers are diverted into the arena while the object is pickled; what is declined travels with the pickle.

Choices, each measured (docs/performance.md): a per-pickler ``dispatch_table`` (other objects pay nothing, unlike
``reducer_override`` or ``persistent_id``), copied from ``copyreg``'s per message (0.1 us; a cached copy misses later
registrations); one pickler for many messages; a sink that appends to a list (the C pickler hands large ``bytes``
over by identity, and a large ``bytearray`` too, which is copied at once: it may change before it is sent).
"""

from __future__ import annotations

import copyreg
import logging
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from arena.errors import ForkedError
from arena.message import tensors
from arena.message.codec import Buffer, Kind
from arena.protocol.slots import Refusal, SlotWriter
from arena.ratelimit import RateLimit
from arena.shm.native import capsules, ffi

log = logging.getLogger("arena.message")

REUSE_BYTES = 64 << 10
"""A pickler is used again (making one costs as much as pickling 1 KB), unless a large pickle has blown up its memo."""

DIVERTED = "diverted"
LOANED = "loaned"
SMALL = "small"
UNSUPPORTED = "unsupported"


class Inline(NamedTuple):
    """A buffer that travels with the pickle: its address and length, and what owns the memory.

    Not the tensor: whoever assigns to its ``data``, in a later reduction or while another thread waits for room, would
    free the memory.  (Only to shrink the storage itself, by ``resize_``, takes it from under this, and any other user.)
    """

    address: Any
    nbytes: int
    keepalive: object


class Encoded:
    """A pickled message, before it is sent or aborted.

    Attributes:
        pickle_parts: pieces of the pickle, in order.
        pickle_bytes: their length together.
        buffers: the buffer table, in the order in which the pickle asks for buffers.
        inline: the buffers that travel with the pickle.
        kept: what owns the loans in it, which must not end before it is out.
        slots: the slots that it holds, one per grant, and the number of each.
        outcomes: what became of each buffer, and its length: they count once the message is out.
    """

    __slots__ = ("buffers", "inline", "kept", "outcomes", "pickle_bytes", "pickle_parts", "slots")

    def __init__(self) -> None:
        self.pickle_bytes = 0
        self.pickle_parts: list[bytes] = []
        self.buffers: list[Buffer] = []
        self.inline: list[Inline] = []
        self.kept: list[object] = []
        self.slots: dict[int, int] = {}
        self.outcomes: list[tuple[str, int]] = []


_NO_MESSAGE = Encoded()


@dataclass
class Counts:
    """What became of the buffers of all messages that are out: diverted ones, and by reason those that were not."""

    diverted: int = 0
    loaned: int = 0
    bytes_copied: int = 0
    fallback: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: str, nbytes: int) -> None:
        if outcome is DIVERTED:
            self.diverted += 1
            self.bytes_copied += nbytes
        elif outcome is LOANED:
            self.diverted += 1
            self.loaned += 1
        else:
            self.fallback[outcome] += 1


class _Sink:
    """A file for the pickler: a list of pieces that nothing changes any more."""

    __slots__ = ("_append",)

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append

    def write(self, piece: bytes | bytearray) -> None:
        self._append(piece if type(piece) is bytes else bytes(piece))


class Encoder:
    """Pickles messages, one at a time; the queue's lock guards it.

    Args:
        slots: the arena's slots; of an arena without capacity they are never claimed.
        divert_bytes: buffers of at least this size are diverted.
        copy_threads: threads of one copy.
    """

    def __init__(self, slots: SlotWriter, divert_bytes: int, copy_threads: int) -> None:
        self.counts = Counts()
        self._slots = slots
        self._divert_bytes = divert_bytes
        self._copy_threads = copy_threads
        self._reductions: dict[type, Callable[[Any], Any]] = {
            torch.Tensor: self._reduce_tensor, torch.nn.Parameter: self._reduce_parameter,
        }  # fmt: skip
        self._parts: list[bytes] = []
        self._pickler: pickle.Pickler | None = None
        self._message = _NO_MESSAGE
        self._spare: Encoded | None = None  # the last message, if it was a small pickle and nothing else: making one costs
        self._collected = False  # this message has looked for free slots
        self._marker = pickle.PickleBuffer(bytearray())  # stands in the pickle where a tensor's bytes were placed
        self._placed: Buffer | None = None  # by reduce_tensor, for the callback that follows at once
        self._warnings = RateLimit(10.0)

    def encode(self, obj: object) -> Encoded:
        """Pickles an object and places its buffers; on any error its slots are free again.

        Raises:
            ForkedError: this is a child, forked inside a reduction.
            whatever pickling raises.
        """
        message = self._message = self._spare or Encoded()
        self._spare = None
        self._collected = False
        pickler, self._pickler = self._pickler or self._new_pickler(), None  # after an error it is not used again
        pickler.dispatch_table = {**copyreg.dispatch_table, **self._reductions}
        try:
            pickler.dump(obj)
            self._check_process()
        except BaseException:
            self.abort(message)
            raise
        finally:
            self._message = _NO_MESSAGE  # which would keep the caller's buffers alive
        parts = message.pickle_parts = self._parts.copy()
        self._parts.clear()
        message.pickle_bytes = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if message.pickle_bytes < REUSE_BYTES:
            if not message.buffers:
                self._spare = message
            pickler.clear_memo()
            self._pickler = pickler
        return message

    def _new_pickler(self) -> pickle.Pickler:
        self._parts = []
        return pickle.Pickler(_Sink(self._parts.append), protocol=5, buffer_callback=self._buffer)

    def abort(self, message: Encoded) -> None:
        """Gives the slots of a message that will not go out back; in a forked child they are the parent's."""
        if self._slots.is_mapped:
            self._slots.abort(message.slots)
        message.slots = {}
        message.outcomes = []

    def count(self, message: Encoded) -> None:
        """The message is out: its buffers count."""
        for outcome in message.outcomes:
            self.counts.add(*outcome)
        message.outcomes = []

    def _check_process(self) -> None:
        """After code of the object's own, in which it may have forked: nothing here is the child's.

        Raises:
            ForkedError: this is the child.
        """
        if not self._slots.is_mapped:
            raise ForkedError

    # ---- reductions -------------------------------------------------------------------------------------------

    def _reduce_tensor(self, t: torch.Tensor) -> Any:
        return self._reduce(t, tensors.rebuild_tensor)

    def _reduce_parameter(self, t: torch.nn.Parameter) -> Any:
        return self._reduce(t, tensors.rebuild_parameter)

    def _reduce(self, t: torch.Tensor, rebuild: Callable[..., torch.Tensor]) -> Any:
        reason, strides = tensors.refusal(t), None
        if reason is None and (not t.is_contiguous() or 1 in t.shape):
            strides = tensors.unusual_strides(t)
        if reason is None:
            reason = tensors.refusal_of_place(t, strides)
        if reason is not None:
            self._message.outcomes.append((f"{UNSUPPORTED}:{reason}", 0))
            if t.layout is not torch.strided:  # torch keeps every sparse tensor that it rebuilds: not with a slot inside
                return pickle.loads, (pickle.dumps(t, protocol=5),)
            return t.__reduce_ex__(5)  # type: ignore[no-untyped-call]
        if strides is not None and not tensors.is_dense(t.shape, strides):
            strides = None
            with tensors.real_operations():
                self._placed = self._gather(t.detach())
        else:
            storage = t.untyped_storage()  # before the address is taken: it is that of this memory
            address = storage.data_ptr() + t.storage_offset() * t.itemsize
            self._placed = self._place(ffi.cast("char *", address), t.nbytes, Kind.INLINE_TENSOR, storage)
        return rebuild, (self._marker, tensors.DLPACK.get(t.dtype, t.dtype), tuple(t.shape), strides)

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """The pickler met a buffer: False takes it out of the pickle."""
        if buffer is self._marker and self._placed is not None:
            self._message.buffers.append(self._placed)
            self._placed = None
            return False
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous: the pickler says so itself
            return True
        address = ffi.from_buffer(view) if view.nbytes else ffi.NULL
        self._message.buffers.append(self._place(address, view.nbytes, Kind.INLINE_BYTES, (view, address)))
        return False

    # ---- where a buffer goes ----------------------------------------------------------------------------------

    def _place(self, address: Any, nbytes: int, inline: Kind, keepalive: object) -> Buffer:
        """Into a slot, or beside the pickle."""
        self._check_process()
        loan = self._slots.loan_at(int(ffi.cast("uintptr_t", address)), nbytes)
        if loan is not None:
            self._message.kept.append(keepalive)
            return self._in_loan(*loan, nbytes, inline)
        slot = self._claim(nbytes)
        if slot is not None:
            if not self._slots.copy(slot, address, self._copy_threads):
                return self._diverted(slot, nbytes, inline)
            self._give_up(slot)
        return self._beside(address, nbytes, inline, keepalive)

    def _gather(self, t: torch.Tensor) -> Buffer:
        """A tensor with gaps: the one copy that it needs anyway goes straight into the slot."""
        self._check_process()
        if t.dtype not in tensors.DLPACK:
            gathered = t.contiguous()
            return self._place(ffi.cast("char *", gathered.data_ptr()), t.nbytes, Kind.INLINE_TENSOR, gathered)
        slot = self._claim(t.nbytes)
        if slot is not None:
            if not self._slots.populate(slot):
                view_of(self._slots, slot, t.dtype, t.shape).copy_(t)
                return self._diverted(slot, t.nbytes, Kind.INLINE_TENSOR)
            self._give_up(slot)
        gathered = t.contiguous()
        return self._beside(ffi.cast("char *", gathered.data_ptr()), t.nbytes, Kind.INLINE_TENSOR, gathered)

    def _claim(self, nbytes: int) -> int | None:
        """A slot of this message, or None with the reason counted."""
        if nbytes < self._divert_bytes:
            self._message.outcomes.append((SMALL, nbytes))
            return None
        if not self._collected:  # every time, not only when full: low addresses are reused while they are warm
            self._slots.collect()
            self._collected = True
        slot = self._slots.claim(nbytes)
        if isinstance(slot, Refusal):
            self._refused(slot, nbytes)
            return None
        self._message.slots[slot] = len(self._message.slots)
        return slot

    def _diverted(self, slot: int, nbytes: int, inline: Kind) -> Buffer:
        self._message.outcomes.append((DIVERTED, nbytes))
        return Buffer(in_slot(inline), self._message.slots[slot], 0, nbytes)

    def _in_loan(self, slot: int, within: int, nbytes: int, inline: Kind) -> Buffer:
        number = self._message.slots.setdefault(slot, len(self._message.slots))
        self._message.outcomes.append((LOANED, nbytes))
        return Buffer(in_slot(inline), number, within, nbytes)

    def _beside(self, address: Any, nbytes: int, inline: Kind, keepalive: object) -> Buffer:
        self._message.inline.append(Inline(address, nbytes, keepalive))
        return Buffer(inline, 0, 0, nbytes)

    def _give_up(self, slot: int) -> None:
        """The memory behind a claimed slot is not there."""
        nbytes = self._slots.lengths[slot]
        del self._message.slots[slot]  # the last one
        self._slots.abort([slot])
        self._refused(Refusal.NO_MEMORY, nbytes)

    def _refused(self, reason: Refusal, nbytes: int) -> None:
        self._message.outcomes.append((reason.value, nbytes))
        if reason is not Refusal.NO_ARENA and self._warnings.allows(reason.value):
            log.warning(
                "a buffer of %d bytes does not go through the arena: %s (%d slots free, %d of %d bytes in use); it "
                "travels with the message instead",
                nbytes, reason.value, *self._slots.usage(), self._slots.capacity_bytes,
            )  # fmt: skip


def in_slot(inline: Kind) -> Kind:
    """The kind of a buffer that was diverted."""
    return Kind(inline + Kind.SLOT_TENSOR)


def view_of(slots: SlotWriter, slot: int, dtype: torch.dtype, shape: Any) -> torch.Tensor:
    """The writer's own tensor over a slot; when it is dropped, the writer's row of the slot is done."""
    lease = slots.own_lease(slot)
    try:
        make = partial(capsules.of_lease, lease, 0, slots.lengths[slot])
        return tensors.rebuild_tensor(make, tensors.DLPACK[dtype], tuple(shape), None)
    finally:
        lease.drop()
