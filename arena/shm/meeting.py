"""The barrier at the end of a region's construction: every process passes it exactly once, however it fails."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from pathlib import Path

from arena.errors import ArenaError
from arena.shm import leftovers, outcome, rendezvous
from arena.shm.entry import Entry, meeting_place
from arena.shm.membership import Member, Place, Wanted, step

log = logging.getLogger("arena.shm")

Barrier = Callable[[], object]
"""Returns when every process of the instance has called it; what it returns is not looked at."""


class Meeting(Place):
    """What one process says to the others, and learns from them, when it meets them at the barrier.

    Call either `arrive` or `fail`, once.
    """

    def __init__(self, barrier: Barrier | None) -> None:
        super().__init__()
        self._barrier = barrier
        self.wanted: Wanted | None = None  # once it is known what to come for

    def join(self, wanted: Wanted) -> Member:
        """Comes in, as `rendezvous.join` says; a failure that this process left for others is past, as it tries again."""
        _forget(wanted.path)
        return rendezvous.join(wanted, self)

    def arrive(self, *, must_be_populated: bool) -> None:
        """Passes the barrier, and raises if another process failed or the creator did not populate the memory."""
        if self._barrier is None:
            return
        self._barrier()
        step("pass_barrier")
        if self.member is not None:
            outcome.find_populated(self.member, must_be_populated=must_be_populated)
            self.member.entry.let_go(meeting_place(self.member.wanted.nonce))

    def fail(self, error: BaseException) -> None:
        """Tells the others of this process's error and passes the barrier; nothing here hides that error."""
        if self._barrier is None:
            return
        try:
            self._tell(error)
        finally:
            self._pass_after(error)
        if self.member is not None:
            step("pass_barrier")
            step("find_unpopulated")

    def clear(self) -> None:
        """Takes the failure back, unless somebody is still to read it.  For a process that has left."""
        entry, self.entry = self.entry, None
        if self.wanted is None or entry is None:
            return
        if self.has_told and not self.wanted.meets:
            _forget(self.wanted.path)
            _left[self.wanted.path] = self.wanted, entry
            return
        entry.close()
        if self.wanted.meets:
            _remove_failure(self.wanted)

    def _pass_after(self, error: BaseException) -> None:
        try:
            if self._barrier is not None:
                self._barrier()
        except Exception:
            log.warning("the barrier failed too, after: %s", outcome.text_of(error), exc_info=True)

    def _tell(self, error: BaseException) -> None:
        try:
            if self.member is not None:
                outcome.population_fails(self.member, error)
            elif self.wanted is not None:
                rendezvous.report_failure(self.wanted, error, self)
        except (OSError, ArenaError) as second:
            log.warning("the other processes cannot be told of an error (%s): %s", outcome.text_of(error), second)


# Failures of this process that others are to read until it ends or tries again; the open entries hold them.
_left: dict[Path, tuple[Wanted, Entry]] = {}


def _forget(path: Path) -> Wanted | None:
    """Lets go of the failure that was left there; whose it was."""
    wanted, told = _left.pop(path, (None, None))
    if told is not None:
        told.close()
    return wanted


def _remove_all() -> None:
    for path in list(_left):
        if (wanted := _forget(path)) is not None:
            _remove_failure(wanted)


def _remove_failure(wanted: Wanted) -> None:
    try:
        leftovers.remove_failure(wanted)
    except (OSError, ArenaError) as error:
        log.warning("a failure stays in %s until the next start: %s", wanted.path, error)


atexit.register(_remove_all)
os.register_at_fork(after_in_child=_left.clear)  # a child's exit says nothing of its parent's failure
