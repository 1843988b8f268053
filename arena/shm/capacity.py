"""How much memory there is: the limits of the file system and of the memory cgroup, read before a segment is made."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arena.errors import CapacityError
from arena.shm.layout import align

log = logging.getLogger("arena.shm")

SHM_DIRECTORY = "/dev/shm"
HUGE_PAGE = 2 << 20


@dataclass(frozen=True)
class CgroupMemory:
    """A memory cgroup's limit and use, in bytes; ``used_bytes`` includes page cache that the kernel would give back."""

    path: Path
    limit_bytes: int
    used_bytes: int


def file_system_free_bytes(directory: str = SHM_DIRECTORY) -> int | None:
    """Free bytes of a size-limited file system; None if it has no limit (a tmpfs with ``size=0``)."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def meminfo() -> dict[str, int]:
    """Numbers of /proc/meminfo as they stand there; most are kB."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: int(rest.split()[0]) for name, rest in pairs if rest.split()}


def available_bytes() -> int | None:
    """What this machine can still give, swap included; None if it does not say."""
    info = meminfo()
    if "MemAvailable" not in info:
        return None
    return (info["MemAvailable"] + info.get("SwapFree", 0)) * 1024


def free_huge_bytes() -> int:
    """Reserved huge pages of 2 MiB that nobody has or has asked for."""
    info = meminfo()
    if info.get("Hugepagesize", 0) * 1024 != HUGE_PAGE:
        return 0
    return max(0, info["HugePages_Free"] - info["HugePages_Rsvd"]) * HUGE_PAGE


def are_huge_pages_reserved(needed_bytes: int) -> bool:
    """Whether reserved huge pages suffice: they count as used already, and in no memory cgroup."""
    return align(needed_bytes, HUGE_PAGE) <= free_huge_bytes()


def memory_cgroups(
    proc_cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[CgroupMemory]:
    """The memory cgroups that this process is in, innermost first, v1 and v2; unreadable ones are skipped."""
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if controllers == "":
            yield from _hierarchy(root, path, "memory.max", "memory.current")
            yield from _hierarchy(root / "unified", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            yield from _hierarchy(root / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _hierarchy(root: Path, path: str, limit_name: str, used_name: str) -> Iterator[CgroupMemory]:
    """The group and its parents.  In a container the path may be the host's: the root is then the group itself."""
    relative = Path(path.lstrip("/"))
    for directory in [root / relative, *(root / parent for parent in relative.parents)]:
        limit = _number(directory / limit_name)
        used = _number(directory / used_name)
        if limit is not None and used is not None:
            yield CgroupMemory(directory, limit, used)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # missing, "max", or garbage: no limit that we know of
        return None


def check_file_system(needed_bytes: int, directory: str = SHM_DIRECTORY) -> None:
    """Refuses a named segment that its file system cannot hold: a store into it would end the process by SIGBUS.

    Raises:
        CapacityError: with the numbers and the ways out.
    """
    free = file_system_free_bytes(directory)
    if free is not None and free < needed_bytes:
        raise CapacityError(
            f"a segment of {needed_bytes} bytes does not fit into {directory}, which has {free} bytes free: use "
            "backing='memfd', which has no such limit, or a smaller capacity_bytes, or enlarge it "
            "(docker: --shm-size or --ipc=host; Kubernetes: an emptyDir with medium: Memory)"
        )


def check_machine(needed_bytes: int) -> None:
    """Refuses pages that are all taken at once and are not there: the kernel's answer would be the OOM killer.

    Raises:
        CapacityError: with the numbers and the ways out.
    """
    there = available_bytes()
    if there is not None and needed_bytes > there:
        raise CapacityError(
            f"a segment of {needed_bytes} bytes cannot be populated: this machine has {there} bytes available; use a "
            "smaller capacity_bytes, or prefault='lazy'"
        )


def check_cgroup(needed_bytes: int, *, populated: bool, groups: Iterator[CgroupMemory] | None = None) -> None:
    """Compares a segment with the memory cgroup.

    Lazy pages that are never used cost nothing, and the use counts cache that the kernel gives back, so a lack of
    headroom is one warning.  Pages that are all taken at once and can never fit are an error.

    Raises:
        CapacityError: ``populated`` and the segment is larger than the limit.
    """
    groups = memory_cgroups() if groups is None else groups
    tightest = min(groups, key=lambda group: group.limit_bytes - group.used_bytes, default=None)
    if tightest is None or needed_bytes <= tightest.limit_bytes - tightest.used_bytes:
        return
    numbers = (
        f"a segment of {needed_bytes} bytes, in the memory cgroup {tightest.path} with a limit of "
        f"{tightest.limit_bytes} bytes of which {tightest.used_bytes} are used"
    )
    way_out = "use a smaller capacity_bytes or raise the container's memory limit"
    if populated and needed_bytes > tightest.limit_bytes:
        raise CapacityError(f"{numbers}, cannot be populated: {way_out}, or use prefault='lazy'")
    log.warning("%s: if all of it is used, the kernel ends a process; %s", numbers, way_out)
