"""Child processes that never outlive their parent."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import wait


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """What is started in the block never gets Ctrl-C, also while it still imports what `die_with_parent` is called from.

    A Ctrl-C that comes in the block is this process's when the block ends.
    """
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """End this process when its parent ends, however that was killed; leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:
        raise RuntimeError("die_with_parent() must be called in a child of multiprocessing")
    sentinel = parent.sentinel
    if wait([sentinel], timeout=0):  # it ended while this process was starting: what failed next would be told of
        os._exit(1)

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()
