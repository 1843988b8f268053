"""Runs a detector against a mutant: in a copy of the tree, in a process of its own, with the C code built there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spec.mutants_python import Mutant

ROOT = Path(__file__).parent.parent
COPIED = ("arena", "spec", "csrc", "tests", "setup.py", "pyproject.toml", "README.md", "Makefile")
TIMEOUT_S = 240.0

MODELS = """
from spec.checker import check
from spec.models.message_slots import Config, model
wanted = {(2, 1, 2, 2): (521, 1416), (1, 2, 1, 2): (580, 1681), (2, 1, 1, 1): (482, 1291)}
results = {size: check(model(Config(*size))) for size in wanted}
assert all(result.ok for result in results.values()), "properties"
assert {size: (result.states, result.transitions) for size, result in results.items()} == wanted, "counts"
"""
ORDERS = """
from pathlib import Path
from spec.orders_check import check_header
assert check_header(Path("csrc/arena_atomics.h").read_text()).ok
"""


@dataclass(frozen=True)
class Detector:
    """A check that fails on a fault that it can see.

    Attributes:
        command: what is run in the tree, after `python`.
        sees: the folders whose mutants it can see.
        is_deep: too slow for a sample.
        needs_build: runs the extension module.
    """

    name: str
    command: tuple[str, ...]
    sees: tuple[str, ...]
    is_deep: bool = False
    needs_build: bool = True  # of the C code


SLOTS = ("spec/models", "arena/protocol/slots", "arena/protocol/extents", "csrc")
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--seed", "1", "-m", "not deep and not gpu")
EXTENTS = ("tests/test_extents.py", "tests/test_extents_in_chunks.py", "tests/spec/test_contracts.py")
STRESS = "tests/test_native_stress.py"
DETECTORS = (
    Detector("model", ("-c", MODELS), ("spec/models",)),
    Detector("orders", ("-c", ORDERS), ("csrc/arena_atomics.h",), needs_build=False),
    Detector("accesses", (*PYTEST, "tests/spec/test_accesses.py"), ("csrc",), needs_build=False),
    Detector("lockstep", ("tests/spec/lockstep_slots.py",), SLOTS),
    Detector("ring", ("tests/spec/lockstep_ring.py",), ("arena/protocol/ring", "csrc")),
    Detector("leases", (*PYTEST, "tests/test_leases.py"), ("arena/message/leases", "csrc/arena_slots", "csrc/arena_lease")),
    Detector("extents", (*PYTEST, *EXTENTS), ("arena/protocol/extents", "arena/protocol/slots")),
    Detector("cache", (*PYTEST, "tests/test_cache_objects.py", "tests/test_gates.py"), ("arena/protocol/slots",)),
    Detector("queue", (*PYTEST, "tests/test_queue.py"), ("arena/protocol/ring", "arena/protocol/slots", "csrc")),
    Detector("deaths", (*PYTEST, "tests/test_deaths.py", "tests/test_kinds.py"), ("arena", "csrc"), is_deep=True),
    Detector("stress", (*PYTEST, STRESS, "-k", "no_race"), ("csrc",), is_deep=True, needs_build=False),
)


class Tree:
    """A copy of the project in which one file at a time is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.trace"))
            elif source.exists():
                shutil.copy(source, folder / name)

    def runs(self, mutant: Mutant, detectors: Sequence[Detector], *, all_of_them: bool) -> dict[str, str]:
        """What the detectors that can see the mutant say: "killed", "passed", or "hung", which is a kill, too.

        The first kill is enough, unless all of them are asked.
        """
        path, library = self.folder / mutant.path, self.folder / "arena/_native.abi3.so"
        original, built = path.read_text(), library.read_bytes()
        path.write_text(mutant.text)
        said: dict[str, str] = {}
        is_built = not mutant.path.startswith("csrc")
        try:
            for detector in (each for each in detectors if mutant.path.startswith(each.sees)):
                if not is_built and detector.needs_build:
                    is_built = self.build()
                    if not is_built:
                        return {**said, "compiler": "killed"}
                said[detector.name] = self.run(detector)
                if said[detector.name] != "passed" and not all_of_them:
                    break
            return said
        finally:
            path.write_text(original)
            library.write_bytes(built)

    def build(self) -> bool:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--build-temp", "build"]
        return self._call(command, {}) == 0

    def run(self, detector: Detector) -> str:
        code = self._call([sys.executable, *detector.command], {"PYTHONDONTWRITEBYTECODE": "1"})
        return "hung" if code is None else "passed" if code == 0 else "killed"

    def _call(self, command: Sequence[str], more: dict[str, str]) -> int | None:
        """The exit code in the tree; None after a time-out, when the whole process group is ended."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "CFLAGS": "-Wno-error", **more}
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            process.wait()


