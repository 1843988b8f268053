"""What `pip install .` builds: a source distribution with all that is in the tree, and of it one wheel for every Python."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import WATCHDOG_S

ROOT = Path(__file__).parent.parent
SOURCES = ["arena", "csrc", "docs", "examples", "fuzz", "spec", "tests"]
BESIDE = [
    ".ci/run", "CHANGELOG.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "constraints.txt", "pyproject.toml",
    "setup.py",
]  # fmt: skip
BUILT = shutil.ignore_patterns("__pycache__", "_native*", ".*")
"""What is in the tree's folders and was made, not written."""


@dataclass(frozen=True)
class Distribution:
    """A source distribution's files, and the wheel that was built of nothing else."""

    files: frozenset[str]
    wheel: Path


def build(what: str, source: Path, into: Path) -> Path:
    program = f"from setuptools import build_meta; print(build_meta.build_{what}({str(into)!r}))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "no files found matching" not in done.stdout + done.stderr
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as it was written."""
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, ignore=BUILT)
    for name in BESIDE:
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def built(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    files = tmp_path_factory.mktemp("built")
    with tarfile.open(build("sdist", written, files)) as archive:
        archive.extractall(files, filter="data")
    (unpacked,) = (path for path in files.iterdir() if path.is_dir())
    names = frozenset(str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file())
    return Distribution(names, build("wheel", unpacked, files))


def files_of(tree: Path) -> set[str]:
    found = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    return {name for name in found if "egg-info" not in name}


def test_every_package_is_in_the_list_of_packages() -> None:
    (listed,) = re.findall(r"\[tool\.setuptools\]\npackages = \[(.*)\]\n", (ROOT / "pyproject.toml").read_text())
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "arena").rglob("__init__.py")}
    assert set(re.findall(r"[\w.]+", listed)) == packages


@pytest.mark.deep
def test_the_source_distribution_has_all_that_was_written(built: Distribution, written: Path) -> None:
    assert files_of(written) - built.files == set()


@pytest.mark.deep
def test_one_wheel_for_every_python(built: Distribution) -> None:
    """By the limited API: the tag says from which version on."""
    assert built.wheel.name.endswith(f"-cp310-abi3-linux_{platform.machine()}.whl")


@pytest.mark.deep
def test_the_wheel_has_the_package_and_nothing_else(built: Distribution) -> None:
    names = {name for name in zipfile.ZipFile(built.wheel).namelist() if ".dist-info/" not in name}
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "arena").rglob("*.py")}
    assert names == package | {"arena/py.typed", "arena/_native.abi3.so"}


@pytest.mark.deep
def test_the_wheel_says_which_pythons(built: Distribution) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        text = wheel.read(name).decode()
    assert "\nRequires-Python: >=3.10\n" in text
    assert re.findall(r"Python :: 3\.(\d+)\n", text) == ["10", "11", "12", "13", "14"]


LIFE = """
import sys, torch, arena
from arena import MessageQueue
with MessageQueue(1) as writer, MessageQueue.create_from_handle(writer.export_handle(), 0) as reader:
    writer.enqueue(torch.arange(100_000))
    print(arena.__file__, len(reader.dequeue(60)), writer.statistics().diverted_total)
"""


@pytest.mark.deep
def test_what_the_wheel_has_works(built: Distribution, tmp_path: Path) -> None:
    zipfile.ZipFile(built.wheel).extractall(tmp_path)
    command, environment = [sys.executable, "-W", "error", "-c", LIFE], {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S, check=False
    )
    assert (done.stdout, done.stderr) == (f"{tmp_path}/arena/__init__.py 100000 1\n", "")
