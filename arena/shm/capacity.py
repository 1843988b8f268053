"""How much memory there is: the limits of the file system and of the memory cgroup, read before a segment is made."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
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


@dataclass(frozen=True)
class Demand:
    """Memory that is about to be made: what it is for, how much, and how its user asks for less."""

    what: str
    nbytes: int
    less: str

    def require(self, there: int | None, where: str, more: str = "") -> None:
        """Refuses what is not there; ``more`` are other ways out."""
        if there is not None and self.nbytes > there:
            raise CapacityError(
                f"{self.what} of {self.nbytes} bytes does not fit into the {there} bytes {where}: {self.less}{more}"
            )


def check_file_system(demand: Demand, directory: str = SHM_DIRECTORY) -> None:
    """Refuses a named file that its file system cannot hold: a store into it would end the process by SIGBUS.

    Raises:
        CapacityError: with the numbers and the ways out.
    """
    try:
        free = file_system_free_bytes(directory)
    except OSError as error:
        raise CapacityError(
            f"{demand.what} cannot be made in {directory}: {error.strerror} (errno {error.errno}): mount a tmpfs there, or "
            "use backing='memfd', which does without"
        ) from error
    demand.require(
        free,
        f"free in {directory}",
        ", use backing='memfd', which has no such limit, or enlarge it (docker: --shm-size or --ipc=host; Kubernetes: an "
        "emptyDir with medium: Memory)",
    )


def check_machine(demand: Demand) -> None:
    """Refuses pages that are all taken at once and are not there: the kernel's answer would be the OOM killer.

    Raises:
        CapacityError: with the numbers and the ways out.
    """
    demand.require(available_bytes(), "available on this machine")


def check_cgroups(demand: Demand, *, populated: bool, groups: Iterable[CgroupMemory] | None = None) -> None:
    """Compares a demand with the memory cgroups.

    Lazy pages that are never used cost nothing, and the use counts cache that the kernel gives back, so a lack of
    headroom is one warning.  Pages that are all taken at once and can never fit are an error.

    Raises:
        CapacityError: ``populated``, and a group's limit is smaller.
    """
    groups = list(memory_cgroups() if groups is None else groups)
    if populated:
        for group in groups:
            where = f"that the memory cgroup {group.path} allows"
            demand.require(group.limit_bytes, where, ", or raise the container's memory limit")
    tightest = min(groups, key=lambda group: group.limit_bytes - group.used_bytes, default=None)
    if tightest is not None and demand.nbytes > tightest.limit_bytes - tightest.used_bytes:
        log.warning(
            "%s of %d bytes, in the memory cgroup %s with a limit of %d bytes of which %d are used: if all of it is used, "
            "and none of that is cache, the kernel ends a process; %s, or raise the container's memory limit",
            demand.what, demand.nbytes, tightest.path, tightest.limit_bytes, tightest.used_bytes, demand.less,
        )  # fmt: skip
