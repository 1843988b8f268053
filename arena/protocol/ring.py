"""The ring of records and its parking, as thin names over the native calls.

Method names are the actions of ``spec/models/ring.py``.  ``send``, ``wait_room``, ``wait`` and ``finish`` are several of
them in one native call, made of the same C functions: what production uses, and what the tests step through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from arena.errors import CorruptError
from arena.shm import trace
from arena.shm.layout import EMPTY_WORD, MemberWord, State
from arena.shm.native import ffi, lib
from arena.shm.segment import Segment

SLICE_US = 500_000
"""No wait is longer: a waker that is killed between taking the park word and waking swallows the wake."""


class Outcome(IntEnum):
    """What a native ring call came to."""

    OK = lib.ARENA_OK
    NO_ROOM = lib.ARENA_NO_ROOM
    EMPTY = lib.ARENA_EMPTY
    CLOSED = lib.ARENA_CLOSED
    CORRUPT = lib.ARENA_CORRUPT


_OUTCOMES = {int(outcome): outcome for outcome in Outcome}  # ten times faster than Outcome(code)


def record_footprint(nbytes: int) -> int:
    """What a record of ``nbytes`` takes in the ring: a length, the bytes, rounded up to 8."""
    return (8 + nbytes + 7) // 8 * 8


class RingWriter:
    """The writer's end.  One thread at a time, except ``shutdown``."""

    begin: Callable[[], int]
    """Takes note of where a message starts; then as ``look_due``."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._words: Any = ffi.new("uint64_t[]", segment.layout.n_readers)  # the member table as last seen
        self._ring: Any = ffi.new("arena_ring_writer *", {"m": segment.mapping, "words": self._words})
        self.begin = partial(lib.arena_ring_begin, self._ring)
        trace.observe(self, segment)

    # ---- records ----------------------------------------------------------------------------------------------

    @property
    def begun(self) -> int:
        """Where the present message starts."""
        return int(self._ring.begun)

    def reserve(self, nbytes: int) -> Outcome:
        """Room for one record of ``nbytes``, or NO_ROOM."""
        return _OUTCOMES[min(0, lib.arena_ring_reserve(self._ring, nbytes))]

    def write(self, parts: Sequence[Any], sizes: Sequence[int]) -> None:
        """Gathers the parts of a record into the reserved room."""
        lib.arena_ring_write(self._ring, sum(sizes), parts, sizes, len(parts))

    def publish(self, nbytes: int) -> None:
        """Makes the written record visible."""
        lib.arena_ring_publish(self._ring, nbytes)  # [ring.publish]

    def wake_readers(self) -> None:
        """Wakes the members that are parked."""
        lib.arena_ring_wake_readers(self._ring)  # [park.published]

    def send(self, parts: Sequence[Any], sizes: Sequence[int]) -> Outcome:
        """reserve, write, publish and wake_readers: OK, or NO_ROOM with nothing changed."""
        return _OUTCOMES[lib.arena_ring_send(self._ring, sum(sizes), parts, sizes, len(parts))]

    def send_plain(self, number: int, pickle: bytes) -> Outcome:
        """``send`` of a record that is a pickle and nothing else, which it gives its head and checksums."""
        code = lib.arena_send_plain(self._ring, number, pickle, len(pickle))
        return Outcome.OK if code == 0 else _OUTCOMES[code]

    # ---- waiting for room -------------------------------------------------------------------------------------

    def park(self) -> None:
        """Says that the writer will sleep."""
        lib.arena_ring_writer_park(self._ring)  # [park.consumed]

    def recheck(self, nbytes: int) -> Outcome:
        """The last look after ``park``: OK, NO_ROOM, CLOSED, or EMPTY: no room, but a member has left meanwhile."""
        return _OUTCOMES[lib.arena_ring_writer_recheck(self._ring, nbytes)]

    def sleep(self, slice_us: int = SLICE_US) -> None:
        """Sleeps while parked, one slice at most."""
        lib.arena_ring_writer_sleep(self._ring, slice_us)

    def unpark(self) -> None:
        """Says that the writer is awake."""
        lib.arena_ring_writer_unpark(self._ring)

    def wait_room(self, nbytes: int, slice_us: int) -> Outcome:
        """park, recheck, sleep and unpark: what the recheck came to."""
        return _OUTCOMES[lib.arena_ring_wait_room(self._ring, nbytes, slice_us)]

    # ---- members ----------------------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """The mask of ranks whose cursors count and that get the next message."""
        return int(self._ring.members)

    @property
    def impossible_rows(self) -> int:
        """The mask of members whose cursors cannot be: for room they count as if they had read nothing more."""
        return int(self._ring.impossible)

    @impossible_rows.setter
    def impossible_rows(self, rows: int) -> None:
        self._ring.impossible = rows

    @property
    def position(self) -> int:
        """The byte that the next record starts at."""
        return self._ring.position  # type: ignore[no-any-return]

    def watch(self, pidfds: Sequence[int]) -> None:
        """What a sleeping writer looks at: it wakes when one of these processes has ended."""
        array, count = ffi.new("int[]", list(pidfds)), len(pidfds)
        self._ring.n_pidfds = 0  # cut short, fewer are watched and none is freed that C looks at
        self._ring.pidfds = array
        self._pidfds = array
        self._ring.n_pidfds = count

    def look_due(self) -> bool:
        """Whether any entry differs from what ``entries`` last returned, or it is time to look at the readers' lives."""
        return bool(lib.arena_ring_look_due(self._ring))

    def wait_members(self, slice_us: int) -> Outcome:
        """Parks until an entry changes, one slice at most."""
        return Outcome(lib.arena_ring_wait_members(self._ring, slice_us))

    def entries(self) -> list[MemberWord]:
        """The member table now."""
        for rank in range(len(self._words)):
            self._words[rank] = lib.arena_member_read(self._segment.mapping, rank)
        return [MemberWord.unpack(word) for word in self._words]

    def entry(self, rank: int) -> MemberWord:
        """One entry of the member table now, without taking note of it."""
        return MemberWord.unpack(lib.arena_member_read(self._segment.mapping, rank))

    def admit(self, rank: int, entry: MemberWord) -> bool:
        """A joiner becomes a member, between two messages: it starts with the next one.  False if it has left meanwhile."""
        word = entry.with_state(State.JOINED).pack()
        admitted = bool(lib.arena_ring_admit(self._ring, rank, entry.pack(), word))  # [member.admit]
        if admitted:
            self._words[rank] = word
        return admitted

    def drop_reader(self, rank: int) -> None:
        """A reader that is dead or has left no longer counts for room, nor gets messages."""
        self._ring.members &= ~(1 << rank)

    def clear_entry(self, rank: int) -> None:
        """A dead reader's rank is free for another process; after its rows were zeroed."""
        lib.arena_member_write(self._segment.mapping, rank, EMPTY_WORD)  # [member.reclaim]
        self._words[rank] = EMPTY_WORD

    def consumed(self, rank: int) -> int:
        """How far a reader has read."""
        return int(lib.arena_ring_consumed(self._segment.mapping, rank))  # [ring.consume]

    def lag(self, rank: int) -> int:
        """Bytes that are published and that a member has not read."""
        return self.position - self.consumed(rank) if self.members >> rank & 1 else 0

    # ---- the end ----------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends a blocked call of this writer, from any thread."""
        lib.arena_ring_writer_shutdown(self._ring)  # [closed]

    def close(self) -> None:
        """Tells all readers that no message will follow."""
        lib.arena_ring_writer_close(self._ring)  # [closed]

    @property
    def closed(self) -> bool:
        return bool(self._ring.closed)


