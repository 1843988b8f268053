"""Who reads: the writer's private mask of members, changed only between two messages, and what deaths leave behind."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from arena.errors import CapacityError
from arena.protocol.ring import RingWriter
from arena.protocol.slots import SlotWriter
from arena.ratelimit import RateLimit
from arena.shm.layout import MemberWord, State
from arena.shm.process import Peer
from arena.statistics import ReaderStatistics

log = logging.getLogger("arena.members")


class Members:
    """The writer's view of its readers.  Not thread-safe: the queue's lock guards it.

    A row is a reader's place in the segment's tables; ``ranks[row]`` is what its users call it.
    """

    def __init__(self, ring: RingWriter, slots: SlotWriter, ranks: Sequence[int]) -> None:
        self._ring = ring
        self._slots = slots
        self.ranks = tuple(ranks)
        self.deaths_total = 0
        self.unreported: list[str] = []  # deaths that no caller was told of
        self._entries: dict[int, MemberWord] = {}  # of the readers that are watched
        self._peers: dict[int, Peer] = {}
        self._unwatched: dict[int, str] = {}  # why the process of a row cannot be watched now
        self._counted: dict[int, tuple[int, int]] = {}  # each row's last death, by pid and start time
        self._warnings = RateLimit(10.0)

    def rows(self) -> list[int]:
        """The members."""
        return [row for row in range(len(self.ranks)) if self._ring.members >> row & 1]

    def missing(self) -> list[int]:
        """The ranks that are not members."""
        return [rank for row, rank in enumerate(self.ranks) if not self._ring.members >> row & 1]

    def unwatched(self) -> list[str]:
        """Which readers wait to join until there is a descriptor to watch them with, and why."""
        return list(self._unwatched.values())

    def entry(self, row: int) -> MemberWord:
        """A member's process."""
        return self._entries[row]

    # ---- between two messages ---------------------------------------------------------------------------------

    def admit_joiners(self) -> None:
        """Makes members of the readers that wait to join."""
        for row, entry in enumerate(self._ring.entries()):
            peer = self._watched(row, entry) if entry.state is State.JOINING else None
            if peer is not None and not peer.is_dead():
                self._ring.admit(row, entry)
        self.look_after()

    # ---- at any time ------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Deals with the readers that have left and with those that have died, members or not."""
        self._excuse_the_left()
        self._reap()
        self._report_impossible()

    def _watched(self, row: int, entry: MemberWord) -> Peer | None:
        """The process of an entry that is not EMPTY; only ``_clear`` lets another one have the row.

        None while no descriptor is left to watch it with: it is no member, nor is anything of it freed, until there is one.
        """
        if row not in self._peers:
            try:
                self._entries[row], self._peers[row] = entry, Peer.watch(entry.pid, entry.start)
            except CapacityError as error:
                self._unwatched[row] = f"rank {self.ranks[row]} waits: {error}"
                if self._warnings.allows(f"unwatched {row}"):
                    log.warning("%s", self._unwatched[row])
                return None
            self._unwatched.pop(row, None)
            self._watch_pidfds()
        return self._peers[row]

    def _excuse_the_left(self) -> None:
        """Readers that shut down no longer count for room or for messages; what they leased they still owe."""
        for row in range(len(self.ranks)):
            entry = self._ring.entry(row)  # without taking note of it: a joiner must still be seen as a change
            if entry.state is not State.LEFT:
                continue
            if self._ring.members >> row & 1:
                self._slots.excuse_unread(row, self._ring.consumed(row))
                self._ring.drop_reader(row)  # last: what a signal handler's exception cuts short is done again
            if not self._slots.owes(row):
                self._clear(row)

    def _reap(self) -> None:
        """Deals with the readers whose pidfd says that they are dead; one may have died before it was admitted."""
        for row in range(len(self.ranks)):
            entry = self._ring.entry(row)
            if entry.state is not State.EMPTY:
                self._watched(row, entry)
        for row, peer in list(self._peers.items()):
            if peer.is_dead():
                self._bury(row)
            elif peer.is_suspect() and self._warnings.allows(str(row)):
                log.warning(
                    "rank %d (pid %d) seems dead; without pidfd that is no proof, and nothing is reclaimed",
                    self.ranks[row], peer.pid,
                )  # fmt: skip

    def _bury(self, row: int) -> None:
        """A dead reader's room, queue and slots are the writer's again; its rank is free for another process."""
        peer = self._peers[row]
        if self._counted.get(row) != (peer.pid, peer.start):
            how = peer.how_it_ended()
            log.warning("rank %d (pid %d) has died: %s", self.ranks[row], peer.pid, how)
            self.unreported.append(f"rank {self.ranks[row]} (pid {peer.pid}): {how}")
            self._counted[row] = peer.pid, peer.start  # a burial that is cut short is begun again
            self.deaths_total += 1
        self._ring.drop_reader(row)
        self._clear(row)

    def _clear(self, row: int) -> None:
        """Cut short by a signal handler's exception, it is done again: the entry goes last, and the row is watched anew."""
        peer = self._peers.pop(row, None)  # None: it left before it was watched
        try:
            self._entries.pop(row, None)
            self._unwatched.pop(row, None)
            self._watch_pidfds()
        finally:
            if peer is not None:
                peer.close()
        self._slots.reclaim(row)
        self._slots.impossible_rows &= ~(1 << row)
        self._ring.impossible_rows &= ~(1 << row)
        self._ring.clear_entry(row)  # [member.reclaim]

    def _report_impossible(self) -> None:
        """Says which readers' words the protocol cannot have written.  What they owe stays owed, until they are dead."""
        rows = self._slots.impossible_rows | self._ring.impossible_rows
        for row, rank in enumerate(self.ranks):
            if rows >> row & 1 and self._warnings.allows(f"impossible {row}"):
                entry = self._entries.get(row)
                log.error(
                    "the words of rank %d (pid %s) in shared memory cannot be: end that process; nothing is freed by them",
                    rank, entry.pid if entry else "unknown",
                )  # fmt: skip

    def _watch_pidfds(self) -> None:
        self._ring.watch([peer.pidfd for peer in self._peers.values() if peer.pidfd >= 0])

    def is_gone(self, row: int) -> bool:
        """Whether a member has died or left; nothing is changed."""
        return self._peers[row].is_dead() or self._ring.entry(row).state is State.LEFT

    # ---- for people -------------------------------------------------------------------------------------------

    def who_is_behind(self) -> str:
        """Which members have not read everything, and by how much."""
        behind = [
            f"rank {self.ranks[row]} (pid {self._entries[row].pid}) by {self._ring.lag(row)} bytes"
            for row in self.rows()
            if self._ring.lag(row)
        ]
        return f"behind are {', '.join(behind)}" if behind else "no reader is behind"

    def statistics(self) -> tuple[ReaderStatistics, ...]:
        """One entry per rank."""
        return tuple(self._reader_statistics(row, rank) for row, rank in enumerate(self.ranks))

    def _reader_statistics(self, row: int, rank: int) -> ReaderStatistics:
        peer = self._peers.get(row)
        if peer is None:
            return ReaderStatistics(rank, 0, False, 0)
        return ReaderStatistics(rank, peer.pid, not peer.is_dead(), self._ring.lag(row))

    def close(self) -> None:
        """Stops watching."""
        for peer in self._peers.values():
            peer.close()
