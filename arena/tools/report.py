"""What the demo has measured, and how it is shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from arena.tools.transports import Counters

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


STEPS_ENOUGH = 10
LEGEND = (
    "writer: until the send returns; last worker: until it has the image; engine CPU, copied: by the writer; "
    "fallbacks: what the arena did not take, small buffers apart"
)


@dataclass(frozen=True)
class Sample:
    """One step that brought an image."""

    payload: str
    nbytes: int
    writer_ms: float
    last_worker_ms: float
    engine_cpu_ms: float
    bytes_copied: int


@dataclass(frozen=True)
class Row:
    """What one transport did with the images of one size; times and bytes are per step that brought an image."""

    size: str
    transport: str
    steps: int
    megabytes: float
    writer_ms: float
    last_worker_ms: float
    engine_cpu_ms: float
    megabytes_copied: float
    fallbacks: dict[str, int]

    @property
    def fallbacks_total(self) -> int:
        """All fallbacks but those of buffers that are too small to be worth a slot."""
        return sum(count for reason, count in self.fallbacks.items() if reason != "small")


@dataclass
class Result:
    """The whole run."""

    workers: int
    seed: int
    rows: list[Row] = field(default_factory=list)
    tensors_verified: int = 0
    wrong: list[str] = field(default_factory=list)
    slots_leaked: int | None = None
    lookups: int = 0
    """Images that were looked up in a cache, where half of them repeat."""
    hits: int = 0

    @property
    def ok(self) -> bool:
        """Every tensor arrived, and stayed, as it was sent, and no slot is missing at the end."""
        return not self.wrong and not self.slots_leaked

    def verdict(self) -> str:
        """One line."""
        if self.wrong:
            return f"WRONG: {len(self.wrong)} checksums differ, first: {self.wrong[0]}"
        if self.slots_leaked:
            return f"LEAK: {self.slots_leaked} arena slots are still taken after all requests have ended"
        verified = f"all {self.tensors_verified} checksums right"
        if self.lookups:
            return f"{verified}; {self._repeats()}"
        largest = {row.transport: row for row in self.rows if row.size == self.rows[-1].size}
        arena = largest.pop("arena", None)
        if arena is None or not largest:
            return verified
        gains = ", ".join(f"{_gain(row, arena)} than {name}" for name, row in largest.items())
        of = "the worker" if self.workers == 1 else f"the last of {self.workers} workers"
        return f"arena: {verified}; at {arena.size} {of} has the image {gains}{self._how_sure()}"

    def _repeats(self) -> str:
        """What the cache saves at the largest size."""
        plain, cached = self.rows[-2:]
        return (
            f"{self.hits / self.lookups:.0%} of the images were cached; at {cached.size} {cached.megabytes_copied:.1f} MB "
            f"copied per image instead of {plain.megabytes_copied:.1f}, {cached.last_worker_ms:.2f} ms until the last "
            f"worker has it instead of {plain.last_worker_ms:.2f}{self._how_sure()}"
        )

    def _how_sure(self) -> str:
        """The first steps take new pages, and a busy machine disturbs the others: a median needs some."""
        fewest = min(row.steps for row in self.rows)
        return "" if fewest >= STEPS_ENOUGH else f" (some rows are of {fewest} steps: --seconds longer for firm figures)"

    def as_json(self) -> dict[str, object]:
        """Everything, for `--json`."""
        return {**asdict(self), "ok": self.ok, "verdict": self.verdict()}


def summarise(size: str, name: str, samples: Sequence[Sample], counters: Counters) -> Row:
    """Medians per kind of payload, then their mean, so that rounds cut short weigh no kind more than another."""
    kinds: dict[str, list[Sample]] = {}
    for sample in samples:
        kinds.setdefault(sample.payload, []).append(sample)

    def typical(figure: Callable[[Sample], float]) -> float:
        return statistics.mean(statistics.median(map(figure, alike)) for alike in kinds.values())

    return Row(
        size,
        name,
        len(samples),
        typical(lambda sample: sample.nbytes / 1e6),
        typical(lambda sample: sample.writer_ms),
        typical(lambda sample: sample.last_worker_ms),
        typical(lambda sample: sample.engine_cpu_ms),
        typical(lambda sample: sample.bytes_copied / 1e6),
        dict(counters.fallbacks),
    )


def _gain(other: Row, arena: Row) -> str:
    ratio = other.last_worker_ms / arena.last_worker_ms
    return f"{ratio:.1f}x sooner" if ratio >= 1 else f"{1 / ratio:.1f}x later"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def show(result: Result, page: Console) -> None:
    """The table, what its columns mean, and the verdict: one line, except where a terminal must break it."""
    page.print(table(result))
    page.print(LEGEND, style="dim", highlight=False)
    page.print(result.verdict(), soft_wrap=not page.is_terminal, markup=False, highlight=False)


def table(result: Result) -> Table:
    """One line per size and transport; fits into 80 columns."""
    from rich import box
    from rich.table import Table

    shown = Table(
        title=f"per step that brings an image, workers: {result.workers}; medians",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    for heading in ("size", "transport"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("steps", "MB", "writer\nms", "last\nworker\nms", "engine\nCPU ms", "copied\nMB", "fall-\nbacks"):
        shown.add_column(heading, justify="right", no_wrap=True)
    previous = None
    for row in result.rows:
        if previous not in (None, row.size):
            shown.add_section()
        shown.add_row(
            "" if row.size == previous else row.size,
            row.transport,
            str(row.steps),
            f"{row.megabytes:.1f}",
            _ms(row.writer_ms),
            _ms(row.last_worker_ms),
            _ms(row.engine_cpu_ms),
            f"{row.megabytes_copied:.1f}",
            str(row.fallbacks_total),
        )
        previous = row.size
    return shown
