"""Runs detectors against mutants: in a copy of the tree, with the changed C file built there."""

from __future__ import annotations

import compileall
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from spec.mutants_python import Mutant

ROOT = Path(__file__).parent.parent
COPIED = ("arena", "spec", "csrc", "tests", "fuzz", "setup.py", "pyproject.toml", "README.md", "Makefile")
LIBRARY = "arena/_native.abi3.so"
OWN_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")
LIMIT_S = 120.0  # of a detector that is not made of tests, and of the time that pytest takes besides its tests


@dataclass(frozen=True)
class TimedTest:
    """A test, how long it takes, and the functions that it runs, as mutants name them."""

    name: str
    seconds: float
    functions: frozenset[str]

    @property
    def module(self) -> str:
        return Path(self.name.split("::")[0]).stem

    @property
    def limit_s(self) -> float:
        """Much longer than it takes: other processes may take turns with it."""
        return 10 + 8 * self.seconds


class Tree:
    """A copy of the project in which one file at a time is wrong, and a process there that runs what is asked for.

    Where it may, it has a /dev/shm of its own: what a mutant leaves there would fail the tests of another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.trace"))
            elif source.exists():
                shutil.copy(source, folder / name)
        (folder / "tmp").mkdir()
        compileall.compile_dir(folder, quiet=2)
        environment = {**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder / "tmp")}
        may_mount = subprocess.run([*OWN_SHM, "true"], capture_output=True).returncode == 0
        self._server = subprocess.Popen(
            [*(OWN_SHM if may_mount else ()), sys.executable, "spec/mutants_server.py"],
            cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._builder: Builder | None = None
        self.cpu_s = 0.0  # of all calls

    def call(self, function: str, limit_s: float = LIMIT_S, **arguments: Any) -> int | None:
        """The exit code of a function of `mutants_detect`, in a process of its own; None if it takes too long."""
        requests, answers = _pipes(self._server)
        requests.write(json.dumps(["spec.mutants_detect", function, arguments, limit_s]) + "\n")
        requests.flush()
        code: int | None
        code, cpu_s = json.loads(answers.readline())
        self.cpu_s += cpu_s
        for left in (self.folder / "tmp").iterdir():  # of a run that was ended
            shutil.rmtree(left, ignore_errors=True)
        return code

    def output(self) -> str:
        """The end of what the last call printed."""
        return (self.folder / "output.txt").read_text()[-4000:]

    def close(self) -> None:
        requests, answers = _pipes(self._server)
        requests.close()
        self._server.wait()
        answers.close()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    # ---- one mutant ---------------------------------------------------------------------------------------------

    def runs(self, mutant: Mutant, checks: Sequence[str], tests: Sequence[TimedTest], *, first_only: bool) -> dict[str, str]:
        """What each detector says: "killed", "passed" or "hung", which is a kill, too.

        Args:
            checks: functions of `mutants_detect` that can see the mutant.
            tests: tests that can; they are detectors by modules.
            first_only: the first kill is enough.
        """
        path = self.folder / mutant.path
        original = path.read_text()
        said: dict[str, str] = {}
        try:
            path.write_text(mutant.text)
            self._forget(path)
            for check in checks:
                code = self.call(check)
                said[check] = "hung" if code is None else "killed" if code else "passed"
                if first_only and said[check] != "passed":
                    return said
            if not tests:
                return said
            if mutant.path.endswith((".c", ".h")) and not self._built().build(mutant.path):
                return {**said, "compiler": "killed"}
            return {**said, **self._tests(tests, first_only=first_only)}
        finally:
            path.write_text(original)
            if self._builder is not None:
                self._builder.restore()

    def _tests(self, tests: Sequence[TimedTest], *, first_only: bool) -> dict[str, str]:
        waves = in_waves(by_module(tests))
        said: dict[str, str] = {}
        while waves:
            modules = waves.pop(0)
            limits = {test.name: test.limit_s for each in modules.values() for test in each}
            limit_s = LIMIT_S + sum(limits.values())
            code = self.call("tests", limit_s, limits=limits, report="report.txt", first_only=first_only)
            said.update(outcomes((self.folder / "report.txt").read_text(), code))
            if first_only and any(outcome != "passed" for outcome in said.values()):
                break
            after_a_hang = {module: tests for module, tests in modules.items() if module not in said}
            if after_a_hang and after_a_hang != modules:
                waves.insert(0, after_a_hang)
        return said

    def _built(self) -> Builder:
        self._builder = self._builder or Builder(self.folder)
        return self._builder

    def _forget(self, path: Path) -> None:
        """The compiled file of a Python source: a fault may leave its length and, to the second, its time the same."""
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()


def _pipes(server: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if server.stdin is None or server.stdout is None:
        raise RuntimeError("the server has no pipes")
    return server.stdin, server.stdout


def by_module(tests: Iterable[TimedTest]) -> dict[str, list[TimedTest]]:
    """Quick modules first, quick tests first."""
    modules: dict[str, list[TimedTest]] = {}
    for test in sorted(tests, key=lambda test: test.seconds):
        modules.setdefault(test.module, []).append(test)
    return dict(sorted(modules.items(), key=lambda item: sum(test.seconds for test in item[1])))


def in_waves(modules: dict[str, list[TimedTest]]) -> list[dict[str, list[TimedTest]]]:
    """What is run together: all modules at once would be imported, and most of them for nothing."""
    waves: list[dict[str, list[TimedTest]]] = [{}]
    limit_s = seconds = 0.0
    for module, tests in modules.items():
        seconds += sum(test.seconds for test in tests)
        if seconds > limit_s:
            waves.append({})
            limit_s = 4 * seconds
        waves[-1][module] = tests
    return [wave for wave in waves if wave]


def outcomes(report: str, code: int | None) -> dict[str, str]:
    """By module, from what `mutants_detect.Reporter` wrote; a test that did not finish has hung, or ended its process."""
    said: dict[str, str] = {}
    running = ""
    for line in report.splitlines():
        what, name = line.split(" ", 1)
        module = Path(name.split("::")[0]).stem
        said.setdefault(module, "passed")
        if what == "failed":
            said[module] = "killed"
        running = module if what == "started" else ""
    if running and said[running] == "passed":
        said[running] = "hung" if code is None or code == 1 else "killed"  # pytest-timeout exits with 1
    if code != 0 and "killed" not in said.values() and "hung" not in said.values():
        said["pytest"] = "killed"  # it could not even start: the import of conftest.py fails
    return said


class Builder:
    """Compiles one C file of a tree and links it with the objects of the others, with the very commands of setup.py."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: dict[str, list[str]] = {}
        self._link: list[str] = []
        (folder / LIBRARY).unlink()
        done = self._run([sys.executable, "setup.py", "build_ext", "--inplace", "--build-temp", "build"])
        for line in done.stdout.splitlines():
            words = shlex.split(line)
            if "-c" in words and "-o" in words:
                self._sources[words[words.index("-c") + 1]] = words
            elif "-shared" in words:
                self._link = [*words[: words.index("-o")], "-o", LIBRARY, *words[words.index("-o") + 2 :]]
        if done.returncode or not self._link:
            raise RuntimeError(f"the C code cannot be built in a copy of the tree: {done.stderr}")
        self._built = {path: path.read_bytes() for path in (folder / LIBRARY, *map(self._object, self._sources))}

    def build(self, path: str) -> bool:
        """Whether the changed file compiles: itself if it is a source, everything if it is a header."""
        changed = [path] if path in self._sources else list(self._sources)
        (self._folder / LIBRARY).unlink()  # never written in place: a process of an earlier run may still map it
        return not any(self._run(command).returncode for command in [*(self._sources[each] for each in changed), self._link])

    def restore(self) -> None:
        """As before all changes."""
        for path, content in self._built.items():
            path.unlink(missing_ok=True)
            path.write_bytes(content)

    def _object(self, source: str) -> Path:
        words = self._sources[source]
        return self._folder / words[words.index("-o") + 1]

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
