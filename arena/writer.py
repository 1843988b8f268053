"""The writer's end of a queue."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType

import torch

from arena.config import ArenaConfig
from arena.endpoint import Deadline, LongWait
from arena.ends import OwnerEnd
from arena.errors import Cancelled, CapacityError
from arena.handle import Handle
from arena.message import codec, outofband, pickling, tensors
from arena.protocol.ring import Outcome, record_footprint
from arena.protocol.slots import Refusal
from arena.shm.layout import PAGE, align
from arena.shm.native import ffi
from arena.statistics import Statistics

log = logging.getLogger("arena.queue")

JOIN_BYTES = 32 << 10
"""A record below this is joined in Python and handed over as one piece: cheaper than a list of pieces."""


class WriterEnd(OwnerEnd):
    """Publishes messages to every member.  The methods are those of ``MessageQueue``, which documents them."""

    def __init__(
        self, ranks: Sequence[int], max_chunk_bytes: int, max_chunks: int, arena: ArenaConfig | None, spin_us: int
    ) -> None:
        # A record may take half of the ring, so that it fits wherever the next one starts; the largest without a payload
        # grants every slot.
        grants_bytes = codec.header_bytes(arena.slots if arena else 0, 0)
        largest = record_footprint(max(max_chunk_bytes, grants_bytes))
        ring_bytes = align(max(max_chunks * record_footprint(max_chunk_bytes), 2 * largest), PAGE)
        super().__init__(ranks, ring_bytes, arena)
        self._unsettled = False  # a message, or a loan, is begun; still so after a call: an exception cut it short
        self._wait: LongWait | None = None  # of the present call, once it waits
        self._number = 0  # of the last message that was begun
        self._messages_total = 0
        self._out_of_band_total = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # (ring position, bytes) of out-of-band messages
        with ExitStack() as undo:
            undo.callback(super().release)
            self._encoder = pickling.Encoder(self.slots, self.config.divert_bytes, self.config.copy_threads)
            self._record_bytes_max = max_chunk_bytes
            self._plain_bytes_max = min(JOIN_BYTES, max_chunk_bytes - codec.header_bytes(0, 0))
            self._out_of_band = outofband.OutOfBandWriter(named=self.config.backing == "shm", n_readers=len(ranks))
            undo.callback(self._out_of_band.close)
            self.handle = Handle(
                segment=self.segment.handle,
                endpoint=self._out_of_band.endpoint,
                local_reader_ranks=self.ranks,
                reader_access=self.config.reader_access,
                spin_us=spin_us,
                pin=self.config.pin,
            ).sealed()
            undo.pop_all()

    # ---- messages ---------------------------------------------------------------------------------------------

    def enqueue(self, obj: object, deadline: Deadline) -> None:
        if self._turn._is_owned() or not self._alive[0] or self.slots.is_in_hand():
            self.check_turn()
        try:  # in_turn, spelt out: a microsecond of fourteen
            self.take_turn(deadline)
            self._enqueue(obj, deadline)
        finally:
            try:  # noqa: SIM105 - Python code before the release is a place for a signal handler
                self._turn.release()
            except RuntimeError:  # it was not taken
                pass
            if self.closed:
                self._release_once()

    def _enqueue(self, obj: object, deadline: Deadline) -> None:
        self._wait = None
        if not self._was_ready:
            self._wait_until_ready(deadline)
        if self._unsettled:
            self._settle()
        if self.ring.begin():
            self.members.admit_joiners()
        if self.members.unreported:
            self.report_deaths()
        self._unsettled = True
        message = self._encoder.encode(obj)
        try:
            self._number += 1  # out or not: no two payloads share a number, or a reader takes one for the other
            if message.buffers or message.pickle_bytes > self._plain_bytes_max:
                self._send_with_buffers(message, deadline)
            else:
                self._send_plain(b"".join(message.pickle_parts), deadline)
        except BaseException:
            self._end_message(message)
            raise
        self._is_out(message)
        self._unsettled = False

    def _is_out(self, message: pickling.Encoded) -> None:
        self._messages_total += 1
        if message.outcomes:
            self._encoder.count(message)
        if message.slots:
            self.slots.enqueue(message.slots, self.ring.begun)

    def _settle(self) -> None:
        """Before slots are claimed: puts right what an exception cut short the last time."""
        self.slots.recover(self.ring.begun, self.ring.position)
        self._unsettled = False

    def _end_message(self, message: pickling.Encoded) -> None:
        """After an exception: not out and aborted, or out, if a signal handler's exception came right behind."""
        if self.ring.position == self.ring.begun:
            self._encoder.abort(message)
        else:
            self._is_out(message)

    def loan(self, shape: Sequence[int], dtype: torch.dtype, deadline: Deadline) -> torch.Tensor:
        if not isinstance(dtype, torch.dtype) or dtype not in tensors.DLPACK:
            raise ValueError(f"dtype={dtype!r}: a loan has one of {', '.join(map(str, tensors.DLPACK))}")
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        return self.in_turn(deadline, self._loan, shape, dtype, nbytes)

    def _loan(self, shape: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        if self._unsettled:
            self._settle()
        if self.ring.begin():
            self.members.admit_joiners()
        self._unsettled = True
        self.slots.collect()
        slot = self.slots.claim(nbytes)
        if isinstance(slot, Refusal):
            self._unsettled = False
            raise CapacityError(f"no loan of {nbytes} bytes: {self._why_no_loan(slot)}")
        error = self.slots.populate(slot)
        if error:
            self.slots.abort([slot])
            self._unsettled = False
            raise CapacityError(f"no memory for a loan of {nbytes} bytes: {os.strerror(error)}")
        views: list[torch.Tensor] = []
        try:
            views.append(pickling.view_of(self.slots, slot, dtype, shape))  # first: its drop is what ends a loan
            self.slots.loan(slot)
        except BaseException:
            views.clear()  # which a traceback would keep, to end a loan that by then is another's
            raise
        self._unsettled = False
        return views.pop()

    def _why_no_loan(self, refusal: Refusal) -> str:
        capacity_bytes = self.slots.capacity_bytes
        if refusal is Refusal.NO_ARENA:
            return "this queue has no arena; make it with one"
        if refusal is Refusal.OVERSIZE:
            return f"the whole arena has {capacity_bytes}; give ArenaConfig more capacity_bytes"
        free, used = self.slots.usage()
        return (
            f"{refusal.value} ({free} of {len(self.slots.states)} slots free, {used} of {capacity_bytes} bytes in use); "
            "drop tensors, or give ArenaConfig more slots or capacity_bytes"
        )

    def _send_plain(self, pickled: bytes, deadline: Deadline) -> None:
        while self.ring.send_plain(self._number, pickled) is Outcome.NO_ROOM:
            self._wait_room(codec.header_bytes(0, 0) + len(pickled), deadline)

    def _send_with_buffers(self, message: pickling.Encoded, deadline: Deadline) -> None:
        self.slots.publish(message.slots, self.ring.members)
        grants = [self.slots.grant(slot) for slot in message.slots]
        payload_bytes = message.pickle_bytes + sum([buffer.nbytes for buffer in message.inline])
        record_bytes = codec.header_bytes(len(grants), len(message.buffers)) + payload_bytes
        flags = codec.OUT_OF_BAND if record_bytes > self._record_bytes_max else 0
        header, table = codec.pack(flags, self._number, message.pickle_parts, grants, message.buffers, len(message.inline))
        if flags:
            self._send_out_of_band(header, table, message, payload_bytes, deadline)
        else:
            self._publish([header, table, *message.pickle_parts], message.inline, deadline)

    def _publish(self, parts: Sequence[bytes], inline: Sequence[pickling.Inline], deadline: Deadline) -> None:
        """One record into the ring, waiting for room as long as the deadline allows."""
        pointers = [ffi.from_buffer(part) for part in parts]
        sizes = [len(part) for part in parts]
        for buffer in inline:
            pointers.append(buffer.address)
            sizes.append(buffer.nbytes)
        while self.ring.send(pointers, sizes) is Outcome.NO_ROOM:
            self._wait_room(sum(sizes), deadline)

    def _send_out_of_band(
        self, header: bytes, table: bytes, message: pickling.Encoded, nbytes: int, deadline: Deadline
    ) -> None:
        """Room first, in the ring and in the budget; then nothing can fail that would leave half a message out."""
        while not self._budget_allows(nbytes):
            self._wait_budget(nbytes, deadline)
        while self.ring.reserve(len(header)) is Outcome.NO_ROOM:
            self._wait_room(len(header), deadline)
        readers = {
            outofband.identity(self.ranks[row], self.members.entry(row)): partial(self._is_gone, row, deadline)
            for row in self.members.rows()
        }
        self._out_of_band.reach(readers)
        frames = [table, b"".join(message.pickle_parts)]
        frames += [bytes(ffi.buffer(buffer.address, buffer.nbytes)) for buffer in message.inline]
        for reader, gone in readers.items():
            self._out_of_band.send(self._number, frames, reader, gone)
        self._publish([header], [], deadline)
        self._in_flight.append((self.ring.position, nbytes))
        self._out_of_band_total += 1

    def _is_gone(self, row: int, deadline: Deadline) -> bool:
        """Ends a wait for a member to connect."""
        if deadline.passed():
            rank, pid = self.ranks[row], self.members.entry(row).pid
            raise TimeoutError(f"rank {rank} (pid {pid}) has not connected within {deadline.timeout_s} s")
        if self.closed:
            raise Cancelled("shutdown() ended enqueue while it waited for a reader to connect")
        return self.members.is_gone(row)

    def _budget_allows(self, nbytes: int) -> bool:
        """A slow reader must not pile up memory: as many bytes out of band as the ring has, or one message."""
        unread = min((self.ring.consumed(row) for row in self.members.rows()), default=self.ring.position)
        while self._in_flight and self._in_flight[0][0] <= unread:
            self._in_flight.popleft()
        return not self._in_flight or nbytes + sum(n for _, n in self._in_flight) <= self.segment.layout.ring_bytes

    def _wait_budget(self, nbytes: int, deadline: Deadline) -> None:
        """Sleeps until a reader has read something, one slice at most."""
        self.ring.park()  # [park.consumed]
        if not self._budget_allows(nbytes) and not self.ring.closed:
            self.ring.sleep(deadline.slice_us())
        self.ring.unpark()
        self._after_slice(nbytes, deadline)

    def _wait_room(self, nbytes: int, deadline: Deadline) -> None:
        """Sleeps until the ring has room, one slice at most."""
        if self.ring.wait_room(nbytes, deadline.slice_us()) is not Outcome.OK:
            self._after_slice(nbytes, deadline)

    def _after_slice(self, nbytes: int, deadline: Deadline) -> None:
        """Between two slices of waiting: deaths and leaves are dealt with, joins wait for the end of the message."""
        if self.ring.closed:
            raise Cancelled("shutdown() ended enqueue while it waited for room")
        self.members.look_after()
        self.report_deaths()
        if deadline.passed():
            raise TimeoutError(
                f"no room for a message of {nbytes} bytes within {deadline.timeout_s} s: {self.members.who_is_behind()}"
            )
        self._wait = self._wait or LongWait()
        waited = self._wait.due_s()
        if waited is not None:
            behind = self.members.who_is_behind()
            log.warning("writer %d has waited %.0f s for room in the ring: %s", os.getpid(), waited, behind)

    # ---- the rest ---------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        with self.visit():
            counts = self._encoder.counts
            slots_free, bytes_in_use = self.slots.usage()
            return Statistics(
                slots_total=self.segment.layout.n_slots,
                slots_free=slots_free,
                bytes_capacity=self.slots.capacity_bytes,
                bytes_in_use=bytes_in_use,
                messages_total=self._messages_total,
                diverted_total=counts.diverted,
                loaned_total=counts.loaned,
                bytes_copied=counts.bytes_copied,
                fallback_total=MappingProxyType(dict(counts.fallback)),
                out_of_band_total=self._out_of_band_total,
                deaths_total=self.members.deaths_total,
                slots_quarantined=self.slots.quarantined,
                readers=self.members.statistics(),
            )

    def on_ready(self) -> None:
        super().on_ready()
        self._out_of_band.remove_name()

    def release(self) -> None:
        try:
            self._out_of_band.close()  # up to a second: a signal handler's exception here must not keep the rest
        finally:
            super().release()
