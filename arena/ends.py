"""The two ends of a segment, whatever travels through it: its owner, who watches the readers, and one reader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

from arena.config import ArenaConfig
from arena.device.pinning import chunk_bytes_of
from arena.endpoint import NEVER, Deadline, Endpoint
from arena.errors import AttachError, Cancelled, InvalidHandle, ReaderDied
from arena.handle import Handle, local_rank
from arena.protocol.members import Members
from arena.protocol.ring import Outcome, RingReader, RingWriter
from arena.protocol.slots import SlotWriter
from arena.shm import process, segment
from arena.shm.layout import EMPTY_WORD, PAGE, SERIAL_LIMIT, Layout, MemberWord, State, align
from arena.shm.native import lib
from arena.shm.process import Peer
from arena.shm.shortage import typed

RANK_POLL_S = 0.02


@lru_cache(maxsize=1024)  # a process may come to any number of segments, and remembers the last ones
def _joins(segment_id: bytes, row: int) -> Iterator[int]:
    """Counts this process's joins at one place."""
    return count(1)


class OwnerEnd(Endpoint):
    """Creates a segment, admits its readers, and deals with their deaths."""

    @typed("a queue's or cache's memory")
    def __init__(self, ranks: Sequence[int], ring_bytes: int, arena: ArenaConfig | None) -> None:
        config = arena or ArenaConfig()
        capacity_bytes = align(arena.capacity_bytes if arena else 0, PAGE)
        of = Layout(len(ranks), arena.slots if arena else 0, ring_bytes, capacity_bytes)
        made = segment.create(of, backing=config.backing, prefault=config.prefault, huge_pages=config.huge_pages)
        try:
            self.ring = RingWriter(made)
            super().__init__(made, self.ring.shutdown)
            self.config = config
            self.ranks = tuple(ranks)
            self.slots = SlotWriter(made, chunk_bytes=chunk_bytes_of(config.pin), quarantine_s=config.quarantine_s)
            self.members = Members(self.ring, self.slots, ranks)
        except BaseException:
            segment.unlink(made.handle)
            made.close()
            raise
        self.raise_on_death = False
        self._was_ready = False

    def wait_until_ready(self, deadline: Deadline) -> None:
        """Until every reader has joined."""
        self.in_turn(deadline, self._wait_until_ready, deadline)

    def check_turn(self) -> None:
        super().check_turn()
        self.check_not_in_hand()

    def check_not_in_hand(self) -> None:
        """Refuses a call of a signal handler or a finalizer that has come in the middle of a change of the same thread."""
        if self.slots.is_in_hand():
            raise RuntimeError(
                "a queue or cache was used by a signal handler or a finalizer in the middle of another call of the same "
                "thread: leave it a note, and make the call when that one has returned"
            )

    def reap(self) -> int:
        """Looks for readers that have left or died, now; returns how many were dead."""
        return self.in_turn(NEVER, self._reap)

    def _reap(self) -> int:
        before = self.members.deaths_total
        self.members.look_after()
        return self.members.deaths_total - before

    def look_around(self) -> None:
        """Between two messages: joins, leaves and, now and then, deaths."""
        if self.ring.look_due():
            self.members.admit_joiners()

    def report_deaths(self) -> None:
        """Tells the caller of each death once, if it wants to be told.

        Raises:
            ReaderDied: names the ranks and how they ended.
        """
        deaths, self.members.unreported = self.members.unreported, []
        if deaths and self.raise_on_death:
            raise ReaderDied(
                f"readers have died: {'; '.join(deaths)}.  Nothing was sent by this call; the others go on.  Start them "
                "again on the same handle, or shut down"
            )

    def _wait_until_ready(self, deadline: Deadline) -> None:
        while True:
            self.members.admit_joiners()
            missing = self.members.missing()
            if not missing:
                break
            if self.raise_on_death:
                self.report_deaths()
            if deadline.passed():
                why = "".join(f"; {each}" for each in [*self.members.unreported, *self.members.unwatched()])
                raise TimeoutError(
                    f"readers {missing} of {len(self.ranks)} have not joined within {deadline.timeout_s} s{why}"
                )
            if self.ring.wait_members(deadline.slice_us()) is Outcome.CLOSED:
                raise Cancelled("shutdown() ended wait_until_ready")
        self._was_ready = True
        self.on_ready()

    def on_ready(self) -> None:
        """All have mapped the segment: its name is not needed any more."""
        segment.unlink(self.segment.handle)

    def release(self) -> None:
        try:
            self.ring.close()
            segment.unlink(self.segment.handle)
        finally:  # a signal handler's exception keeps nothing
            try:
                self.members.close()
            finally:
                super().release()


class MemberEnd(Endpoint):
    """Attaches to a segment as one of its readers."""

    @typed("a reader's end")
    def __init__(self, handle: Handle, rank: int) -> None:
        handle.check()
        self.handle = handle
        self.rank = local_rank(handle, rank)
        self.row = handle.local_reader_ranks.index(self.rank)
        self.writer = Peer.watch(0, 0)
        attached = segment.attach(handle.segment, handle.reader_access)
        n_ranks, n_rows = len(handle.local_reader_ranks), attached.layout.n_readers
        if n_ranks != n_rows:
            attached.close()
            raise InvalidHandle(f"{n_ranks} ranks for a segment of {n_rows} readers: altered; call export_handle() again")
        self._claimed = False
        try:
            # Pids mean nothing to a process of another PID namespace: then neither end can prove the other's death.
            same_pids = handle.segment.pid_namespace == process.pid_namespace()
            if same_pids:
                self.writer = Peer.watch(handle.segment.creator_pid, handle.segment.creator_start)
            pid, start = os.getpid() if same_pids else 0, process.own_start_time()
            serial = next(_joins(handle.segment.segment_id, self.row)) % SERIAL_LIMIT
            self.entry = MemberWord(State.JOINING, pid, start, serial)
            self.ring = RingReader(attached, self.row, self.entry)
            super().__init__(attached, self.ring.shutdown)
        except BaseException:
            self.writer.close()
            attached.close()
            raise

    def claim_entry(self) -> bool:
        """Takes the rank's entry; False while its last holder is dead and the writer has not looked yet.

        Raises:
            AttachError: a living process has the rank.
        """
        if self._claimed:
            return True
        mapping, row = self.segment.mapping, self.row
        try:
            self._claimed = bool(lib.arena_member_claim(mapping, row, EMPTY_WORD, self.entry.pack()))  # [member.claim]
        except BaseException:  # a signal handler's: the call has returned, and the entry may be this process's
            self._claimed = self._holds_entry()
            raise
        if self._claimed:
            lib.arena_wake_writer(mapping)
            return True
        holder = MemberWord.unpack(lib.arena_member_read(mapping, row))
        peer = Peer.watch(holder.pid, holder.start)
        taken = holder.state is not State.EMPTY and holder.state is not State.LEFT and not peer.is_dead()
        peer.close()
        if taken:
            raise AttachError(f"rank {self.rank} is taken by process {holder.pid}, and free again when that has ended")
        return False

    def _holds_entry(self) -> bool:
        holder = MemberWord.unpack(lib.arena_member_read(self.segment.mapping, self.row))
        return holder.with_state(State.JOINING) == self.entry

    def release(self) -> None:
        try:
            if self._claimed:
                self.ring.leave()
        finally:  # a signal handler's exception keeps nothing
            self.close_parts()

    def close_parts(self) -> None:
        """Gives back what this end holds of its own process."""
        try:
            self.writer.close()
        finally:
            self.segment.close()
