"""The writer's end of a queue."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import MappingProxyType

import torch

from arena.config import ArenaConfig
from arena.endpoint import Deadline, Endpoint
from arena.errors import Cancelled, CapacityError
from arena.handle import Handle
from arena.message import codec, outofband, pickling, tensors
from arena.protocol.members import Members
from arena.protocol.ring import Outcome, RingWriter, record_footprint
from arena.protocol.slots import Refusal, SlotWriter
from arena.shm import segment
from arena.shm.layout import PAGE, Layout, align
from arena.shm.native import ffi
from arena.statistics import Statistics

log = logging.getLogger("arena.queue")

REAP_PERIOD_S = 0.05
"""How often a busy writer looks at its readers' pidfds (a microsecond); a blocked one does so at every slice."""

JOIN_BYTES = 32 << 10
"""A record below this is joined in Python and handed over as one piece: cheaper than a list of pieces."""


class WriterEnd(Endpoint):
    """Publishes messages to every member.  The methods are those of ``MessageQueue``, which documents them."""

    def __init__(
        self, ranks: Sequence[int], max_chunk_bytes: int, max_chunks: int, arena: ArenaConfig | None, spin_us: int
    ) -> None:
        # A record may take half of the ring, so that it fits wherever the next one starts.
        ring_bytes = align(max(max_chunks, 2) * record_footprint(max_chunk_bytes), PAGE)
        of = Layout(len(ranks), arena.slots if arena else 0, ring_bytes, align(arena.capacity_bytes if arena else 0, PAGE))
        config = arena or ArenaConfig()
        made = segment.create(of, backing=config.backing, prefault=config.prefault, huge_pages=config.huge_pages)
        try:
            self._out_of_band = outofband.OutOfBandWriter(named=config.backing == "shm")
        except BaseException:
            segment.unlink(made.handle)
            made.close()
            raise
        self._ring = RingWriter(made)
        super().__init__(made, self._ring.shutdown)
        self.ranks = tuple(ranks)
        self.slots = SlotWriter(made)
        self._encoder = pickling.Encoder(self.slots, config.divert_bytes, config.copy_threads)
        self._record_bytes_max = max_chunk_bytes
        self._plain_bytes_max = min(JOIN_BYTES, max_chunk_bytes - codec.header_bytes(0, 0))
        self._members = Members(self._ring, self.slots, ranks)
        self._was_ready = False
        self._next_reap = 0.0
        self._number = 0
        self._out_of_band_total = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # (ring position, bytes) of out-of-band messages
        self.handle = Handle(
            segment=made.handle,
            endpoint=self._out_of_band.endpoint,
            local_reader_ranks=self.ranks,
            reader_access=config.reader_access,
            spin_us=spin_us,
        ).sealed()

    # ---- messages ---------------------------------------------------------------------------------------------

    def enqueue(self, obj: object, deadline: Deadline) -> None:
        self.enter(deadline)
        try:
            self._look_around(deadline)
            message = self._encoder.encode(obj)
            before = self._ring.position
            try:
                self._send(message, deadline)
            finally:
                if self._ring.position == before:
                    self._encoder.abort(message)
                else:  # out, even if a signal's exception came right behind
                    self.slots.enqueue(message.slots, before)
        finally:
            self.leave()

    def loan(self, shape: Sequence[int], dtype: torch.dtype, deadline: Deadline) -> torch.Tensor:
        if dtype not in tensors.DLPACK:
            raise ValueError(f"dtype={dtype!r}: a loan has one of {', '.join(map(str, tensors.DLPACK))}")
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        if nbytes <= 0:
            raise ValueError(f"shape={tuple(shape)}: a loan has at least one element")
        self.enter(deadline)
        try:
            self.slots.collect()
            slot = self.slots.claim(nbytes)
            if isinstance(slot, Refusal):
                free, used = self.slots.usage()
                raise CapacityError(
                    f"no loan of {nbytes} bytes: {slot.value} ({free} slots free, {used} of {self.slots.capacity_bytes} "
                    "bytes in use); drop tensors, or give ArenaConfig more slots or capacity_bytes"
                )
            error = self.slots.populate(slot)
            if error:
                self.slots.abort([slot])
                raise CapacityError(f"no memory for a loan of {nbytes} bytes: {os.strerror(error)}")
            self.slots.loan(slot)
            return pickling.view_of(self.slots, slot, dtype, shape)
        finally:
            self.leave()

    def _send(self, message: pickling.Encoded, deadline: Deadline) -> None:
        pickle_bytes = sum(map(len, message.pickle_parts))
        if not message.buffers and pickle_bytes <= self._plain_bytes_max:
            record = codec.pack_plain(self._number, pickle_bytes, message.pickle_parts)
            while self._ring.send_bytes(record) is Outcome.NO_ROOM:
                self._wait_room(len(record), deadline)
        else:
            self._send_with_buffers(message, pickle_bytes, deadline)
        self._number += 1

    def _send_with_buffers(self, message: pickling.Encoded, pickle_bytes: int, deadline: Deadline) -> None:
        self.slots.publish(message.slots, self._ring.members)
        grants = [self.slots.grant(slot) for slot in message.slots]
        payload_bytes = pickle_bytes + sum([buffer.nbytes for buffer in message.inline])
        record_bytes = codec.header_bytes(len(grants), len(message.buffers)) + payload_bytes
        flags = codec.OUT_OF_BAND if record_bytes > self._record_bytes_max else 0
        header = codec.pack(flags, self._number, pickle_bytes, grants, message.buffers)
        if flags:
            self._send_out_of_band(header, message, payload_bytes, deadline)
        else:
            self._publish([header, *message.pickle_parts], message.inline, deadline)

    def _publish(self, parts: Sequence[bytes], inline: Sequence[pickling.Inline], deadline: Deadline) -> None:
        """One record into the ring, waiting for room as long as the deadline allows."""
        pointers = [ffi.from_buffer(part) for part in parts]
        sizes = [len(part) for part in parts]
        for buffer in inline:
            pointers.append(buffer.address)
            sizes.append(buffer.nbytes)
        while self._ring.send(pointers, sizes) is Outcome.NO_ROOM:
            self._wait_room(sum(sizes), deadline)

    def _send_out_of_band(self, header: bytes, message: pickling.Encoded, nbytes: int, deadline: Deadline) -> None:
        """Room first, in the ring and in the budget; then nothing can fail that would leave half a message out."""
        while not self._budget_allows(nbytes):
            self._wait_budget(nbytes, deadline)
        while self._ring.reserve(len(header)) is Outcome.NO_ROOM:
            self._wait_room(len(header), deadline)
        frames = [b"".join(message.pickle_parts)]
        frames += [bytes(ffi.buffer(buffer.address, buffer.nbytes)) for buffer in message.inline]
        for row in self._members.rows():
            address = outofband.identity(self.ranks[row], self._members.entry(row))
            self._out_of_band.send(self._number, frames, address, partial(self._is_gone, row))
        self._publish([header], [], deadline)
        self._in_flight.append((self._ring.position, nbytes))
        self._out_of_band_total += 1

    def _is_gone(self, row: int) -> bool:
        """Ends a wait for a member to connect."""
        if self.closed:
            raise Cancelled("shutdown() ended enqueue while it waited for a reader to connect")
        return self._members.is_gone(row)

    def _budget_allows(self, nbytes: int) -> bool:
        """A slow reader must not pile up memory: as many bytes out of band as the ring has, or one message."""
        unread = min((self._ring.consumed(row) for row in self._members.rows()), default=self._ring.position)
        while self._in_flight and self._in_flight[0][0] <= unread:
            self._in_flight.popleft()
        return not self._in_flight or nbytes + sum(n for _, n in self._in_flight) <= self.segment.layout.ring_bytes

    def _wait_budget(self, nbytes: int, deadline: Deadline) -> None:
        """Sleeps until a reader has read something, one slice at most."""
        self._ring.park()  # [park.consumed]
        if not self._budget_allows(nbytes) and not self._ring.closed:
            self._ring.sleep(deadline.slice_us())
        self._ring.unpark()
        self._after_slice(nbytes, deadline)

    def _wait_room(self, nbytes: int, deadline: Deadline) -> None:
        """Sleeps until the ring has room, one slice at most."""
        if self._ring.wait_room(nbytes, deadline.slice_us()) is not Outcome.OK:
            self._after_slice(nbytes, deadline)

    def _after_slice(self, nbytes: int, deadline: Deadline) -> None:
        """Between two slices of waiting: deaths and leaves are dealt with, joins wait for the end of the message."""
        if self._ring.closed:
            raise Cancelled("shutdown() ended enqueue while it waited for room")
        self._members.excuse_the_left()
        self._members.reap()
        if deadline.passed():
            raise TimeoutError(
                f"no room for a message of {nbytes} bytes within {deadline.timeout_s} s: {self._members.who_is_behind()}"
            )
        waited = deadline.waited_long_s()
        if waited is not None:
            behind = self._members.who_is_behind()
            log.warning("writer %d has waited %.0f s for room in the ring: %s", os.getpid(), waited, behind)

    # ---- members ----------------------------------------------------------------------------------------------

    def wait_until_ready(self, deadline: Deadline) -> None:
        self.enter(deadline)
        try:
            self._wait_until_ready(deadline)
        finally:
            self.leave()

    def reap(self) -> int:
        self.enter(Deadline(None))
        try:
            before = self._members.deaths_total
            self._members.reap()
            return self._members.deaths_total - before
        finally:
            self.leave()

    def _look_around(self, deadline: Deadline) -> None:
        """Between two messages: joins, leaves and, now and then, deaths."""
        if not self._was_ready:
            self._wait_until_ready(deadline)
        elif self._ring.members_changed():
            self._members.admit_joiners()
        now = time.monotonic()
        if now >= self._next_reap:
            self._next_reap = now + REAP_PERIOD_S
            self._members.reap()

    def _wait_until_ready(self, deadline: Deadline) -> None:
        while True:
            self._members.admit_joiners()
            missing = self._members.missing()
            if not missing:
                break
            if deadline.passed():
                raise TimeoutError(
                    f"readers {missing} of {len(self.ranks)} have not joined within {deadline.timeout_s} s"
                )
            if self._ring.wait_members(deadline.slice_us()) is Outcome.CLOSED:
                raise Cancelled("shutdown() ended wait_until_ready")
            self._members.reap()
        self._was_ready = True
        segment.unlink(self.segment.handle)
        self._out_of_band.remove_name()

    # ---- the rest ---------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        with self.glance():
            counts = self._encoder.counts
            slots_free, bytes_in_use = self.slots.usage()
            return Statistics(
                slots_total=self.segment.layout.n_slots,
                slots_free=slots_free,
                bytes_capacity=self.slots.capacity_bytes,
                bytes_in_use=bytes_in_use,
                messages_total=self._number,
                diverted_total=counts.diverted,
                loaned_total=counts.loaned,
                bytes_copied=counts.bytes_copied,
                fallback_total=MappingProxyType(dict(counts.fallback)),
                out_of_band_total=self._out_of_band_total,
                deaths_total=self._members.deaths_total,
                readers=self._members.statistics(),
            )

    def release(self) -> None:
        self._ring.close()
        segment.unlink(self.segment.handle)
        self._out_of_band.close()
        self._members.close()
        super().release()
