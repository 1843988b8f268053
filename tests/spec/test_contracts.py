"""The arithmetic under the protocol, for all values: z3 on bit vectors, CrossHair on the pure modules, Hypothesis on the C.

A contract here is a function with an `assert` for its last word; `crosshair check` looks for arguments that break it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import z3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ring_arithmetic import PAD, REWIND_BYTES, find
from ring_arithmetic_in_c import find_in_c, run_in_c, run_in_python

from arena.errors import CorruptError
from arena.message import codec
from arena.message.codec import Buffer, Kind
from arena.protocol.ring import record_footprint
from arena.protocol.slots import Grant
from arena.shm.layout import PAGE, PID_BITS, SERIAL_BITS, START_BITS, MemberWord, State
from arena.shm.native import lib

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

states = st.sampled_from(State)
words = st.integers(0, 2**64 - 1)


# ---- member words ---------------------------------------------------------------------------------------------------


def test_member_words_pack_and_unpack_for_all_values() -> None:
    """The same shifts on bit vectors: the four fields do not touch, and nothing is lost."""
    widths = {"state": 2, "pid": PID_BITS, "start": START_BITS, "serial": SERIAL_BITS}
    fields = [z3.BitVec(name, 64) for name in widths]
    in_range = [z3.ULT(field, 1 << bits) for field, bits in zip(fields, widths.values())]
    state, pid, start, serial = fields
    word = state | pid << 2 | start << (2 + PID_BITS) | serial << (2 + PID_BITS + START_BITS)
    unpacked = (
        word & 3,
        z3.LShR(word, 2) & ((1 << PID_BITS) - 1),
        z3.LShR(word, 2 + PID_BITS) & ((1 << START_BITS) - 1),
        z3.LShR(word, 2 + PID_BITS + START_BITS),
    )
    lost = z3.Or(*[found != given for found, given in zip(unpacked, fields)])
    solver = z3.Solver()
    solver.add(*in_range, lost)
    assert solver.check() == z3.unsat
    assert 2 + PID_BITS + START_BITS + SERIAL_BITS == 64


@given(
    states, st.integers(0, 2**PID_BITS - 1), st.integers(0, 2**START_BITS - 1), st.integers(0, 2**SERIAL_BITS - 1)
)
def test_the_code_packs_with_these_shifts(state: State, pid: int, start: int, serial: int) -> None:
    word = MemberWord(state, pid, start, serial)
    assert word.pack() == state | pid << 2 | start << (2 + PID_BITS) | serial << (2 + PID_BITS + START_BITS)
    assert MemberWord.unpack(word.pack()) == word


@given(words)
def test_every_word_is_somebody(word: int) -> None:
    assert MemberWord.unpack(word).pack() == word


# ---- the ring's arithmetic -----------------------------------------------------------------------------------------


@given(st.integers(0, 2**62))
def test_a_footprint_is_the_same_in_c(nbytes: int) -> None:
    assert record_footprint(nbytes) == lib.arena_record_footprint(nbytes)


def test_a_footprint_holds_its_record_for_all_lengths() -> None:
    nbytes = z3.BitVec("nbytes", 64)
    footprint = (nbytes + 15) & ~z3.BitVecVal(7, 64)
    solver = z3.Solver()
    solver.add(z3.ULT(nbytes, 1 << 63))
    solver.add(z3.Or(z3.ULT(footprint, nbytes + 8), z3.UGT(footprint, nbytes + 15), footprint & 7 != 0))
    assert solver.check() == z3.unsat


def test_room_is_right_across_the_wrap_of_positions() -> None:
    """`position - consumed` on 64 bits is the true distance, however often the counters have wrapped."""
    consumed, distance, capacity = (z3.BitVec(name, 64) for name in ("consumed", "distance", "capacity"))
    position = consumed + distance
    solver = z3.Solver()
    solver.add(z3.ULE(distance, capacity), z3.ULT(capacity, 1 << 40))
    solver.add(z3.Or(position - consumed != distance, z3.UGT(position - consumed, capacity)))
    assert solver.check() == z3.unsat


sizes = st.one_of(st.integers(0, 2040), st.integers(0, 300_000))
capacities = st.sampled_from([PAGE, 3 * PAGE, 2 * REWIND_BYTES])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(sizes, st.integers(0, 3)), max_size=60), capacities)
def test_the_twin_of_the_ring_is_the_c_code(records: list[tuple[int, int]], capacity: int) -> None:
    """The same decisions and places, record by record, with a reader that falls behind and catches up."""
    assert run_in_python(records, capacity) == run_in_c(records, capacity)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 4 * PAGE), st.integers(0, PAGE), st.one_of(words, st.integers(0, PAGE), st.just(PAD)), st.data())
def test_the_twin_refuses_what_the_c_code_refuses(position: int, ahead: int, word: int, data: st.DataObject) -> None:
    """Whatever the words of the ring are: the length where the reader stands, and the one at the start."""
    ring = {position % PAGE // 8 * 8: word}
    ring.setdefault(0, data.draw(st.one_of(words, st.integers(0, PAGE)), "at the start"))
    published = position + ahead
    assert find(position, published, PAGE, lambda at: ring.get(at, 0)) == find_in_c(position, published, PAGE, ring)


# ---- CrossHair ------------------------------------------------------------------------------------------------------


def crosshair(seconds: float, contracts: Path | str = HERE / "contracts.py") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "crosshair", "check", "--analysis_kind=asserts", f"--per_condition_timeout={seconds}",
        str(contracts),
    ]  # fmt: skip
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500)


def hypothesis_with_crosshair(examples: int, root: Path = ROOT, only: str = "") -> subprocess.CompletedProcess[str]:
    """Hypothesis on the same contracts, with so many examples of each that the solver chooses."""
    command = [
        sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--rootdir", str(root), "-k", only,
        str(root / "tests/spec/contracts_solved.py"),
    ]  # fmt: skip
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "EXAMPLES": str(examples)}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1500)


@pytest.mark.parametrize("seconds", [1, pytest.param(50, marks=[pytest.mark.deep, pytest.mark.timeout(1600)])])
def test_crosshair_finds_no_counterexample(seconds: float) -> None:
    done = crosshair(seconds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=[pytest.mark.deep, pytest.mark.timeout(1600)])])
def test_hypothesis_with_crosshair_finds_no_counterexample(examples: int) -> None:
    done = hypothesis_with_crosshair(examples)
    assert done.returncode == 0, done.stdout + done.stderr


def test_crosshair_would_find_one(tmp_path: Path) -> None:
    """The harness itself: a contract that is wrong for one value in four thousand."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "def short(nbytes: int) -> None:\n    assert 0 <= nbytes\n    assert -(-nbytes // 4096) * 4096 > nbytes\n"
    )
    done = crosshair(20, wrong)
    assert done.returncode == 1
    assert "AssertionError" in done.stdout


