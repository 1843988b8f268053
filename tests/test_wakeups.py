"""Waiting: a wake-up that is lost delays and loses nothing, idle costs nothing, and a long wait says what it waits for."""

from __future__ import annotations

import logging
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import SMALL, Reader, dequeue, queue_of, readers_of, wait_until

from arena import MessageQueue, endpoint
from arena.protocol.ring import Outcome
from arena.shm.layout import MEMBER_BYTES, MEMBER_PARK, MEMBERS_OFFSET
from arena.shm.native import ffi


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait is long, and is cut into short slices."""
    monkeypatch.setattr(endpoint, "LONG_WAIT_S", 0.0)
    monkeypatch.setattr(endpoint, "SLICE_US", 10_000)


def park_word_of(writer: MessageQueue, row: int) -> Any:
    control = writer._end.segment.mapping.control
    return ffi.cast("volatile uint32_t *", control + MEMBERS_OFFSET + row * MEMBER_BYTES + MEMBER_PARK)


def sleeps(pid: int) -> bool:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2] == "S"


def fill(writer: MessageQueue, *readers: Reader) -> None:
    """Until the ring is full, with these readers reading."""
    try:
        while True:
            writer.enqueue(bytes(900), timeout=0.2)
            for reader in readers:
                reader.run(dequeue)
    except TimeoutError:
        return


def test_a_lost_wake_up_loses_no_message() -> None:
    """Its park word is taken from a sleeping reader, as by a waker that is killed right then: nobody will wake it."""
    with MessageQueue(1, 1, arena=SMALL) as writer, readers_of(writer, 1) as (reader,):
        word = park_word_of(writer, 0)
        for number in range(3):
            reader.start(dequeue)
            wait_until(lambda: word[0] == 1 and sleeps(reader.pid), "the reader is parked")
            word[0] = 0
            writer.enqueue([number, torch.ones(2048)])
            assert reader.result()[0] == number


def test_a_writer_without_room_is_woken_by_who_reads_again() -> None:
    with MessageQueue(1, 1, arena=None, max_chunk_bytes=1024, max_chunks=2) as writer, readers_of(writer, 1) as (reader,):
        os.kill(reader.pid, signal.SIGSTOP)
        fill(writer)
        os.kill(reader.pid, signal.SIGCONT)
        reader.start(dequeue)
        writer.enqueue(bytes(900), timeout=60)
        assert reader.result() == bytes(900)


def test_an_idle_reader_costs_no_processor_time() -> None:
    with queue_of(1) as (_, (reader,)):
        cpu_s = time.thread_time()
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        with pytest.raises(TimeoutError):
            reader.dequeue(timeout=1.5)
        assert time.thread_time() - cpu_s < 0.15
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - switches < 15


def test_a_reader_spins_once_per_wait_and_never_beyond_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again in each slice: an idle reader would spin for most of its life."""
    waits: list[tuple[int, int]] = []

    def wait(spin_us: int, slice_us: int) -> Outcome:
        waits.append((spin_us, slice_us))
        if len(waits) == 6:
            raise KeyboardInterrupt
        return Outcome.EMPTY

    with queue_of(1, spin_us=700_000) as (_, (reader,)):
        monkeypatch.setattr(reader._end.ring, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            reader.dequeue()
        assert waits == [(500_000, 0), (200_000, 0)] + [(0, 500_000)] * 4
        waits.clear()
        with pytest.raises(TimeoutError):
            reader.dequeue(0)
        assert waits == [(0, 0)]


def test_a_long_wait_for_room_names_who_is_behind(impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    with MessageQueue(2, 2, arena=None, max_chunk_bytes=1024, max_chunks=2) as writer, readers_of(writer, 2) as readers:
        stopped, reads = readers
        behind = f"rank 0 (pid {stopped.pid}) by "
        os.kill(stopped.pid, signal.SIGSTOP)
        with caplog.at_level(logging.WARNING, "arena"):
            fill(writer, reads)
        os.kill(stopped.pid, signal.SIGCONT)
    lines = [record.getMessage() for record in caplog.records if "for room in the ring" in record.getMessage()]
    assert lines
    assert all(f"writer {os.getpid()} has waited" in line and behind in line for line in lines)
    assert not any("rank 1" in line for line in lines[-1:])


@pytest.mark.parametrize("indefinite", [True, False])
def test_a_long_idle_wait_is_a_warning_unless_it_is_normal(
    impatient: None, caplog: pytest.LogCaptureFixture, indefinite: bool
) -> None:
    with queue_of(1) as (_, (reader,)), caplog.at_level(logging.DEBUG, "arena"), pytest.raises(TimeoutError):
        reader.dequeue(timeout=0.2, indefinite=indefinite)
    records = [record for record in caplog.records if "has waited" in record.getMessage()]
    assert records
    assert {record.levelno for record in records} == {logging.DEBUG if indefinite else logging.WARNING}
    text = f"reader rank 0 (pid {os.getpid()}) has waited 0 s for a message from writer {os.getpid()}, which is alive"
    assert all(record.getMessage() == text for record in records)
