"""Damage led by coverage: atheris (libFuzzer) changes the choices that a case is drawn from, keeping what reaches new code.

``python -m fuzz.guided DIRECTORY SEED RUNS SECONDS TARGET`` is run by the target ``bytes`` in a process of its own: atheris
does not return, and a crash is to end nobody else.
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fuzz.session import Failure, Session

CASE_LIMIT_S = 60
"""libFuzzer ends a case that takes longer, as a hang."""

INPUT_BYTES_MAX = 4096
SEEDS = 8
DAMAGE = "fuzz.corruption:damage_once"


class Choices(random.Random):
    """A generator whose every draw comes from given bytes, and is 0 when they are used up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data
        self._at = 0

    def getrandbits(self, k: int, /) -> int:
        """The next ``k`` bits; a draw below ``n`` asks for bits until they fit, so in the end there are zeros."""
        nbytes = (k + 7) // 8
        taken = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return int.from_bytes(taken.ljust(nbytes, b"\0"), "little") >> (8 * nbytes - k)

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)


def is_available() -> bool:
    """Whether atheris is installed; there is no wheel of it for every Python."""
    return find_spec("atheris") is not None


def run(session: Session, runs: int, seconds: float | None, target: str = DAMAGE) -> int:
    """Lets atheris look for an input that fails; how many it has tried.

    Args:
        session: its seed is the first input's.
        runs: how many inputs at most; -1 for the time alone to decide.
        seconds: how long at most.
        target: ``module:function``, which is given the choices and raises where something is wrong.

    Raises:
        Failure: it has found one; the text has the command that replays it.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        words = [directory, str(session.seed), str(runs), str(0 if seconds is None else max(1, round(seconds))), target]
        command = [sys.executable, "-m", "fuzz.guided", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        found = sorted(path for path in Path(directory).iterdir() if path.name.startswith(("crash-", "timeout-", "oom-")))
        if done.returncode or found:
            inputs = [f"--input {path.read_bytes().hex() or '00'}" for path in found]
            commands = "".join(f"\n  python -m fuzz bytes {each}" for each in inputs)
            told = f"led by coverage, exit code {done.returncode}:\n{done.stdout[-4000:]}{commands}"
            raise Failure(told, next(iter(inputs), None))
    return _number_of_runs(done.stdout)


def _number_of_runs(text: str) -> int:
    """libFuzzer's last line: ``Done 1000 runs in 12 second(s)``."""
    words = next((line.split() for line in reversed(text.splitlines()) if line.startswith("Done ")), [])
    return int(words[1]) if len(words) > 1 else 0


def main(directory: str, seed: str, runs: str, seconds: str, target: str) -> None:
    """In the process of its own; never returns."""
    import atheris

    logging.getLogger("arena").setLevel(logging.CRITICAL)  # what is damaged is reported a thousand times
    module, _, name = target.partition(":")
    with atheris.instrument_imports(include=["arena", module]):
        function = getattr(import_module(module), name)

    Path(directory, "corpus").mkdir()
    rng = random.Random(seed)
    for kind in range(SEEDS):  # the first draw, of four bits, is which kind of damage it is
        Path(directory, "corpus", str(kind)).write_bytes(bytes([kind << 4]) + rng.randbytes(200))
    options = [
        f"-runs={runs}", f"-max_total_time={seconds}", f"-seed={int(seed) % 2**31 or 1}", f"-artifact_prefix={directory}/",
        f"-max_len={INPUT_BYTES_MAX}", f"-timeout={CASE_LIMIT_S}", "-rss_limit_mb=8192", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, f"{directory}/corpus"], lambda data: function(Choices(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
