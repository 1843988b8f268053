"""Matches whose every action is logged, and held to the model afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from arena.shm import trace
from arena.shm.tracelog import read_runs
from fuzz.session import expect
from fuzz.workers import Side
from spec.trace import validate


@contextmanager
def directory() -> Iterator[str]:
    """Where the logs of one match go."""
    with TemporaryDirectory(prefix="fuzz-trace-") as path:
        yield path


def log_to(side: Side, path: str) -> None:
    """In a worker: its next ends log there; nowhere, if the path is empty."""
    if path:
        os.environ[trace.VARIABLE] = path
    else:
        os.environ.pop(trace.VARIABLE, None)


def check(path: str) -> None:
    """Whether the logged match is a behaviour of the model.

    Raises:
        Failure: it is not; the text is the validator's.
    """
    runs = read_runs(Path(path))
    expect(runs, "nothing was logged")
    for logs in runs.values():
        verdict = validate(logs)
        expect(verdict.accepted, f"the model refuses the trace: {verdict}")
