"""Deaths of readers and of the writer, rejoins, and readers that only look dead (cases 3, 4, 8, 42, 63)."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from textwrap import indent
from typing import Any, Literal

import pytest
import torch
from support import SMALL, Reader, dequeue, drop, hold, kept, python, queue_of, readers_of, wait_until

from arena import MessageQueue
from arena.errors import MessageLost, ReaderDied
from arena.reader import LOOKS_AFTER_END
from arena.shm.native import lib

MB = 1 << 20


def kill(reader: Reader) -> None:
    os.kill(reader.pid, signal.SIGKILL)
    reader.process.join()


def image(value: int) -> torch.Tensor:
    return torch.full((MB,), value, dtype=torch.uint8)


def test_a_dead_reader_costs_nothing_and_the_others_do_not_notice() -> None:
    with MessageQueue(2, 2, arena=SMALL, max_chunk_bytes=4096, max_chunks=2) as writer, readers_of(writer, 2) as readers:
        dies, lives = readers
        writer.enqueue(image(1))
        dies.run(hold, "held")
        lives.run(hold, "held")
        writer.enqueue(image(2))  # unread by the one that dies
        kill(dies)
        for value in range(3, 40):  # far more than the ring holds
            writer.enqueue({"filler": bytes(1000), "value": value}, timeout=30)
            if value == 3:
                assert torch.equal(lives.run(dequeue), image(2))
            assert lives.run(dequeue)["value"] == value
        assert torch.equal(lives.run(kept, "held"), image(1))
        lives.run(drop, "held")
        statistics = writer.statistics()
        assert statistics.slots_free == statistics.slots_total
        assert statistics.deaths_total == 1
        assert [reader.alive for reader in statistics.readers] == [False, True]


def test_a_death_is_told_by_rank_pid_and_how(caplog: pytest.LogCaptureFixture) -> None:
    with MessageQueue(1, 1, local_reader_ranks=[0], on_reader_death="raise") as writer, readers_of(writer, 1) as (reader,):
        pid = reader.pid
        kill(reader)
        with caplog.at_level(logging.WARNING, "arena"):
            assert writer.reap() == 1
        assert f"rank 0 (pid {pid}) has died" in caplog.text
        with pytest.raises(ReaderDied, match=rf"rank 0 \(pid {pid}\)"):
            writer.enqueue("not sent")
        writer.enqueue("each death is told once")


@pytest.mark.parametrize(("how", "error"), [("continue", TimeoutError), ("raise", ReaderDied)])
def test_a_wait_for_all_readers_names_those_that_joined_and_died(
    how: Literal["continue", "raise"], error: type[Exception]
) -> None:
    with MessageQueue(2, 2, on_reader_death=how) as writer:
        reader = Reader(writer.export_handle(), 0)
        try:
            reader.run(repr)  # it has joined
            kill(reader)
            with pytest.raises(error, match=rf"rank 0 \(pid {reader.pid}\)"):
                writer.wait_until_ready(0.2)
            with pytest.raises(TimeoutError, match=r"readers \[0, 1\] of 2 have not joined"):
                writer.wait_until_ready(0.2)
        finally:
            reader.end()


def test_a_full_ring_goes_on_when_the_one_that_is_behind_dies() -> None:
    with MessageQueue(2, 2, arena=None, max_chunk_bytes=1024, max_chunks=2) as writer, readers_of(writer, 2) as readers:
        stalls, reads = readers
        os.kill(stalls.pid, signal.SIGSTOP)

        def fill() -> None:
            for _ in range(100):
                writer.enqueue(bytes(900), timeout=0.2)
                reads.run(dequeue)

        with pytest.raises(TimeoutError, match=rf"rank 0 \(pid {stalls.pid}\) by \d+ bytes"):
            fill()
        kill(stalls)
        for _ in range(10):
            writer.enqueue(bytes(900), timeout=30)
            reads.run(dequeue)


def test_a_stopped_reader_is_never_reclaimed() -> None:
    """Stopped is not dead: what it holds stays, the writer falls back, and its bytes are right when it goes on."""
    with MessageQueue(1, 1, arena=SMALL) as writer, readers_of(writer, 1) as (reader,):
        writer.enqueue(image(7))
        reader.run(hold, "held")
        os.kill(reader.pid, signal.SIGSTOP)
        for value in range(20):
            writer.enqueue(image(value), timeout=30)
            assert writer.reap() == 0
        statistics = writer.statistics()
        assert statistics.deaths_total == 0
        assert statistics.readers[0].alive
        assert statistics.readers[0].lag > 0
        assert statistics.fallback_total["no_slot"] > 0
        os.kill(reader.pid, signal.SIGCONT)
        assert torch.equal(reader.run(kept, "held"), image(7))
        for value in range(20):
            assert torch.equal(reader.run(dequeue), image(value))
        reader.run(drop, "held")
        wait_until(lambda: writer.statistics().slots_free == SMALL.slots, "all slots free")


def test_a_new_process_takes_a_dead_rank_with_an_empty_queue() -> None:
    with MessageQueue(2, 2, arena=SMALL) as writer, readers_of(writer, 2) as readers:
        for round_ in range(3):
            writer.enqueue(image(round_))
            kill(readers[0])
            successor = Reader(writer.export_handle(), 0)
            try:
                writer.reap()
                writer.wait_until_ready(60)
                writer.enqueue({"first": round_})
                assert successor.run(dequeue) == {"first": round_}
                assert torch.equal(readers[1].run(dequeue), image(round_))
                assert readers[1].run(dequeue) == {"first": round_}
            finally:
                readers[0].end()
                readers[0] = successor
        assert writer.statistics().deaths_total == 3


BESIDE_AN_ENGINE = """
import os, signal, sys, multiprocessing
import torch
from arena import MessageQueue
from arena.errors import WriterDied
from arena.shm.native import lib

