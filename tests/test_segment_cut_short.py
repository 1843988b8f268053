"""A segment, or an end of a queue, whose making a signal handler's exception cuts short leaves nothing."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from inspect import CO_GENERATOR
from types import FrameType
from typing import Any

import pytest
from cut_support import Cut
from support import SMALL

from arena import MessageQueue
from arena.shm import capacity, segment
from arena.shm.layout import PAGE, Layout
from arena.shm.native import lib

LAYOUT = Layout(n_readers=2, n_slots=4, ring_bytes=2 * PAGE, data_bytes=4 * PAGE)
CLOSING = {"close_kept", "_close_if"}
"""What gives back is not cut: whoever is cut there has lost what it was about to give back."""


def belongings() -> tuple[int, list[str], list[str]]:
    names = [name for name in os.listdir(capacity.SHM_DIRECTORY) if name.startswith(f"arena-{os.getpid()}-")]
    return lib.arena_maps_live(), os.listdir("/proc/self/fd"), names


def cut_at_call(place: int, call: Callable[[], object], *, where: str) -> bool:
    """Raises where the n-th function of those modules begins, as a handler may; whether it came so far."""
    left = place

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        code, caller = frame.f_code, frame.f_back
        names = {code.co_name, caller.f_code.co_name if caller else ""}
        if event == "call" and where in code.co_filename and not code.co_flags & CO_GENERATOR and not names & CLOSING:
            left -= 1
            if left == -1:
                raise Cut

    with suppress(Cut):
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
    return left < 0


def cut_everywhere(call: Callable[[], object], *, where: str) -> int:
    """The number of places."""
    gc.collect()
    before, place = belongings(), 0
    while cut_at_call(place, call, where=where):
        assert belongings() == before, place
        place += 1
    return place


@contextmanager
def gone(of: segment.Segment) -> Iterator[None]:
    yield
    segment.unlink(of.handle)
    of.close()


@pytest.mark.parametrize("options", [{}, {"backing": "shm"}, {"huge_pages": True}], ids=str)
def test_a_segment_that_is_being_made(options: dict[str, Any]) -> None:
    with ExitStack() as made:
        assert cut_everywhere(lambda: made.enter_context(gone(segment.create(LAYOUT, **options))), where="arena/shm/") > 10


def test_a_segment_that_is_being_attached() -> None:
    with ExitStack() as made:
        of = segment.create(LAYOUT)
        made.enter_context(gone(of))
        assert cut_everywhere(lambda: made.callback(segment.attach(of.handle).close), where="arena/shm/") > 10


@pytest.mark.parametrize("what", ["posix_fallocate", "ftruncate"])
def test_a_named_segment_whose_pages_are_being_taken(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = belongings()
    with monkeypatch.context() as patched:
        patched.setattr(os, what, interrupt)
        with pytest.raises(KeyboardInterrupt):
            segment.create(LAYOUT, backing="shm")
    assert belongings() == before


def test_an_end_that_nobody_has_yet() -> None:
    with ExitStack() as made:
        for where in ("arena/queue.py", "arena/message/pickling.py", "arena/message/codec.py", "arena/ratelimit.py"):
            assert cut_everywhere(lambda: made.enter_context(MessageQueue(1, 1, arena=SMALL)), where=where) > 0
    with MessageQueue(1, 1, arena=SMALL) as writer, ExitStack() as made:
        handle = writer.export_handle()
        join = lambda: made.enter_context(MessageQueue.create_from_handle(handle, 0))  # noqa: E731
        for where in ("arena/queue.py", "arena/shm/process.py"):
            assert cut_everywhere(join, where=where) > 2
            made.close()
            writer.reap()
