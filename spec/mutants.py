"""`python -m spec mutants`: would all this notice? Seeded faults against the detectors, as a matrix.

The faults are made by machine, one small change each (`mutants_python.py`, `mutants_c.py`): of the model of the message
slots, of the atomics header, of the C code of ring and slots, and of `arena/protocol` and `arena/message/leases.py`. Each
runs in a copy of the tree against every detector that can see it. A mutant that all of them pass is equivalent, with a
reason in `mutants_equivalent.py`, or it is a hole.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from spec.mutants_c import mutants_of_code, mutants_of_header
from spec.mutants_equivalent import reason
from spec.mutants_python import Mutant, mutants_of
from spec.mutants_run import DETECTORS, ROOT, Detector, Tree

HEADER = "csrc/arena_atomics.h"
CODE = ("csrc/arena_ring.c", "csrc/arena_slots.c", "csrc/arena_internal.h")
PYTHON = ("arena/protocol/slots.py", "arena/protocol/ring.py", "arena/protocol/extents.py", "arena/message/leases.py")
MODEL = "spec/models/message_slots_actions.py"
GROUPS = ("model", "header", "code", "python")


def mutants(group: str) -> list[Mutant]:
    """All mutants of a group."""
    if group == "header":
        return list(mutants_of_header(HEADER, (ROOT / HEADER).read_text()))
    if group == "code":
        return [each for path in CODE for each in mutants_of_code(path, (ROOT / path).read_text())]
    paths = PYTHON if group == "python" else (MODEL, "spec/models/message_slots_state.py")
    functions = MODEL_FUNCTIONS if group == "model" else None
    return [each for path in paths for each in mutants_of(path, (ROOT / path).read_text(), functions)]


MODEL_FUNCTIONS = frozenset(
    (
        "claim", "outdated", "copy", "publish", "enqueue", "has_room", "abort", "reclaim", "taken_out", "admit", "joined",
        "receive", "lease", "drop", "dma_complete", "release", "stored_done", "reader_death", "writer_death", "is_free",
    )
)  # fmt: skip


def detectors_for(deep: bool) -> list[Detector]:
    return [each for each in DETECTORS if deep or not each.is_deep]


def verdict(mutant: Mutant, said: dict[str, str]) -> str:
    """killed, equivalent, or alive."""
    if any(answer != "passed" for answer in said.values()):
        return "killed"
    return "equivalent" if reason(mutant) else "alive"


@click.command()
@click.option("--group", "groups", multiple=True, type=click.Choice(GROUPS), help="Only these mutants; all by default.")
@click.option("--sample", type=int, default=12, show_default=True, help="How many, drawn at random; 0 for all.")
@click.option("--only", default="", help="Only mutants with this text in their names, such as a path or a line.")
@click.option("--seed", type=int, default=None, help="Of the sample; printed.")
@click.option("--deep", is_flag=True, help="The slow detectors too, and every one of them for the whole matrix.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def command(groups: Sequence[str], sample: int, only: str, seed: int | None, deep: bool, as_json: bool) -> None:
    """Run the detectors against seeded faults; exit code 1 if one survives that is not known to be equivalent."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    chosen = [each for group in groups or GROUPS for each in mutants(group) if only in each.name]
    of_all = len(chosen)
    if sample and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    console = Console(stderr=as_json)
    console.print(f"{len(chosen)} of {of_all} mutants, seed {seed}")
    names = [each.name for each in detectors_for(deep)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(Path(folder) / "tree")
        for mutant in chosen:
            start = time.monotonic()
            said = tree.runs(mutant, detectors_for(deep), all_of_them=deep)
            rows.append((mutant, said, verdict(mutant, said)))
            if as_json:
                about = {"mutant": mutant.name, "detectors": said, "verdict": rows[-1][2], "reason": reason(mutant)}
                click.echo(json.dumps({**about, "seconds": round(time.monotonic() - start, 1)}))
    if not as_json:
        show(console, names, rows)
    alive = [mutant.name for mutant, _, outcome in rows if outcome == "alive"]
    counts = Counter(outcome for _, _, outcome in rows)
    console.print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    if alive:
        sys.exit(1)


def show(console: Console, names: Sequence[str], rows: Sequence[tuple[Mutant, dict[str, str], str]]) -> None:
    """The matrix: x killed, . passed, blank where the detector does not look."""
    marks = {"killed": "x", "hung": "x (hung)", "passed": "."}
    table = Table("mutant", *names, "", highlight=False)
    for mutant, said, outcome in rows:
        cells = ["compiler" if "compiler" in said else marks.get(said.get(name, ""), "") for name in names]
        table.add_row(mutant.name, *cells, reason(mutant) if outcome == "equivalent" else outcome)
    console.print(table)
