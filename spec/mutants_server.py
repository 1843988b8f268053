"""A process that has imported what every detector needs, and forks a child for each run: starting Python, torch and
pytest anew would take longer than most detectors.

It is run as a script in a copy of the tree, so that nothing of `arena` or `spec` is imported before the fork. One request
a line comes in, a JSON list: module, function, its arguments, and a limit in seconds; one answer a line goes out: the exit
code, negative for a signal, or null after the limit, and the processor time. Everything that a run has started is ended
with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

PRELOADED = ("click", "hypothesis.stateful", "numpy", "pytest", "rich.console", "torch", "zmq")


def main() -> None:
    sys.path[0] = os.getcwd()  # not this script's folder
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # looking through it in each child would take longer than many tests
    sys.dont_write_bytecode = True  # of a fault
    for line in sys.stdin:
        module, function, arguments, limit_s = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(module, function, arguments)
        print(json.dumps(outcome(pid, limit_s)), flush=True)


def child(module: str, function: str, arguments: dict[str, Any]) -> None:
    """Never returns."""
    code = 1
    try:
        os.setsid()
        with Path("output.txt").open("wb") as output, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = int(getattr(importlib.import_module(module), function)(**arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def outcome(pid: int, limit_s: float) -> tuple[int | None, float]:
    """Waits for a child, and ends its session."""
    pidfd = os.pidfd_open(pid)
    has_ended = bool(select.select([pidfd], [], [], limit_s)[0])
    os.close(pidfd)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status) if has_ended else None, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
