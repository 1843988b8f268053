"""The device of the demo's workers: what is compared, and where."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from arena.tools import worker, workload
from arena.tools.commands import arena
from arena.tools.devices import WorkerDevice


def test_the_copies_are_compared_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but one sum for each page may come back from there; a byte that the device got wrong is told."""
    came_back: list[int] = []
    cpu = torch.Tensor.cpu

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        came_back.append(tensor.nbytes)
        return cpu(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", watch)
    images = {"image": torch.arange(1 << 20, dtype=torch.int32), "odd": torch.arange(4099, dtype=torch.uint8)[1:]}
    payload = workload.Payload.of("of two", images)
    request = workload.NewRequest("one", [], workload.SamplingParameters(), [], 0, [], [], payload)
    device = WorkerDevice("sim", 0)
    kept: list[torch.Tensor] = []

    class ToDevice:
        def to_device(self, tensor: torch.Tensor, to: WorkerDevice) -> torch.Tensor:
            where = to.device.empty_like(tensor, to.where, to.device.current_stream())
            to.device.copy(tensor, where, to.device.current_stream())
            kept.append(where)
            return where

    try:
        for changed in (False, True):
            residents = worker.Residents(device)
            assert residents.admit(request, ToDevice()) == []  # type: ignore[arg-type]
            device.finish()
            kept[-2][0] += changed
            came_back.clear()
            assert residents.end("one") == (["one: image of of two"] if changed else [])
            assert sum(came_back) < 20_000
    finally:
        device.close()


def test_without_a_gpu_the_command_says_so_at_once() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    shown = CliRunner().invoke(arena, ["demo", "--device", "cuda"])
    assert shown.exit_code == 2
    assert "there is no CUDA or ROCm device here" in shown.output
    assert "--device=sim needs none" in shown.output
