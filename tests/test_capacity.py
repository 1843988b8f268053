"""Too little memory: an error with the numbers and the ways out, a fallback or one warning; never a SIGBUS."""

from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import WATCHDOG_S, queue_of

from arena import ArenaConfig, MessageQueue
from arena.errors import CapacityError
from arena.shm import capacity, hugepages
from arena.shm.capacity import CgroupMemory, Demand, check_cgroups, check_file_system, check_machine, memory_cgroups
from arena.shm.native import ffi

MIB = 1 << 20


def demand(nbytes: int) -> Demand:
    return Demand("a segment", nbytes, "use less")


# ---- a small /dev/shm -----------------------------------------------------------------------------------------------


def in_small_shm(size: str, program: str) -> str:
    """Runs a program where /dev/shm is a tmpfs of that size; its output."""
    return with_mount(f"-t tmpfs -o size={size} tmpfs /dev/shm", program)


def with_mount(mount: str, program: str) -> str:
    """Runs a program where that is mounted; its output."""
    script = f'mount {mount} && exec "$0" -W error -c "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


BEGIN = """
import os, torch
from arena import ArenaConfig, MessageQueue
from arena.errors import CapacityError
def ends(**options):
    writer = MessageQueue(1, 1, **options)
    return writer, MessageQueue.create_from_handle(writer.export_handle(), 0)
def refused(**options):
    try:
        MessageQueue(1, 1, **options)
    except CapacityError as error:
        return str(error)
    raise SystemExit("not refused")
def used():
    status = os.statvfs("/dev/shm")
    return (status.f_blocks - status.f_bfree) * status.f_frsize
"""


@pytest.mark.parametrize("size", ["1m", "64m"])
def test_memfd_needs_no_dev_shm(size: str) -> None:
    """The default arena, a tensor larger than /dev/shm, and the ring's overflow."""
    output = in_small_shm(
        size,
        BEGIN
        + """
writer, reader = ends()
big = torch.arange(20_000_000)
writer.enqueue([big, bytes(30 << 20)])
received = reader.dequeue(60)
print(torch.equal(received[0], big), received[1] == bytes(30 << 20), writer.statistics().diverted_total, used())
text = refused(arena=ArenaConfig(backing="shm"))
print("backing='memfd'" in text, "--shm-size" in text, "bytes free" in text, used(), os.listdir("/dev/shm"))
""",
    )
    assert output == "True True 1 0\nTrue True True 0 []\n"


def test_two_segments_that_fit_only_one_by_one() -> None:
    """Each passes the check while the other's pages are not taken yet: then one falls back, and nothing faults."""
    output = in_small_shm(
        "16m",
        BEGIN
        + """
import logging
logging.disable(logging.WARNING)
options = dict(arena=ArenaConfig(10 << 20, slots=64, backing="shm"), max_chunk_bytes=1 << 20, max_chunks=2)
pairs = [ends(**options), ends(**options)]
held = []
for i in range(80):
    for writer, reader in pairs:
        writer.enqueue([i, torch.full((300_000,), i, dtype=torch.uint8), bytes(200_000)])
        held.append((i, reader.dequeue(60)))
assert all(number == i and (tensor == i).all() for i, (number, tensor, _) in held)
reasons = [dict(writer.statistics().fallback_total) for writer, _ in pairs]
print(sum(writer.statistics().diverted_total for writer, _ in pairs) > 20)
print("no_memory" in reasons[0] or "no_memory" in reasons[1])
text = refused(**options)
print("does not fit" in text or "cannot" in text)
for _ in range(3):
    try:
        pairs[0][0].loan((9 << 20,), torch.uint8)
    except CapacityError as error:
        print("no_memory" in str(error) or "no memory" in str(error) or "no_extent" in str(error))
for pair in pairs:
    for end in pair:
        end.shutdown()
del held
print(os.listdir("/dev/shm"))
""",
    )
    assert output == "True\n" * 6 + "[]\n"


def test_shm_backing_in_a_file_system_that_has_room() -> None:
    """The name goes when all have mapped it; the file has its owner's rights alone."""
    config = ArenaConfig(capacity_bytes=MIB, slots=4, backing="shm")
    with MessageQueue(1, 1, arena=config, max_chunk_bytes=4096) as writer:
        path = Path(writer.export_handle().segment.path)
        assert path.stat().st_mode & 0o777 == 0o600
        with MessageQueue.create_from_handle(writer.export_handle(), 0) as reader:
            writer.wait_until_ready(WATCHDOG_S)
            assert not path.exists()
            writer.enqueue(torch.arange(100_000))
            assert torch.equal(reader.dequeue(10), torch.arange(100_000))  # type: ignore[arg-type]


def test_the_check_names_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "file_system_free_bytes", lambda directory: 1000)
    check_file_system(demand(1000))
    with pytest.raises(CapacityError, match=r"1001 bytes .* 1000 bytes free.*memfd.*--shm-size.*emptyDir"):
        check_file_system(demand(1001))


