"""A reader's end of a queue."""

from __future__ import annotations

import logging
import os
import time

from arena.endpoint import Deadline, Endpoint
from arena.errors import AttachError, Cancelled, WriterDied
from arena.handle import Handle
from arena.message.leases import Decoder
from arena.message.outofband import OutOfBandReader, identity
from arena.protocol.ring import Outcome, RingReader
from arena.protocol.slots import SlotReader
from arena.shm import process, segment
from arena.shm.layout import EMPTY_WORD, MemberWord, State
from arena.shm.native import lib
from arena.shm.process import Peer

log = logging.getLogger("arena.queue")

_RANK_POLL_S = 0.02


class ReaderEnd(Endpoint):
    """Takes messages.  The methods are those of ``MessageQueue``, which documents them."""

    def __init__(self, handle: Handle, rank: int) -> None:
        handle.check()
        if rank not in handle.local_reader_ranks:
            raise ValueError(f"rank={rank!r}: this queue's local readers are {list(handle.local_reader_ranks)}")
        self.rank = rank
        row = handle.local_reader_ranks.index(rank)
        attached = segment.attach(handle.segment, handle.reader_access)
        self._out_of_band: OutOfBandReader | None = None
        self._writer = Peer.watch(handle.segment.creator_pid, handle.segment.creator_start)
        try:
            self._entry = MemberWord(State.JOINING, os.getpid(), process.own_start_time())
            self._ring = RingReader(attached, row, self._entry)
            super().__init__(attached, self._ring.shutdown)
            self._out_of_band = OutOfBandReader(handle.endpoint, identity(rank, self._entry))
            self._claimed = self._claim_entry()
        except BaseException:
            self._close_parts()
            raise
        self._spin_us = handle.spin_us
        access = handle.reader_access
        slots = SlotReader(attached, row)
        self._decoder = Decoder(attached, slots, private=access == "private", readonly=access == "readonly")

    def _claim_entry(self) -> bool:
        """Takes the rank's entry; False while its last holder is dead and the writer has not looked yet.

        Raises:
            AttachError: a living process has the rank.
        """
        mapping, row = self.segment.mapping, self._ring.rank
        if lib.arena_member_claim(mapping, row, EMPTY_WORD, self._entry.pack()):  # [member.claim]
            lib.arena_wake_writer(mapping)
            return True
        holder = MemberWord.unpack(lib.arena_member_read(mapping, row))
        peer = Peer.watch(holder.pid, holder.start)
        taken = holder.state is not State.EMPTY and holder.state is not State.LEFT and not peer.is_dead()
        peer.close()
        if taken:
            raise AttachError(f"rank {self.rank} is taken by process {holder.pid}, and free again when that has ended")
        return False

    # ---- messages ---------------------------------------------------------------------------------------------

    def dequeue(self, deadline: Deadline, *, indefinite: bool) -> object:
        self.enter(deadline)
        try:
            if not self._ring.admitted:
                self._wait_admission(deadline)
            self._wait_record(deadline, indefinite=indefinite)
            try:
                return self._decoder.decode(*self._ring.record, self._receive)
            finally:
                self._ring.finish()
        finally:
            self.leave()

    def wait_until_ready(self, deadline: Deadline) -> None:
        self.enter(deadline)
        try:
            if not self._ring.admitted:
                self._wait_admission(deadline)
        finally:
            self.leave()

    def _wait_record(self, deadline: Deadline, *, indefinite: bool) -> None:
        while True:
            outcome = self._ring.wait(self._spin_us, deadline.slice_us())
            if outcome is Outcome.OK:
                return
            if outcome is Outcome.CLOSED or self.closed:
                raise Cancelled("shutdown() ended dequeue")
            ended = self._why_nothing_will_come()
            if ended is not None:
                if self._ring.last_look() is Outcome.OK:
                    return
                raise ended
            if deadline.passed():
                writer = self._writer.pid
                raise TimeoutError(f"rank {self.rank}: no message from writer {writer} within {deadline.timeout_s} s")
            waited = deadline.waited_long_s()
            if waited is not None:
                level = logging.DEBUG if indefinite else logging.WARNING
                log.log(
                    level, "reader rank %d (pid %d) has waited %.0f s for a message from writer %d, which is alive",
                    self.rank, os.getpid(), waited, self._writer.pid,
                )  # fmt: skip

    def _why_nothing_will_come(self) -> Exception | None:
        """First the writer's life, then one last look at the ring: the other order loses a published record."""
        if self._ring.writer_closed:
            return Cancelled(f"writer {self._writer.pid} shut the queue down")
        if self._writer.is_dead():
            return WriterDied(f"writer {self._writer.pid} has died and every message is read; live tensors stay valid")
        return None

    def _wait_admission(self, deadline: Deadline) -> None:
        while True:
            if not self._claimed:
                self._claimed = self._claim_entry()
            if self._claimed:
                outcome = self._ring.wait_admission(deadline.slice_us())
                if outcome is Outcome.OK:
                    return
            else:
                time.sleep(_RANK_POLL_S)
            if self.closed:
                raise Cancelled("shutdown() ended a wait for admission")
            ended = self._why_nothing_will_come()
            if ended is not None:
                raise ended
            if deadline.passed():
                raise TimeoutError(
                    f"rank {self.rank}: writer {self._writer.pid} has not admitted it within {deadline.timeout_s} s; it "
                    "does so in wait_until_ready and enqueue"
                )

    def _receive(self, number: int, n_frames: int) -> list[memoryview]:
        if self._out_of_band is None:
            raise Cancelled("the queue was shut down")
        return self._out_of_band.receive(number, n_frames, self._check_sender)

    def _check_sender(self) -> None:
        if self.closed:
            raise Cancelled("shutdown() ended dequeue")
        if self._writer.is_dead():
            raise WriterDied(f"writer {self._writer.pid} died while a message was under way out of band")

    # ---- the end ----------------------------------------------------------------------------------------------

    def release(self) -> None:
        if self._claimed:
            self._ring.leave()
        self._close_parts()

    def _close_parts(self) -> None:
        if self._out_of_band is not None:
            self._out_of_band.close()
        self._writer.close()
        self.segment.close()
