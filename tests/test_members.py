"""Readers that join, leave, die and come back, as the writer sees them."""

from __future__ import annotations

from arena import MessageQueue
from arena.queue import WriterEnd
from arena.reader import ReaderEnd
from arena.shm.layout import MemberWord, State
from arena.shm.native import lib


def word(queue: MessageQueue, row: int) -> MemberWord:
    return MemberWord.unpack(lib.arena_member_read(queue._end.segment.mapping, row))


def test_a_joiner_that_gives_up_while_it_is_admitted_is_no_member() -> None:
    """The admission is a swap of the word that the writer saw: stored over LEFT it would leave a member that never reads."""
    with MessageQueue(1, 1) as writer:
        end = writer._end
        assert isinstance(end, WriterEnd)
        reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
        (seen,) = end.ring.entries()
        assert seen.state is State.JOINING
        reader.shutdown()
        assert not end.ring.admit(0, seen)
        assert end.ring.members == 0
        assert word(writer, 0).state is State.LEFT
        end.members.admit_joiners()
        assert word(writer, 0).state is State.EMPTY
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as successor:
            writer.wait_until_ready(5)
            writer.enqueue("next", timeout=5)
            assert isinstance(successor._end, ReaderEnd)
            assert successor.dequeue(timeout=5) == "next"