# Which contract each breaks, for few values; where, what, and instead of what.
FAULTS = {
    "a_record_lies_in_the_ring_and_overwrites_nothing": (
        "tests/spec/ring_arithmetic.py",
        "takes > to_end or",
        "takes > to_end + 8 or",
    ),
    "a_reader_stays_in_what_was_published": (
        "tests/spec/ring_arithmetic.py",
        "footprint(nbytes) > available",
        "nbytes > available",
    ),
    "a_record_gives_out_its_own_bytes_only": (
        "arena/message/codec.py",
        "sum(inline_bytes) != len",
        "sum(inline_bytes) > len",
    ),
    "a_table_names_its_own_grants_only": (
        "arena/message/codec.py",
        "buffer.grant >= self._n_grants",
        "buffer.grant > self._n_grants",
    ),
    "parts_do_not_overlap": (
        "arena/shm/layout.py",
        "return align(self.n_slots * WORD_BYTES, LINE)",
        "return self.n_slots * WORD_BYTES",
    ),
    "extents_do_not_overlap": (
        "arena/protocol/extents.py",
        "self.used_bytes -= length",
        "self.used_bytes -= PAGE",
    ),
}
PURE = (
    "tests/spec/contracts.py", "tests/spec/ring_arithmetic.py", "arena/errors.py", "arena/message/codec.py",
    "arena/protocol/extents.py", "arena/shm/layout.py", "tests/spec/contracts_solved.py",
)  # fmt: skip


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("contract", FAULTS)
def test_crosshair_finds_a_fault_in_what_it_searches(contract: str, tmp_path: Path) -> None:
    """In a copy of the pure modules."""
    where, right, wrong = FAULTS[contract]
    for name in PURE:
        text = (ROOT / name).read_text()
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace(right, wrong) if name == where else text)
        assert name != where or right in text
    contracts = tmp_path / "tests/spec/contracts.py"
    (line,) = [number for number, text in enumerate(contracts.read_text().splitlines(), 1) if f"def {contract}(" in text]
    done = crosshair(60, f"{contracts}:{line}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError" in done.stdout
    done = hypothesis_with_crosshair(40, tmp_path, contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout


# ---- records --------------------------------------------------------------------------------------------------------

grants = st.lists(st.builds(Grant, st.integers(0, 2**32 - 1), words), max_size=5)
buffers = st.lists(
    st.builds(Buffer, st.sampled_from([Kind.INLINE_TENSOR, Kind.INLINE_BYTES]), st.just(0), st.just(0), st.integers(0, 99)),
    max_size=4,
)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=80), grants, buffers)
def test_a_record_says_what_was_packed(number: int, pickled: bytes, granted: list[Grant], table: list[Buffer]) -> None:
    head, packed = codec.pack(0, number, [pickled], granted, table, len(table))
    record = codec.Record(memoryview(head + packed + pickled))
    assert record.number == number
    assert record.grants() == granted
    assert record.buffers(record.table()) == table


@given(st.binary(max_size=40), grants, st.integers(0, 10**6), st.integers(1, 255))
def test_a_damaged_head_grants_nothing(pickled: bytes, granted: list[Grant], at: int, change: int) -> None:
    """A wrong byte in header or grants is found before any slot is released for it."""
    head, packed = codec.pack(0, 7, [pickled], granted, [], 0)
    damaged = bytearray(head + packed + pickled)
    damaged[at % len(head)] ^= change
    with pytest.raises(CorruptError):
        codec.Record(memoryview(damaged)).grants()
