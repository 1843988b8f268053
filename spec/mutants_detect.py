"""The detectors, as they run in a child of `mutants_server.py`: each is a function that returns 0 if nothing is wrong."""

from __future__ import annotations

import ast
import json
import mmap
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

from spec.mutants_python import functions_of

LEFTOVERS = {"none": (330, 826), "other": (341, 846), "same": (341, 846), "torn": (328, 822), "empty": (330, 826)}
# By model: configurations, each with its states and transitions.
INSTANCES: dict[str, tuple[tuple[dict[str, Any], int, int], ...]] = {
    "message_slots": (
        ({"slots": 2, "readers": 1}, 521, 1416),
        ({"slots": 1, "readers": 2}, 580, 1681),
        ({"slots": 2, "readers": 1, "tensors": 1, "queue": 1}, 482, 1291),
        ({"slots": 1, "readers": 2, "quarantine": True}, 1036, 3145),
    ),
    "object_slots": (
        ({}, 248, 702),
        ({"leases": 1, "quarantine": True}, 480, 1477),
        ({"readers": 2, "leases": 1}, 2288, 10_055),
        ({"slots": 2, "leases": 1}, 6464, 28_928),
    ),
    "ring": (
        ({"slices": True, "shutdown": False, "spurious": False}, 1524, 5957),
        ({"capacity": 2, "shutdown": False}, 2072, 8338),
        ({}, 6389, 30_806),
    ),
    "membership": (
        ({}, 795, 2807),
        ({"objects": False}, 402, 1166),
        ({"readers": 2, "messages": False, "objects": False, "leave": False}, 2993, 12_285),
        ({"readers": 2, "messages": False, "objects": False}, 4633, 19_353),
    ),
    "rendezvous": (
        *(({"instances": "AA", "leftover": left}, *counts) for left, counts in LEFTOVERS.items()),
        ({"instances": "AA", "may_fail": True}, 346, 862),
        ({"instances": "AA", "may_fail": True, "barrier": True}, 585, 1444),
        ({"instances": "AAB"}, 3715, 12_742),
        ({"instances": "AAB", "may_fail": True}, 4069, 13_827),
    ),
    "rendezvous_meeting": (({"instances": "AAA"}, 6170, 11_754), ({}, 13_479, 32_607)),
}
# Deliberate faults that must break what they are said to.
FAULTS = {"rendezvous": ("cleanup-unlocked",), "rendezvous_meeting": ("failure-dies", "entry-removed")}
# Of instances that are too large to be searched whole for each mutant, so many states.
BEGINNINGS: dict[str, tuple[tuple[dict[str, Any], int, int], ...]] = {
    "ring": (({"readers": 2, "capacity": 2, "deaths": False, "shutdown": False, "spurious": False}, 2001, 4886),),
}
OPTIONS = (
    "-q", "-p", "no:cacheprovider", "-m", "not deep and not gpu", "--seed", "1", "--hypothesis-seed", "1",
    "--assert=plain", "--tb=no", "-p", "no:faulthandler", "--capture=no",  # nobody reads what a failure says
    "-W", "ignore::pytest.PytestAssertRewriteWarning",  # they are loaded before pytest looks for them
    "-k", "not noticed and not notices and not crosshair",  # tests of detectors, and a search as long as it is let
)  # fmt: skip


def searched(name: str) -> int:
    """The properties, and the exact numbers of states and transitions, of small instances of a model; and some faults."""
    from spec import models
    from spec.checker import check

    module = models.load(name)
    for options, states, transitions in INSTANCES[name]:
        result = check(module.model(module.Config(**options)), limit=2 * states)
        if not result.ok or (result.states, result.transitions) != (states, transitions):
            return 1
    for options, states, transitions in BEGINNINGS.get(name, ()):
        result = check(module.model(module.Config(**options)), limit=states - 1)
        if result.violation is not None or (result.states, result.transitions) != (states, transitions):
            return 1
    for fault in FAULTS.get(name, ()):
        variant = module.VARIANTS[fault]
        found = check(module.model(variant.config)).violation
        if found is None or (found.name, found.steps) != (variant.breaks, variant.steps):
            return 1
    return 0


message_slots, object_slots, ring, membership, rendezvous, rendezvous_meeting = (
    partial(searched, name) for name in INSTANCES
)


def orders() -> int:
    """The header's orders are the minimal ones."""
    from spec.orders_check import check_header

    return 0 if check_header(Path("csrc/arena_atomics.h").read_text()).ok else 1


def tests(limits: Mapping[str, float], report: str, *, first_only: bool) -> int:
    """Some tests, by name and each with a limit in seconds; what came of each goes to the file `report`."""
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)  # nobody reads an example
    settings.load_profile("mutants")
    with Path(report).open("w", buffering=1) as out:
        return int(pytest.main([*OPTIONS, *(["-x"] if first_only else []), *limits], [Reporter(limits, out)]))


class Reporter:
    """Writes a line when a test starts and one if it fails: a run that hangs or dies leaves the name of the test."""

    def __init__(self, limits: Mapping[str, float], out: Any) -> None:
        self._limits = limits
        self._out = out

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.add_marker(pytest.mark.timeout(self._limits.get(item.nodeid, 60)), append=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        print("started", nodeid, file=self._out)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print("failed", report.nodeid, file=self._out)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        print("finished", nodeid, file=self._out)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print("failed", report.nodeid, file=self._out)


def coverage(modules: Sequence[str], sources: Sequence[str], report: str) -> int:
    """Which functions of the sources each test runs, and how long it takes."""
    recorder = Recorder(sources)
    code = pytest.main([*OPTIONS, *modules], [recorder])
    Path(report).write_text(json.dumps(recorder.tests))
    return int(code)


class Recorder:
    """Marks the functions that a test runs, in this process or in one forked from it: the marks are shared memory."""

    def __init__(self, sources: Sequence[str]) -> None:
        found = [(str(Path(path).resolve()), *each) for path in sources for each in functions(path)]
        self._names = [name for _, name, _ in found]
        self._of = {(whole, line): index for index, (whole, _, line) in enumerate(found)}
        self._marks = mmap.mmap(-1, max(1, len(self._names)))
        self.tests: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._marks[:] = bytes(len(self._marks))
        start = time.monotonic()
        sys.settrace(self._see)
        threading.settrace(self._see)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            ran = sorted({name for index, name in enumerate(self._names) if self._marks[index]})
            seconds, failed = round(time.monotonic() - start, 3), item.nodeid in self._failed
            self.tests[item.nodeid] = {"seconds": seconds, "functions": ran, "failed": failed}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        index = self._of.get((frame.f_code.co_filename, frame.f_code.co_firstlineno))
        if index is not None:
            self._marks[index] = 1


def functions(path: str) -> Iterator[tuple[str, int]]:
    """The functions of a file, as mutants name them, and where their code objects say that they begin."""
    for name, node in functions_of(ast.parse(Path(path).read_text())):
        yield f"{path}:{name}", min([node.lineno, *(each.lineno for each in node.decorator_list)])
