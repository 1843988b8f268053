"""A reader's end of a queue."""

from __future__ import annotations

import logging
import os
import time
from functools import partial

import torch

from arena.config import ReaderAccess
from arena.device.choice import choose
from arena.device.interface import Device, Stream
from arena.endpoint import Deadline, LongWait
from arena.ends import RANK_POLL_S, MemberEnd
from arena.errors import Cancelled, CorruptError, InvalidHandle, MessageLost, WriterDied
from arena.handle import Handle
from arena.message import copies
from arena.message.gates import GATE_SLICE_US, Gates
from arena.message.leases import Decoder, PayloadLate
from arena.message.outofband import OutOfBandReader, identity
from arena.message.unpickling import loads
from arena.protocol.ring import Outcome
from arena.protocol.slots import SlotReader
from arena.statistics import LeaseStatistics

log = logging.getLogger("arena.queue")

LOOKS_AFTER_END = 40
"""How often a reader looks for a payload whose writer has ended: that sends nothing any more, but this process's own thread
may not have taken in yet what it sent.  Looks, of 20 ms each, and not seconds: a process that is stopped misses none."""


class ReaderEnd(MemberEnd):
    """Takes messages.  The methods are those of ``MessageQueue``, which documents them."""

    def __init__(self, handle: Handle, rank: int, device: Device | None = None) -> None:
        if not handle.endpoint:
            raise InvalidHandle("this is a cache's handle: ObjectCache.attach(handle, rank)")
        self._out_of_band: OutOfBandReader | None = None
        self.gates: Gates | None = None
        super().__init__(handle, rank)
        try:
            self._out_of_band = OutOfBandReader(handle.endpoint, identity(rank, self.entry))
            self._open_gates(handle, device)
            self.claim_entry()
            self._decoder = self._new_decoder(handle.reader_access)
        except BaseException:
            self.release()
            raise
        self._spin_us = handle.spin_us
        self._looks_after_end = 0  # that found no payload

    def _new_decoder(self, access: ReaderAccess) -> Decoder:
        slots = SlotReader(self.segment, self.row)
        private, readonly = access == "private", access == "readonly"
        return Decoder(slots, private=private, readonly=readonly, gates=self.gates)

    def _open_gates(self, handle: Handle, device: Device | None) -> None:
        access = handle.reader_access
        chosen, self._unpinned = choose(handle.pin, access, self.segment.layout.data_bytes, device)
        if chosen is not None:
            self.gates = Gates(self.segment, self.row, chosen, pin=handle.pin, readonly=access == "readonly")
        self._device = chosen or device

    # ---- messages ---------------------------------------------------------------------------------------------

    def dequeue(self, deadline: Deadline, indefinite: bool) -> object:
        if self._turn._is_owned() or not self._alive[0]:
            self.check_turn()
        try:  # in_turn, spelt out: a microsecond of eight beside unpickling
            self.take_turn(deadline)
            return self._dequeue(deadline, indefinite)
        finally:
            try:  # noqa: SIM105 - Python code before the release is a place for a signal handler
                self._turn.release()
            except RuntimeError:  # it was not taken
                pass
            if self.closed:
                self._release_once()

    def _dequeue(self, deadline: Deadline, indefinite: bool) -> object:
        if self.gates is not None:
            self.gates.poll()
        ring = self.ring
        if not ring.admitted:
            self._wait_admission(deadline)
        if ring.look():
            self._wait_record(deadline, indefinite)
        plain = ring.plain
        if plain is None:
            return self._take_record(deadline)
        try:
            return loads(plain)
        finally:
            ring.finish()

    def _take_record(self, deadline: Deadline) -> object:
        decoder = self._decoder
        decoder.is_spent = False
        try:
            return decoder.decode(*self.ring.record, partial(self._receive, deadline))
        except CorruptError:
            decoder.is_spent = True
            raise
        finally:
            if decoder.is_spent:  # else the next dequeue finds the same record again
                self.ring.finish()

    def wait_until_ready(self, deadline: Deadline) -> None:
        self.in_turn(deadline, self._wait_until_admitted, deadline)

    def _wait_record(self, deadline: Deadline, indefinite: bool) -> None:
        wait: LongWait | None = None
        spin_us = self._spin_us  # what is left of it: once per wait, and not in each slice
        while True:
            slice_us = self._slice_us(deadline)
            now_us = min(spin_us, slice_us)
            outcome = self.ring.wait(now_us, 0 if now_us else slice_us)
            spin_us -= now_us
            if outcome is Outcome.OK:
                return
            if self.gates is not None:
                self.gates.poll()
            if outcome is Outcome.CLOSED or self.closed:
                raise Cancelled("shutdown() ended dequeue")
            ended = self._why_nothing_will_come()
            if ended is not None:
                if self.ring.last_look() is Outcome.OK:
                    return
                raise ended
            if deadline.passed():
                writer = self.writer.pid
                raise TimeoutError(f"rank {self.rank}: no message from writer {writer} within {deadline.timeout_s} s")
            wait = wait or LongWait()
            waited = wait.due_s()
            if waited is not None:
                level = logging.DEBUG if indefinite else logging.WARNING
                log.log(
                    level, "reader rank %d (pid %d) has waited %.0f s for a message from writer %d, which is alive",
                    self.rank, os.getpid(), waited, self.writer.pid,
                )  # fmt: skip

    def _slice_us(self, deadline: Deadline) -> int:
        """How long to sleep at most: slots go back while this reader waits, too."""
        slice_us = deadline.slice_us()
        return min(slice_us, GATE_SLICE_US) if self.gates is not None and self.gates.open_total else slice_us

    def _why_nothing_will_come(self) -> Exception | None:
        """First the writer's life, then one last look at the ring: the other order loses a published record."""
        if self.ring.writer_closed:
            return Cancelled(f"writer {self.writer.pid} shut the queue down")
        if self.writer.has_gone():
            return WriterDied(f"writer {self.writer.pid} has died and every message is read; live tensors stay valid")
        return None

    def _wait_until_admitted(self, deadline: Deadline) -> None:
        if not self.ring.admitted:
            self._wait_admission(deadline)

    def _wait_admission(self, deadline: Deadline) -> None:
        while True:
            if self.claim_entry():
                outcome = self.ring.wait_admission(deadline.slice_us())
                if outcome is Outcome.OK:
                    break
            else:
                time.sleep(RANK_POLL_S)
            if self.closed:
                raise Cancelled("shutdown() ended a wait for admission")
            ended = self._why_nothing_will_come()
            if ended is not None:
                if self.ring.wait_admission(0) is Outcome.OK:  # the last look
                    break
                raise ended
            if deadline.passed():
                raise TimeoutError(
                    f"rank {self.rank}: writer {self.writer.pid} has not admitted it within {deadline.timeout_s} s; it "
                    "does so in wait_until_ready and enqueue"
                )

        if self.gates is not None:
            self.gates.start()

    def _receive(self, deadline: Deadline, number: int, n_frames: int) -> list[memoryview]:
        if self._out_of_band is None:
            raise Cancelled("the queue was shut down")
        frames = self._out_of_band.receive(number, n_frames, partial(self._check_sender, deadline, number))
        self._looks_after_end = 0
        return frames

    def _check_sender(self, deadline: Deadline, number: int) -> None:
        if self.closed:
            raise Cancelled("shutdown() ended dequeue")
        if self.ring.writer_closed or self.writer.has_gone():
            self._looks_after_end += 1
            if self._looks_after_end > LOOKS_AFTER_END:
                raise self._lost(number)
        if deadline.passed():
            raise PayloadLate(
                f"rank {self.rank}: message {number} comes out of band and was not there within {deadline.timeout_s} s; "
                "dequeue again"
            )

    def _lost(self, number: int) -> Exception:
        if self.ring.writer_closed:
            return MessageLost(f"message {number} was under way out of band when writer {self.writer.pid} shut down")
        return WriterDied(f"writer {self.writer.pid} died while message {number} was under way out of band")

    # ---- devices ----------------------------------------------------------------------------------------------

    def to_device(
        self, tensor: torch.Tensor, where: torch.device | str | int, stream: Stream | None, *, non_blocking: bool
    ) -> torch.Tensor:
        with self.visit():
            if self.gates is not None:
                return self.gates.copy(tensor, where, stream, non_blocking=non_blocking)
            return copies.copy(self._any_device(), tensor, where, stream, non_blocking=non_blocking)

    def record_use(self, tensor: torch.Tensor, stream: Stream) -> None:
        with self.visit():
            if self.gates is not None:
                self.gates.record_use(tensor, stream)

    def flush_releases(self) -> int:
        with self.visit():
            return 0 if self.gates is None else self.gates.flush()

    def statistics(self) -> LeaseStatistics:
        with self.visit():
            g = self.gates
            return LeaseStatistics(
                rank=self.rank,
                leases_open=self.segment.mapping.grants,
                gates_open=g.open_total if g else 0,
                quarantined=g.quarantined if g else 0,
                pinned_bytes=g.pinning.pinned_bytes if g else 0,
                reason_unpinned=g.pinning.reason_unpinned if g else self._unpinned,
            )

    def _any_device(self) -> Device:
        """For copies from memory that is not pinned: nothing has to be waited for."""
        if self._device is None:
            from arena.device.cuda import CudaDevice

            self._device = CudaDevice()
        return self._device

    # ---- the end ----------------------------------------------------------------------------------------------

    def close_parts(self) -> None:
        try:
            if self.gates is not None:
                self.gates.close()
        finally:
            try:
                if self._out_of_band is not None:
                    self._out_of_band.close()
            finally:
                super().close_parts()
