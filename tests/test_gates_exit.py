"""The interpreter ends and nobody has closed anything: what was pinned is unregistered before it is unmapped."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest
from offload_support import what_is_left

SCRIPT = """
import atexit, os, sys
log = []

def is_mapped(address):
    with open("/proc/self/maps") as maps:
        ranges = (line.split()[0].split("-") for line in maps)
        return any(int(start, 16) <= address < int(stop, 16) for start, stop in ranges)

@atexit.register  # the first to be registered is the last to be called
def tell():
    for name, address in pinned.items():
        log.append(f"{name} at the end {'mapped' if is_mapped(address) else 'unmapped'}")
    os.write(2, "\\n".join([*log, *device.violations, ""]).encode())

import torch
from arena import ArenaConfig, MessageQueue, SharedOffloadRegion
from arena.device.simulated import SimulatedDevice

class Logged(SimulatedDevice):
    def unregister(self, address):
        names = [name for name, start in pinned.items() if start == address]
        log.append(f"{names[0]} unregistered while {'mapped' if is_mapped(address) else 'unmapped'}")
        super().unregister(address)

device, pinned, name, keep = Logged(), {}, sys.argv[1], sys.argv[2] == "views"
writer = MessageQueue(1, 1, arena=ArenaConfig(capacity_bytes=1 << 20, slots=8, divert_bytes=4096))
reader = MessageQueue.create_from_handle(writer.export_handle(), 0, device=device)
writer.wait_until_ready(60)
writer.enqueue(torch.ones(10_000))
tensor = reader.dequeue(60)
on_device = reader.to_device(tensor, "sim:0")
(pinned["queue"],) = device.registered
region = SharedOffloadRegion(name, 4, 0, 8192, 4096, pin="eager", device=device)
(pinned["region"],) = set(device.registered) - {pinned["queue"]}
view = region.create_next_worker_view(100)
if keep:
    torch.kept = tensor, view
else:
    del view, tensor
    reader.flush_releases()
    device.drain()
"""

UNREGISTERED = {"queue unregistered while mapped", "region unregistered while mapped"}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        # The region's own base tensor goes with the region, which nobody has dropped.
        ("nothing", UNREGISTERED | {"queue at the end unmapped", "region at the end mapped"}),
        # A device may still read what somebody holds: the queue's memory stays pinned, and mapped, to the process's end.
        ("views", {"region unregistered while mapped", "queue at the end mapped", "region at the end mapped"}),
    ],
)
def test_at_exit_nothing_is_unmapped_that_is_registered(what: str, said: set[str]) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, name, what], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stderr.splitlines()) == sorted(said)
    assert what_is_left(name) == []
