"""What travels beside the ring: messages that are cut short, and readers that join again."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zmq
from support import WATCHDOG_S, queue_of

from arena import ArenaConfig, MessageQueue, ends
from arena.message import outofband

BESIDE: dict[str, Any] = {"arena": None, "max_chunk_bytes": 1024}  # a larger message goes out of band


class Raised(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("part", range(4))
def test_a_message_that_is_cut_short_costs_no_other(part: int, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of identity, number, table and pickle: the next message is neither appended to it nor taken for it."""
    send, left = zmq.Socket.send, part

    def cut_short(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1 and when == "before":
            raise Raised
        result = send(self, *arguments, **options)
        if left == -1:
            raise Raised
        return result

    with queue_of(1, **BESIDE) as (writer, [reader]):
        writer.enqueue((0, bytes(5000)))
        assert reader.dequeue(WATCHDOG_S) == (0, bytes(5000))
        with monkeypatch.context() as patch:
            patch.setattr(zmq.Socket, "send", cut_short)
            with pytest.raises(Raised):
                writer.enqueue((1, bytes(5000)), timeout=WATCHDOG_S)
        for number in (2, 3):
            writer.enqueue((number, bytes(5000 + number)))
        for number in (2, 3):
            assert reader.dequeue(WATCHDOG_S) == (number, bytes(5000 + number))


def test_the_sockets_file_is_its_owners_alone_and_gone_when_all_have_joined() -> None:
    """Across PID namespaces, where readers need its name; else it has none from the start."""
    shm = ArenaConfig(1 << 20, slots=4, backing="shm")
    with MessageQueue(2, arena=shm, max_chunk_bytes=1024) as writer:
        path = Path(writer.export_handle().endpoint.removeprefix("ipc://"))  # type: ignore[attr-defined]
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as first:
            with pytest.raises(TimeoutError):
                writer.wait_until_ready(0)
            assert path.is_socket()
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            with MessageQueue.create_from_handle(writer.export_handle(), 1) as second:
                writer.wait_until_ready(WATCHDOG_S)
                assert not path.parent.exists()
                writer.enqueue(bytes(5000), timeout=WATCHDOG_S)
                assert first.dequeue(WATCHDOG_S) == second.dequeue(WATCHDOG_S) == bytes(5000)
    with MessageQueue(1, **BESIDE):
        assert list(Path(tempfile.gettempdir()).glob("arena-*")) == []


def test_a_message_is_handed_to_no_reader_before_all_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a reader that is stopped before its connection stands has each try of each message pile up for the others."""
    handed: list[int] = []
    send = zmq.Socket.send

    def noted(self: Any, part: Any, *arguments: Any, **options: Any) -> Any:
        handed.append(len(part))
        return send(self, part, *arguments, **options)

    with MessageQueue(2, **BESIDE) as writer, MessageQueue.create_from_handle(writer.export_handle(), 0) as first:
        with monkeypatch.context() as patch:
            patch.setattr(zmq.Socket, "connect", lambda *_: None)
            late = MessageQueue.create_from_handle(writer.export_handle(), 1)
        with late:
            with monkeypatch.context() as patch:
                patch.setattr(zmq.Socket, "send", noted)
                for _ in range(10):
                    with pytest.raises(TimeoutError, match=r"rank 1 \(pid \d+\) has not connected within 0.1 s"):
                        writer.enqueue(bytes(5000), timeout=0.1)
            assert handed.count(0) == 1  # the first reader is reached once, whatever is tried how often
            assert max(handed) < 100
            socket = late._end._out_of_band  # type: ignore[union-attr]
            socket._socket.connect(f"ipc:///proc/self/fd/{socket._fd}")  # type: ignore[union-attr]
            for number in range(3):
                writer.enqueue((number, bytes(5000)), timeout=WATCHDOG_S)
                assert [reader.dequeue(WATCHDOG_S) for reader in (first, late)] == [(number, bytes(5000))] * 2


def test_a_process_that_leaves_and_joins_again_gets_every_message() -> None:
    """Its connection of before may not be gone when the next message is sent."""
    with queue_of(1, **BESIDE) as (writer, [reader]):
        handle = writer.export_handle()
        for number in range(40):
            writer.enqueue((number, bytes(5000)))
            assert reader.dequeue(WATCHDOG_S) == (number, bytes(5000))
            before = reader._end.entry
            reader.shutdown()
            writer.reap()
            reader = MessageQueue.create_from_handle(handle, 0)
            writer.wait_until_ready(WATCHDOG_S)
            assert outofband.identity(0, reader._end.entry) != outofband.identity(0, before)
        reader.shutdown()


def test_what_a_process_remembers_of_its_joins_is_bounded() -> None:
    """A process that serves one queue after another grows by none of them."""
    for number in range(3000):
        assert next(ends._joins(number.to_bytes(16, "little"), 0)) == 1
    assert next(ends._joins((2999).to_bytes(16, "little"), 0)) == 2
    assert ends._joins.cache_info().currsize < 3000


def test_readers_that_have_ended_unheard_keep_nobody_out() -> None:
    """More than may wait to be taken in, and nothing was ever sent to them."""
    with MessageQueue(1, **BESIDE) as writer:
        for _ in range(3 * outofband._BACKLOG_SPARE):
            MessageQueue.create_from_handle(writer.export_handle(), 0).shutdown()
            writer.reap()
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as reader:
            writer.enqueue(bytes(5000), timeout=WATCHDOG_S)
            assert reader.dequeue(WATCHDOG_S) == bytes(5000)
