"""Figures of one GPU: `python tests/gpu/measure.py --json FILE`.

Prints tables; the file has the same and is rewritten after every section, so that an early end keeps what there is.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from gpu_support import GPU, MIB, N_GPUS, WAIT_S, answer, hold_up, initialised_device, readers
from rich.console import Console
from rich.table import Table
from stability import change_after_death

from arena import ArenaConfig, MessageQueue
from arena.config import Pin
from arena.device.pinning import Pinning

Row = dict[str, Any]
SIZES_MIB = (16, 64, 200)
CHUNKS_MIB = (2, 16, 64, 256, 1024)
REGISTERED_MIB = 1024
ROUNDS = 25
WARM_UP = 5


def copy_each_message(queue: MessageQueue, pipe: Connection) -> None:
    """A reader: each message to the GPU; tells the device's time for the copy, and whether the source was pinned."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(ROUNDS * len(SIZES_MIB)):
        tensor = queue.dequeue(WAIT_S)
        pinned = tensor.is_pinned()
        begin.record()
        on_gpu = queue.to_device(tensor, GPU)
        end.record()
        end.synchronize()
        pipe.send((begin.elapsed_time(end), pinned))
        del tensor, on_gpu
        queue.flush_releases()


def transfers(name: str, arena: ArenaConfig | None, n_readers: int = 1) -> Iterator[Row]:
    """Time from `enqueue` until the last reader has the bytes on its GPU, and the rate of the copies alone."""
    with readers([copy_each_message] * n_readers, arena) as (queue, children):
        for mib in SIZES_MIB:
            source = torch.randint(0, 256, (mib * MIB,), dtype=torch.uint8)
            total_ms, copy_ms, pinned = [], [], True
            for _ in range(ROUNDS):
                start = time.perf_counter()
                queue.enqueue(source, WAIT_S)
                told = [answer(pipe) for _, pipe in children]
                total_ms.append((time.perf_counter() - start) * 1e3)
                copy_ms.append(max(ms for ms, _ in told))
                pinned = pinned and all(is_pinned for _, is_pinned in told)
            copy = statistics.median(copy_ms[WARM_UP:])
            total = statistics.median(total_ms[WARM_UP:])
            yield {
                "way": name,
                "MiB": mib,
                "readers": n_readers,
                "pinned": pinned,
                "first ms": total_ms[0],
                "enqueue to GPU ms": total,
                "copy ms": copy,
                "copy GB/s": mib * MIB / copy / 1e6,
                "all readers GB/s": n_readers * mib * MIB / total / 1e6,
            }


def host_to_device() -> Iterator[Row]:
    yield from transfers("arena, pinned", arena_with("auto"))
    yield from transfers("arena, pageable", arena_with("off"))
    yield from transfers("out of band", None)


def four_readers() -> Iterator[Row]:
    yield from transfers("arena, pinned", arena_with("auto"), n_readers=4)
    yield from transfers("arena, pageable", arena_with("off"), n_readers=4)


def arena_with(pin: Pin) -> ArenaConfig:
    return ArenaConfig(capacity_bytes=4 * max(SIZES_MIB) * MIB, pin=pin)


@contextmanager
def mapped(kind: str) -> Iterator[torch.Tensor]:
    """New shared memory on pages of a kind."""
    flags = getattr(os, "MFD_HUGETLB", 4) if kind == "hugetlb" else 0
    fd = os.memfd_create("measure", os.MFD_CLOEXEC | flags)
    try:
        os.ftruncate(fd, REGISTERED_MIB * MIB)
        pages = mmap.mmap(fd, REGISTERED_MIB * MIB)
        if kind == "transparent huge":
            pages.madvise(mmap.MADV_HUGEPAGE)
        yield torch.frombuffer(pages, dtype=torch.uint8)
    finally:
        os.close(fd)