def test_a_file_system_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs("/dev/shm")
    unlimited = os.statvfs_result((real.f_bsize, real.f_frsize, 0, 0, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "statvfs", lambda directory: unlimited)
    check_file_system(demand(1 << 60))


def test_with_a_dev_shm_that_cannot_be_written_to_the_way_out_is_memfd() -> None:
    """No smaller capacity would do."""
    output = with_mount(
        "-t tmpfs -o ro tmpfs /dev/shm",
        BEGIN
        + """
text = refused(arena=ArenaConfig(1 << 20, slots=4, backing="shm"), max_chunk_bytes=4096)
print("backing='memfd'" in text, "tmpfs" in text, "capacity_bytes" in text)
writer, reader = ends(arena=ArenaConfig(1 << 20, slots=4), max_chunk_bytes=4096)
writer.enqueue(torch.arange(50_000))
print(len(reader.dequeue(60)))
""",
    )
    assert output == "True True False\n50000\n"


def test_without_a_dev_shm_the_way_out_is_memfd(tmp_path: Path) -> None:
    with pytest.raises(
        CapacityError, match=r"/none: No such file or directory.*mount a tmpfs there, or use backing='memfd'"
    ):
        check_file_system(demand(1), str(tmp_path / "none"))


# ---- memory cgroups -------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found(tmp_path: Path) -> list[tuple[int, int]]:
    return [(group.limit_bytes, group.used_bytes) for group in memory_cgroups(tmp_path / "cgroup", tmp_path / "fs")]


def test_cgroup_v2_with_parents(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "0::/pod/container\n")
    for name, limit in [("fs/pod/container", "3000"), ("fs/pod", "max"), ("fs", "9000")]:
        write(tmp_path / name / "memory.max", limit + "\n")
        write(tmp_path / name / "memory.current", "100\n")
    assert found(tmp_path) == [(3000, 100), (9000, 100)]


def test_cgroup_v1(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n1:name=systemd:/x\n")
    write(tmp_path / "fs/memory/docker/abc/memory.limit_in_bytes", "5000")
    write(tmp_path / "fs/memory/docker/abc/memory.usage_in_bytes", "1")
    assert found(tmp_path) == [(5000, 1)]


def test_cgroup_of_a_container_that_sees_the_hosts_path(tmp_path: Path) -> None:
    """The path of /proc does not exist below the mount: the root is the group."""
    write(tmp_path / "cgroup", "0::/kubepods/pod1/abc\n")
    write(tmp_path / "fs/memory.max", "7000")
    write(tmp_path / "fs/memory.current", "7")
    assert found(tmp_path) == [(7000, 7)]


@pytest.mark.parametrize("limit", ["max", "", "garbage", "12 34", "1.5", None])
def test_cgroup_limits_that_say_nothing(tmp_path: Path, limit: str | None) -> None:
    write(tmp_path / "cgroup", "0::/a\n")
    if limit is not None:
        write(tmp_path / "fs/a/memory.max", limit)
    write(tmp_path / "fs/a/memory.current", "1")
    assert found(tmp_path) == []


@pytest.mark.parametrize("lines", ["", "garbage", "::", "0::relative\n", "\n\n", "a:b:c:d"])
def test_cgroup_files_that_say_nothing(tmp_path: Path, lines: str) -> None:
    write(tmp_path / "cgroup", lines)
    assert found(tmp_path) == []


def test_no_cgroup_file(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_the_tightest_group_counts(caplog: pytest.LogCaptureFixture) -> None:
    groups = [CgroupMemory(Path("/outer"), 10_000, 0), CgroupMemory(Path("/inner"), 50_000, 45_000)]
    check_cgroups(demand(5000), populated=False, groups=groups)
    assert not caplog.records
    check_cgroups(demand(5001), populated=False, groups=groups)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert all(text in line.getMessage() for text in ("5001", "/inner", "50000", "45000", "use less"))


def test_populated_memory_that_can_never_fit_is_an_error() -> None:
    groups = [CgroupMemory(Path("/g"), 10_000, 9_000)]
    check_cgroups(demand(10_000), populated=True, groups=groups)  # a warning: cache may be given back
    with pytest.raises(CapacityError, match=r"10001 bytes.* 10000 bytes .*/g .*less.*raise the container's memory limit"):
        check_cgroups(demand(10_001), populated=True, groups=groups)


def test_populated_memory_must_fit_into_every_group(caplog: pytest.LogCaptureFixture) -> None:
    """Not only into the one with the least headroom, which may have the larger limit."""
    groups = [CgroupMemory(Path("/inner"), 4000, 0), CgroupMemory(Path("/outer"), 10_000, 9500)]
    with pytest.raises(CapacityError, match=r"5000 bytes does not fit into the 4000 bytes that .* /inner allows"):
        check_cgroups(demand(5000), populated=True, groups=groups)
    assert not caplog.records
    check_cgroups(demand(5000), populated=False, groups=groups)
    assert "/outer" in caplog.text


def test_a_small_cgroup_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(capacity, "memory_cgroups", lambda: iter([CgroupMemory(Path("/g"), 64 * MIB, 0)]))
    with queue_of(1, arena=ArenaConfig(capacity_bytes=256 * MIB)) as (writer, (reader,)):
        writer.enqueue(torch.arange(100_000))
        assert torch.equal(reader.dequeue(10), torch.arange(100_000))  # type: ignore[arg-type]
    assert len([record for record in caplog.records if "memory cgroup /g" in record.getMessage()]) == 1
    with pytest.raises(CapacityError, match="memory cgroup /g"):
        MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=256 * MIB, prefault="eager"))


@pytest.mark.parametrize("prefault", ["background", "eager"])
def test_pages_that_the_machine_does_not_have_are_not_taken(monkeypatch: pytest.MonkeyPatch, prefault: Any) -> None:
    """The kernel's answer would be the OOM killer, whoever it hits."""
    monkeypatch.setattr(capacity, "available_bytes", lambda: 256 * MIB)
    with pytest.raises(CapacityError, match=rf"{256 * MIB} bytes available on this machine.*prefault='lazy'"):
        MessageQueue(1, 1, arena=ArenaConfig(256 * MIB, prefault=prefault))
    with queue_of(1, arena=ArenaConfig(256 * MIB)) as (writer, _):
        writer.enqueue("lazy pages that are never used cost nothing")


def test_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < (capacity.available_bytes() or 0) < 1 << 50
    monkeypatch.setattr(capacity, "meminfo", dict)
    assert capacity.available_bytes() is None
    check_machine(demand(1 << 60))


@pytest.mark.parametrize("prefault", ["lazy", "background", "eager"])
def test_every_prefault(prefault: str) -> None:
    config = ArenaConfig(capacity_bytes=16 * MIB, slots=4, prefault=prefault)  # type: ignore[arg-type]
    with queue_of(1, arena=config) as (writer, (reader,)):
        for i in range(5):
            writer.enqueue(torch.full((MIB,), i))
            assert (reader.dequeue(10) == i).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("backing", "setting", "of_size", "mount", "why"),
    [
        ("memfd", "[advise]", None, "", None),
        ("memfd", "[never]", None, "", "shmem_enabled is never"),
        ("memfd", "[never]", "[inherit]", "", "shmem_enabled is never"),
        ("memfd", "[never]", "[advise]", "", None),
        ("memfd", "[advise]", "[never]", "", "of_size is never"),
        ("memfd", "[deny]", "[advise]", "", "shmem_enabled is deny"),
        ("memfd", None, None, "", None),
        ("shm", "[never]", None, "rw,huge=advise", None),
        ("shm", "[advise]", "[advise]", "rw,size=1", "its file system is mounted without huge=advise"),
        ("shm", "[advise]", None, "rw,huge=never", "its file system is mounted without huge=advise"),
        ("shm", "[force]", None, "rw", None),
        ("shm", "[deny]", None, "rw,huge=always", "shmem_enabled is deny"),
    ],
)
def test_huge_pages_or_one_line_in_the_log(
    backing: Any,
    setting: str | None,
    of_size: str | None,
    mount: str,
    why: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Memory without a name follows the kernel's setting, a named file the options of its mount."""
    device = os.stat("/dev/shm").st_dev
    other, ours = "1 0 9:9 / /dev rw - tmpfs tmpfs rw,huge=always", f"{os.major(device)}:{os.minor(device)}"
    texts = {
        "SETTING": setting and f"always {setting} within_size",
        "SIZE_SETTING": of_size and f"always {of_size} within_size",
        "MOUNTS": f"{other}\n2 0 {ours} / /dev/shm rw - tmpfs tmpfs {mount}\n",
    }
    for name, text in texts.items():
        path = tmp_path / {"SETTING": "shmem_enabled", "SIZE_SETTING": "of_size"}.get(name, name)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(hugepages, name, path)
    config = ArenaConfig(capacity_bytes=8 * MIB, slots=4, huge_pages=True, backing=backing)
    with queue_of(1, arena=config) as (writer, (reader,)):
        writer.enqueue(torch.arange(MIB // 8))
        assert torch.equal(reader.dequeue(10), torch.arange(MIB // 8))  # type: ignore[arg-type]
    said = [re.sub(rf"{tmp_path}/", "", message) for message in caplog.messages]
    assert said == ([f"huge_pages: no transparent huge pages ({why}); continuing with small ones"] if why else [])


def test_reserved_huge_pages_need_no_transparent_ones(caplog: pytest.LogCaptureFixture) -> None:
    fd = os.memfd_create("test", os.MFD_HUGETLB)
    try:
        hugepages.advise_huge_pages(ffi.NULL, fd)
    finally:
        os.close(fd)
    assert not caplog.messages


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_a_file_that_cannot_grow(monkeypatch: pytest.MonkeyPatch, backing: str) -> None:
    def refuse(fd: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(CapacityError, match=r"bytes: No space left on device \(errno 28\); use a smaller capacity_bytes"):
        MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=MIB, backing=backing))  # type: ignore[arg-type]
