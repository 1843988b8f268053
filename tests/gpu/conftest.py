"""The device is in use before the first test looks at what there is: its driver opens descriptors of its own, for good."""

from __future__ import annotations

import mmap

import pytest
import torch
from gpu_support import GPU, N_GPUS, initialised_device

from arena.device.pinning import Pinning


@pytest.fixture(scope="session", autouse=True)
def _device_in_use() -> None:
    if N_GPUS == 0:
        return
    device, pages = initialised_device(), mmap.mmap(-1, mmap.PAGESIZE)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    pinning = Pinning(device, memory.data_ptr(), memory.nbytes)
    pinning.ensure(0, memory.nbytes)
    x, graph, stream = torch.ones(10, device=GPU), torch.cuda.CUDAGraph(), torch.cuda.Stream(GPU)
    device.copy(memory, device.empty_like(memory, GPU, stream), stream)
    device.record(stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.add_(1)
    torch.cuda.synchronize()
    pinning.unpin()