def registration() -> Iterator[Row]:
    device = initialised_device()
    for kind in ("small", "transparent huge", "hugetlb"):
        for prefaulted in (False, True):
            for mib in CHUNKS_MIB:
                row: Row = {"pages": kind, "prefaulted": prefaulted, "chunk MiB": mib}
                try:
                    with mapped(kind) as memory:
                        if prefaulted:
                            memory.zero_()
                        pinning = Pinning(device, memory.data_ptr(), memory.nbytes, chunk_bytes=mib * MIB)
                        start = time.perf_counter()
                        done = pinning.ensure(0, memory.nbytes)
                        row["register ms/GiB"] = (time.perf_counter() - start) * 1e3
                        start = time.perf_counter()
                        pinning.unpin()
                        row["unregister ms/GiB"] = (time.perf_counter() - start) * 1e3
                        row["outcome"] = "pinned" if done else pinning.reason_unpinned
                except (OSError, ValueError) as error:
                    row["outcome"] = str(error)
                yield row


def probes() -> Iterator[Row]:
    """What the driver does where its documents are silent or vague."""
    device, chunk = initialised_device(), 16 * MIB
    for name, pinned in (("copy across two registered chunks", 2), ("copy across a registered and another chunk", 1)):
        memory = torch.frombuffer(mmap.mmap(-1, 2 * chunk), dtype=torch.uint8).fill_(7)
        pinning = Pinning(device, memory.data_ptr(), memory.nbytes, chunk_bytes=chunk)
        pinning.ensure(0, pinned * chunk)
        try:
            on_gpu = memory[chunk // 2 : chunk + chunk // 2].to(GPU, non_blocking=True)
            torch.cuda.synchronize()
            outcome = "all bytes right" if bool(torch.all(on_gpu == 7)) else "WRONG BYTES"
        except RuntimeError as error:
            outcome = str(error).splitlines()[0]
        pinning.unpin()
        yield {"probe": name, "outcome": outcome}
    yield {"probe": "a mark in a busy stream, and a question about it", "outcome": event_costs()}
    yield {"probe": "register a read-only mapping", "outcome": read_only(True)}
    yield {"probe": "register a read-only mapping, not saying so", "outcome": read_only(False)}


def event_costs() -> str:
    """What a look at a shut gate costs its thread."""
    device, stream, rounds = initialised_device(), torch.cuda.Stream(GPU), 1000
    hold_up(stream)
    start = time.perf_counter()
    marks = [device.record(stream) for _ in range(rounds)]
    recorded = time.perf_counter()
    is_done = [mark.query() for mark in marks]
    asked = time.perf_counter()
    stream.synchronize()
    costs = f"{(recorded - start) / rounds * 1e6:.1f} us, {(asked - recorded) / rounds * 1e6:.1f} us"
    return f"{costs}, of {rounds} each; {sum(is_done)} were done already"


def read_only(said: bool) -> str:
    """Outcome of registering memory that this process may only read."""
    libc_address, device = map_read_only(MIB), initialised_device()
    pinning = Pinning(device, libc_address, MIB, read_only=said)
    outcome = "registered" if pinning.ensure(0, MIB) else str(pinning.reason_unpinned)
    pinning.unpin()
    return outcome


def map_read_only(nbytes: int) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fd = os.memfd_create("measure", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    address: int = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    return address


def death() -> Iterator[Row]:
    for attempt in range(3):
        yield {"attempt": attempt + 1, **change_after_death()}


def environment() -> Row:
    shmem = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return {
        "device": torch.cuda.get_device_name(0),
        "devices": N_GPUS,
        "torch": torch.__version__,
        "runtime": torch.version.cuda or torch.version.hip,
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "shmem_enabled": shmem.read_text().strip() if shmem.exists() else "?",
    }


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "changes of memory after the death of a reader whose GPU writes to it": death,
    "one reader: host to device": host_to_device,
    "four readers on one GPU": four_readers,
    "cost of registration": registration,
    "probes": probes,
}


def show(console: Console, title: str, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*columns, title=title)
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    path: Path = parser.parse_args().json
    if N_GPUS == 0:
        print("no CUDA or ROCm device on this machine: nothing to measure", file=sys.stderr)
        return 0
    console, failed = Console(width=160), False
    report: dict[str, Any] = {"environment": environment()}
    console.print(report["environment"])
    for title, section in SECTIONS.items():
        rows: list[Row] = []
        try:
            for row in section():
                rows.append(row)
        except Exception as error:  # whatever it is, the other figures do not depend on it
            rows.append({"failed": f"{type(error).__name__}: {error}"})
            failed = True
        report[title] = rows
        path.write_text(json.dumps(report, indent=1))
        show(console, title, rows)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
