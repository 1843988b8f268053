"""`python -m spec mutants`: would all this notice? Seeded faults against the detectors, as a matrix.

The faults are made by machine, one small change each (`mutants_python.py`, `mutants_c.py`): of the models of message
slots, object slots, ring, membership and rendezvous, of the atomics header, of the C code, and of `arena/protocol` and
`arena/message/leases.py`. Each runs in a copy of the tree against the detectors that can see it, the quickest first: the
searches of `mutants_detect.py`, and the tests that run the changed function, by modules. A mutant that all of them pass is
equivalent, with a reason in `mutants_equivalent.py`, or it is a hole.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from spec.mutants_c import mutants_of_code, mutants_of_header
from spec.mutants_equivalent import reason
from spec.mutants_python import Mutant, mutants_of
from spec.mutants_run import ROOT, TimedTest, Tree

HEADER = "csrc/arena_atomics.h"
CODE_NAMES = ("ring.c", "record.c", "slots.c", "objects.c", "lease.c", "lease_type.c", "tensors.c", "gates.c", "internal.h")
CODE = tuple(f"csrc/arena_{name}" for name in CODE_NAMES)
PROTOCOL = ("slots", "ring", "extents", "objects", "members", "eviction", "warmth")
PYTHON = (*(f"arena/protocol/{name}.py" for name in PROTOCOL), "arena/message/leases.py")
PARTS = {
    "message_slots": ("actions", "state"),
    "object_slots": ("actions", "state"),
    "ring": ("state", "writer", "reader"),
    "membership": ("actions", "state"),
    "rendezvous": ("state", "steps"),
}
# Each file of a model, and the detector that searches the model.
MODELS = {f"spec/models/{model}_{part}.py": model for model, parts in PARTS.items() for part in parts}
MODELS["spec/models/rendezvous_meeting.py"] = "rendezvous_meeting"
GROUPS = ("model", "header", "code", "python")

MESSAGE_SLOTS = frozenset(
    (
        "claim", "outdated", "copy", "publish", "enqueue", "has_room", "abort", "reclaim", "taken_out", "admit", "joined",
        "receive", "lease", "drop", "dma_complete", "release", "stored_done", "reader_death", "writer_death", "is_free",
    )
)  # fmt: skip
MEETING = frozenset(
    (
        "move", "opened", "alive", "is_held", "is_awaited", "counts", "may_come", "come", "fail_before", "fail_within",
        "tell", "arrive", "pass_barrier", "look", "leave", "die",
    )
)  # fmt: skip
STEPS = {"message_slots": MESSAGE_SLOTS, "rendezvous_meeting": MEETING}  # of files that hold something else, too
DETECTORS = {**MODELS, HEADER: "orders"}  # beside the tests

# The tests that hold the code. A map of what each runs selects from them for a Python function; for C see SEES.
TESTS = tuple(
    f"tests/{name}.py"
    for name in (
        "spec/test_accesses", "spec/test_slot_writer", "spec/test_slots_owed", "spec/test_slot_pages",
        "spec/test_slot_leases", "spec/test_object_writer", "spec/test_ring_ends",
        "spec/test_members_alone", "spec/test_decoder_alone", "spec/test_cut_short_alone", "spec/test_gates_alone",
        "spec/test_lockstep_ring", "spec/test_lockstep",
        "spec/test_lockstep_objects", "spec/test_lockstep_gates", "spec/test_lockstep_queue", "spec/test_contracts",
        "test_extents", "test_extents_in_chunks", "test_extents_restored", "test_cache_eviction",
        "test_cache_eviction_placings", "test_members", "test_leases", "test_gates", "test_gates_pinning",
        "test_gates_closing", "test_cache_objects", "test_cache_kept", "test_cache_in_a_queue", "test_cache_readers",
        "test_cache_threads", "test_codec", "test_queue", "test_queue_failures", "test_queue_shutdown", "test_turns",
        "test_deaths",
    )
)  # fmt: skip
SLOW_S = 5.0  # a test that takes longer is run with --all-detectors only
SLOTS = ("test_slot_writer", "test_slots_owed", "test_slot_pages", "test_slot_leases")
ENDS = ("test_accesses", "test_ring_ends", *SLOTS, "test_object_writer", "test_members_alone")
QUEUE = ("test_queue", "test_queue_failures", "test_queue_shutdown")
EVERYWHERE = (*ENDS, "test_leases", *QUEUE, "test_deaths")
CACHE = ("test_cache_objects", "test_cache_kept", "test_cache_in_a_queue", "test_cache_readers", "test_cache_threads")
OBJECTS = ("test_object_writer", "test_lockstep_objects", *CACHE)
GATES = ("test_gates_alone", "test_lockstep_gates", "test_gates", "test_gates_pinning", "test_gates_closing")
SEES = {
    **dict.fromkeys((HEADER, *MODELS), ()),
    "csrc/arena_ring.c": (*EVERYWHERE, "test_lockstep_ring", "test_lockstep_queue"),
    "csrc/arena_record.c": ("test_codec", *QUEUE),
    "csrc/arena_slots.c": (*EVERYWHERE, *OBJECTS, *GATES, "test_lockstep"),
    "csrc/arena_objects.c": OBJECTS,
    "csrc/arena_lease.c": ("test_decoder_alone", *EVERYWHERE, *OBJECTS, *GATES),
    "csrc/arena_lease_type.c": ("test_decoder_alone", *SLOTS, "test_object_writer", "test_leases"),
    "csrc/arena_tensors.c": ("test_decoder_alone", "test_slot_leases", "test_leases", *CACHE),
    "csrc/arena_gates.c": GATES,
    "csrc/arena_internal.h": (*EVERYWHERE, *GATES),
}


class Row(NamedTuple):
    """What came of a mutant: by detector "killed", "hung" or "passed", and the processor time that it took."""

    mutant: Mutant
    said: dict[str, str]
    cpu_s: float

    @property
    def verdict(self) -> str:
        """killed, equivalent, or alive."""
        if any(answer != "passed" for answer in self.said.values()):
            return "killed"
        return "equivalent" if reason(self.mutant) else "alive"


def mutants(group: str) -> list[Mutant]:
    """All mutants of a group."""
    if group == "header":
        return list(mutants_of_header(HEADER, (ROOT / HEADER).read_text()))
    if group == "code":
        return [each for path in CODE for each in mutants_of_code(path, (ROOT / path).read_text())]
    return [
        each
        for path in (PYTHON if group == "python" else MODELS)
        for each in mutants_of(path, (ROOT / path).read_text(), STEPS.get(MODELS.get(path, "")))
    ]


def measured(trees: Sequence[Tree], pool: ThreadPoolExecutor) -> list[TimedTest]:
    """The tests as they are on the tree without a fault: how long each takes, and which functions it runs."""
    queue, console = deque(TESTS), Console(stderr=True)

    def take(tree: Tree) -> Iterator[TimedTest]:
        while queue:
            module = queue.popleft()
            code = tree.call("coverage", 1200, modules=[module], sources=PYTHON, report="coverage.json")
            found = json.loads((tree.folder / "coverage.json").read_text())
            if code is None or not found:
                raise RuntimeError(f"without any fault {module} does not run: {tree.output()}")
            for name, each in found.items():
                if each["failed"]:
                    console.print(f"left out, as it fails without any fault: {name}")
                else:
                    yield TimedTest(name, each["seconds"], frozenset(each["functions"]))

    return [test for tests in pool.map(lambda tree: list(take(tree)), trees) for test in tests]


def mapped(trees: Sequence[Tree], pool: ThreadPoolExecutor, file: Path | None) -> list[TimedTest]:
    """`measured`, or what it was when the file was written."""
    if file is not None and file.exists():
        return [TimedTest(name, seconds, frozenset(functions)) for name, seconds, functions in json.loads(file.read_text())]
    tests = measured(trees, pool)
    if file is not None:
        file.write_text(json.dumps([(test.name, test.seconds, sorted(test.functions)) for test in tests]))
    return tests


def tests_for(mutant: Mutant, tests: Sequence[TimedTest], *, slow: bool) -> list[TimedTest]:
    """Those that can see a mutant."""
    tests = [test for test in tests if slow or test.seconds < SLOW_S]
    if mutant.path in SEES:
        return [test for test in tests if test.module in SEES[mutant.path]]
    return [test for test in tests if mutant.function in test.functions]


@click.command()
@click.option("--group", "groups", multiple=True, type=click.Choice(GROUPS), help="Only these mutants; all by default.")
@click.option("--sample", type=int, default=0, help="Only so many, drawn at random.")
@click.option("--only", default="", help="Only mutants with this text in their names, such as a path or a line.")
@click.option("--seed", type=int, default=None, help="Of the sample; printed.")
@click.option("--all-detectors", is_flag=True, help="Not only up to the first that notices, and slow ones, too.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="How many at a time.")
@click.option("--map", "file", type=click.Path(path_type=Path), help="Where to keep what each test runs, for the next time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def command(
    groups: Sequence[str], sample: int, only: str, seed: int | None, all_detectors: bool, processes: int,
    file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the detectors against seeded faults; exit code 1 if one survives that is not known to be equivalent."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    chosen = [each for group in groups or GROUPS for each in mutants(group) if only in each.name]
    of_all = len(chosen)
    if sample and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    console = Console(stderr=as_json)
    console.print(f"{len(chosen)} of {of_all} mutants, seed {seed}")
    rows = []
    start = time.monotonic()
    for row in run(chosen, processes, file, all_detectors=all_detectors):
        rows.append(row)
        if as_json:
            about = {"mutant": row.mutant.name, "detectors": row.said, "verdict": row.verdict, "reason": reason(row.mutant)}
            click.echo(json.dumps({**about, "cpu_s": round(row.cpu_s, 1)}))
    if not as_json:
        show(console, rows)
    counts = Counter(row.verdict for row in rows)
    totals = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    cpu_s = sum(row.cpu_s for row in rows)
    console.print(f"{totals}; {time.monotonic() - start:.0f} s, of processor time {cpu_s:.0f} s")
    for row in rows:
        if row.verdict == "alive":  # the matrix may be too wide to be read
            console.print(f"alive: {row.mutant.name}", soft_wrap=True, markup=False)
    if counts["alive"]:
        sys.exit(1)


def run(chosen: Sequence[Mutant], processes: int, file: Path | None, *, all_detectors: bool) -> Iterator[Row]:
    """Each mutant against the detectors that can see it, some at a time; in order."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        trees = [stack.enter_context(Tree(folder / str(number))) for number in range(processes)]
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        is_mapped = any(SEES.get(mutant.path, True) for mutant in chosen)
        tests = mapped(trees, pool, file) if is_mapped else []
        free: SimpleQueue[Tree] = SimpleQueue()
        for tree in trees:
            free.put(tree)

        def one(mutant: Mutant) -> Row:
            tree = free.get()
            try:
                start = tree.cpu_s
                asked = tests_for(mutant, tests, slow=all_detectors)
                checks = [DETECTORS[mutant.path]] if mutant.path in DETECTORS else []
                said = tree.runs(mutant, checks, asked, first_only=not all_detectors)
                return Row(mutant, said, tree.cpu_s - start)
            finally:
                free.put(tree)

        yield from pool.map(one, chosen)


def show(console: Console, rows: Sequence[Row]) -> None:
    """The matrix: x killed, . passed, blank where the detector does not look or was not asked."""
    marks = {"killed": "x", "hung": "x (hung)", "passed": "."}
    names = sorted({name for row in rows for name in row.said})
    table = Table("mutant", *names, "", highlight=False)
    for row in rows:
        cells = [marks.get(row.said.get(name, ""), "") for name in names]
        table.add_row(row.mutant.name, *cells, reason(row.mutant) if row.verdict == "equivalent" else row.verdict)
    console.print(table)
