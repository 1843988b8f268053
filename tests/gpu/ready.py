"""Says what `run.sh` lacks on this machine, and ends with 1 if it is anything.

All at once: such a machine may be out of reach of everything, and what is missing has to be brought.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version
from importlib.util import find_spec

PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "cffi": "cffi",
    "zmq": "pyzmq",
    "setuptools": "setuptools",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
    "rich": "rich",
}
SETUPTOOLS_MIN = 77
"""The first that can read this project's metadata."""


def lacking() -> list[str]:
    """What is missing, in words."""
    missing = [f"the Python package {package}" for module, package in PACKAGES.items() if find_spec(module) is None]
    if find_spec("setuptools") and int(version("setuptools").partition(".")[0]) < SETUPTOOLS_MIN:
        missing.append(f"setuptools {SETUPTOOLS_MIN} or later, and not {version('setuptools')}")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        missing.append("a C compiler")
    if find_spec("torch"):
        import torch

        if torch.cuda.device_count() == 0:
            missing.append(f"a CUDA or ROCm device that torch {torch.__version__} can use")
    return missing


def main() -> int:
    missing = lacking()
    for each in missing:
        print(f"missing: {each}", file=sys.stderr)
    if missing:
        print(
            f"This is for {sys.executable}; PYTHON=... takes another. "
            "Packages can be brought from a machine with the same Python: "
            "`pip install --target FOLDER ...` there, PYTHONPATH=FOLDER here.",
            file=sys.stderr,
        )
    return int(bool(missing))


if __name__ == "__main__":
    raise SystemExit(main())