def engine(pipe):
{engine}
    pipe.send("all are out")
    signal.pause()

def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=engine, args=(theirs,))
    process.start()
    theirs.close()
    queue = MessageQueue.create_from_handle(ours.recv(), 0)
{reader}
    process.close(); ours.close()
"""


def beside_an_engine(engine: str, reader: str) -> None:
    """Runs a program of two processes: a writer, spawned, that sends its handle, and a reader that kills it."""
    code = BESIDE_AN_ENGINE.format(engine=indent(engine, "    "), reader=indent(reader, "    "))
    runner = (  # a spawned child imports the main module again, so the program must be a file
        "import runpy, sys, tempfile, pathlib\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        f"    path = pathlib.Path(folder, 'program.py'); path.write_text({code!r})\n"
        "    runpy.run_path(str(path), run_name='__main__')\n"
    )
    done = python(runner)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dead_writer_is_reported_and_live_tensors_stay_valid() -> None:
    engine = """
queue = MessageQueue(1, 1)
pipe.send(queue.export_handle())
queue.wait_until_ready(60)
queue.enqueue(torch.full((1 << 20,), 5, dtype=torch.uint8))
queue.enqueue("the last message")
"""
    reader = """
image = queue.dequeue(60)
ours.recv()
kill(process)
assert queue.dequeue() == "the last message"
try:
    queue.dequeue()
except WriterDied as error:
    assert str(process.pid) in str(error)
else:
    sys.exit("no WriterDied")
