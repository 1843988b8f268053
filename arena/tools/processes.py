"""Child processes that never outlive their parent."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def die_with_parent() -> None:
    """End this process when its parent ends, however that was killed; leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:
        raise RuntimeError("die_with_parent() must be called in a child of multiprocessing")
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()