class RingReader:
    """A reader's end.  One thread at a time, except ``shutdown``."""

    finish: Callable[[], None]
    """advance and wake_writer: the native call itself, before which no signal handler can raise."""

    look: Callable[[], int]
    """``wait(0, 0)`` in half the time, for a record that is there already: 0 if so, else ``wait`` says what there is."""

    def __init__(self, segment: Segment, rank: int, entry: MemberWord) -> None:
        self._segment = segment
        self._entry = entry
        self._ring: Any = ffi.new("arena_ring_reader *", {"m": segment.mapping, "rank": rank})
        self.rank = rank
        self.admitted = False
        self.finish = partial(lib.arena_ring_finish, self._ring)
        self.look = partial(lib.arena_wait_record, self._ring, 0, 0)
        trace.observe(self, segment)

    # ---- records ----------------------------------------------------------------------------------------------

    def read(self) -> Outcome:
        """Finds the next record, without taking it: OK or EMPTY."""
        return self._checked(lib.arena_ring_read(self._ring))  # [ring.publish]

    @property
    def record(self) -> tuple[Any, int]:
        """The record that was found: a C pointer into the ring and a length, valid until ``advance``."""
        return self._ring.record, self._ring.record_bytes

    @property
    def plain(self) -> Any | None:
        """The pickle of the record that ``wait`` found, if it is intact and has nothing else; valid until ``advance``."""
        nbytes = self._ring.plain_bytes
        return ffi.buffer(self._ring.plain, nbytes) if nbytes else None

    def advance(self) -> None:
        """The record is read: its room is the writer's again."""
        lib.arena_ring_advance(self._ring)  # [ring.consume]

    def wake_writer(self) -> None:
        """Wakes the writer if it is parked."""
        lib.arena_ring_wake_writer(self._ring)  # [park.consumed]

    # ---- waiting for a record ---------------------------------------------------------------------------------

    def park(self) -> None:
        """Says that this reader will sleep."""
        lib.arena_ring_reader_park(self._ring)  # [park.published]

    def recheck(self) -> Outcome:
        """The last look after ``park``: OK, EMPTY or CLOSED."""
        return _OUTCOMES[lib.arena_ring_reader_recheck(self._ring)]

    def sleep(self, slice_us: int = SLICE_US) -> None:
        """Sleeps while parked, one slice at most."""
        lib.arena_ring_reader_sleep(self._ring, slice_us)

    def unpark(self) -> None:
        """Says that this reader is awake."""
        lib.arena_ring_reader_unpark(self._ring)

    def wait(self, spin_us: int, slice_us: int) -> Outcome:
        """read; then park, recheck, sleep, unpark and read again: OK, EMPTY after one slice, or CLOSED."""
        code = lib.arena_wait_record(self._ring, spin_us, slice_us)
        return Outcome.OK if code == 0 else self._checked(code)

    def last_look(self) -> Outcome:
        """After the writer was found dead: a record that it had published is still there."""
        return self.read()

    def wait_admission(self, slice_us: int) -> Outcome:
        """Parks until the writer admits this reader, one slice at most: OK, EMPTY or CLOSED."""
        outcome = Outcome(lib.arena_ring_wait_admission(self._ring, self._entry.pack(), slice_us))  # [member.admit]
        self.admitted = outcome is Outcome.OK
        return outcome

    # ---- the end ----------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """This reader takes no more messages; what it has leased it still owes."""
        lib.arena_ring_leave(self._ring, self._entry.with_state(State.LEFT).pack())  # [member.leave]

    def shutdown(self) -> None:
        """Ends a blocked call of this reader, from any thread."""
        lib.arena_ring_reader_shutdown(self._ring)  # [closed]

    @property
    def closed(self) -> bool:
        return bool(self._ring.closed)

    @property
    def writer_closed(self) -> bool:
        """Whether the writer said that no message will follow."""
        return bool(lib.arena_writer_is_closed(self._segment.mapping))  # [closed]

    def _checked(self, code: int) -> Outcome:
        if code == lib.ARENA_CORRUPT:
            raise CorruptError(
                f"the ring has no possible record at {self._ring.position} (published "
                f"{lib.arena_ring_published(self._segment.mapping)}, {self._segment.layout.ring_bytes} bytes): shut down"
            )
        return _OUTCOMES[code]