queue.shutdown()
assert int(image.sum()) == 5 << 20
assert lib.arena_maps_live() == 1
del image
assert lib.arena_maps_live() == 0
"""
    beside_an_engine(engine, reader)


def test_a_reader_that_dies_while_joining_leaves_its_rank_free() -> None:
    """The entry is one word, written by one swap: whatever it says, its process is known."""
    with queue_of(1) as (writer, _):
        handle = writer.export_handle()
    del handle
    with MessageQueue(1, 1) as writer:
        joiner = Reader(writer.export_handle(), 0)
        wait_until(lambda: lib.arena_member_read(writer._end.segment.mapping, 0) != 0, "the joiner's entry")
        kill(joiner)
        joiner.end()
        with pytest.raises(TimeoutError, match=r"readers \[0\] of 1"):
            writer.wait_until_ready(0.3)
        with readers_of(writer, 1) as (successor,):
            writer.enqueue("hello")
            assert successor.run(dequeue) == "hello"


def test_a_payload_that_is_late_is_a_timeout_and_not_lost() -> None:
    """A writer stopped between a record and what travels beside it: dequeue keeps its deadline, the message its place."""
    with queue_of(1, arena=None, max_chunk_bytes=1024) as (writer, (reader,)):
        end: Any = reader._end
        receive = end._out_of_band.receive
        end._out_of_band.receive = lambda number, n_frames, check: check() or pytest.fail("the deadline was not looked at")
        writer.enqueue(image(3))
        for _ in range(2):
            with pytest.raises(TimeoutError, match="comes out of band"):
                reader.dequeue(timeout=0)
        end._out_of_band.receive = receive
        assert torch.equal(reader.dequeue(5), image(3))  # type: ignore[arg-type]


def test_a_payload_is_lost_when_it_was_looked_for_and_not_when_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is stopped for an hour after its writer's shutdown has looked no more often than before."""
    with queue_of(1, arena=None, max_chunk_bytes=1024) as (writer, (reader,)):
        end: Any = reader._end
        looks = 0

        def receive(number: int, n_frames: int, check: Callable[[], None]) -> list[memoryview]:
            nonlocal looks
            monkeypatch.setattr(time, "monotonic", lambda: now() + 3600 * looks)
            while True:
                check()
                looks += 1

        now = time.monotonic
        end._out_of_band.receive = receive
        writer.enqueue(image(3))
        writer.shutdown()
        with pytest.raises(MessageLost, match="message 1 was under way out of band"):
            reader.dequeue()
        monkeypatch.undo()
        assert looks == LOOKS_AFTER_END


def test_a_payload_that_a_dead_writer_had_sent_is_not_lost() -> None:
    """Its thread had handed it to the kernel: the reader gets it, and then hears of the death."""
    engine = """
queue = MessageQueue(1, 1, arena=None, max_chunk_bytes=1024)
pipe.send(queue.export_handle())
queue.wait_until_ready(60)
for number in range(3):
    queue.enqueue([number, bytes(2_000)])
"""
    reader = """
queue.wait_until_ready(60)
ours.recv()
assert queue.dequeue(60)[0] == 0  # the connection stands
kill(process)
assert [queue.dequeue(60)[0] for _ in range(2)] == [1, 2]
try:
    queue.dequeue()
except WriterDied:
    queue.shutdown()
else:
    sys.exit("no WriterDied")
"""
    beside_an_engine(engine, reader)


def test_a_reader_whose_watch_the_application_closed_is_not_dead() -> None:
    """Its number is another readable file's by then."""
    with MessageQueue(1, 1, arena=SMALL, max_chunk_bytes=4096, max_chunks=2) as writer, readers_of(writer, 1) as [reader]:
        writer.enqueue(image(1))
        reader.run(hold, "held")
        pidfd = writer._end.members._peers[0].pidfd  # type: ignore[attr-defined]
        with open("/dev/null") as readable:
            os.dup2(readable.fileno(), pidfd)
        try:
            for value in range(2, 2 + 2 * SMALL.slots):
                writer.enqueue(image(value))
                reader.run(dequeue)
            with suppress(TimeoutError):
                while True:
                    writer.enqueue(bytes(1000), timeout=0.2)
            assert writer.reap() == 0
            assert writer.statistics().deaths_total == 0
            assert (reader.run(kept, "held") == 1).all()
        finally:
            os.close(pidfd)


def test_a_reader_whose_words_are_impossible_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """It claims to have released what was never published: its slot stays taken, the others' go on."""
    with queue_of(2) as (writer, readers):
        segment = writer._end.segment
        writer.enqueue(image(1))
        held = [reader.dequeue(30) for reader in readers]
        [slot] = writer._end.slots._sent
        at = segment.layout.done_offset + segment.layout.row_bytes + 8 * slot
        del held
        segment.mapping.control[at + 6] = b"\x01"
        with caplog.at_level(logging.WARNING, "arena"):
            for value in range(2, 2 + 2 * SMALL.slots):
                writer.enqueue(image(value))
                for reader in readers:
                    received: Any = reader.dequeue(30)
                    assert (received == value).all()
                    del received
            writer.reap()
        assert re.findall(r"the words of rank \d \(pid \d+\)", caplog.text) == [f"the words of rank 1 (pid {os.getpid()})"]
        assert writer.statistics().slots_free == SMALL.slots - 1
