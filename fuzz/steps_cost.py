"""What the crash points, or the tracing, cost when they are off: the native code built with and without, measured in turns.

``python -m fuzz.steps_cost`` and ``python -m fuzz.steps_cost trace``
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

CSRC = Path(__file__).parent.parent / "csrc"
SOURCES = ["steps_cost.c", "arena_steps.c", "arena_trace.c", "arena_map.c", "arena_ring.c", "arena_slots.c"]
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread"]  # as the extension is built
ROUNDS = 25
MESSAGES = 1_000_000
STEPS, TRACE = "-DARENA_NO_STEPS", "-DARENA_NO_TRACE"  # what leaves them out


def build(folder: Path, left_out: str = STEPS) -> tuple[Path, Path]:
    """Two programs: with the steps, or the tracing, and without."""
    programs = folder / "with", folder / "without"
    for program, flags in zip(programs, ([], [left_out])):
        sources = [str(CSRC / name) for name in SOURCES]
        subprocess.run(["cc", *FLAGS, *flags, f"-I{CSRC}", *sources, "-o", str(program)], check=True)
    return programs


def run(program: Path, messages: int) -> tuple[float, int]:
    """Processor time per message in nanoseconds, and how many steps a message has."""
    ns, steps = subprocess.run([str(program), str(messages)], check=True, capture_output=True, text=True).stdout.split()
    return float(ns), int(steps)


def compare(
    rounds: int = ROUNDS, messages: int = MESSAGES, left_out: str = STEPS
) -> tuple[list[float], list[float], int]:
    """Nanoseconds per message with them and without, a pair per round; and the number of steps."""
    with TemporaryDirectory(prefix="steps-cost-") as folder:
        with_steps, without = build(Path(folder), left_out)
        pairs = [(run(with_steps, messages), run(without, messages)) for _ in range(rounds)]
    return [a for (a, _), _ in pairs], [b for _, (b, _) in pairs], pairs[0][0][1]


def main() -> None:
    """Prints medians and quartiles."""
    if sys.argv[1:] == ["trace"]:
        tell_of_trace()
        return
    with_steps, without, steps = compare()
    differences = [(a - b) / steps for a, b in zip(with_steps, without)]
    for name, times in (
        (f"a message with its {steps} steps", with_steps), ("a message without", without), ("a step", differences),
    ):  # fmt: skip
        tell(name, times)


def tell_of_trace() -> None:
    """A message has one release, which is the one thing that the C code logs by itself."""
    with_trace, without, _ = compare(left_out=TRACE)
    tell("a message, tracing off", with_trace)
    tell("a message without tracing", without)
    tell("the difference", [a - b for a, b in zip(with_trace, without)])


def tell(name: str, times: list[float]) -> None:
    low, _, high = quantiles(times, n=4)
    print(f"{name:<30} {median(times):6.2f} ns (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
