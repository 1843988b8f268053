"""The demo's worker process: receives steps, keeps what is alive, verifies every tensor, acknowledges."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch

from arena.errors import ArenaError
from arena.tools import transports
from arena.tools.devices import WorkerDevice, wait_until_true
from arena.tools.processes import die_with_parent
from arena.tools.transports import Endpoint, Reader
from arena.tools.workload import NewRequest, Payload, Step, checksum

SILENCE_MAX_S = 600.0


@dataclass(frozen=True)
class Acknowledgement:
    """A worker's answer to one step: when it had the message, and which tensors were wrong."""

    rank: int
    step: int
    received_ns: int
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A worker's last words."""

    rank: int
    text: str


class Residents:
    """The requests that are alive in this worker, with their tensors."""

    def __init__(self, device: WorkerDevice | None = None) -> None:
        self._payloads: dict[str, Payload] = {}
        self._device = device

    def admit(self, request: NewRequest, reader: Reader) -> list[str]:
        """Keep the request's tensors and verify them as they came; with a device, keep their copies there alone."""
        payload = self._payloads[request.request_id] = request.payload
        wrong = self._verify(request.request_id)
        if self._device is not None:
            copies = {name: reader.to_device(tensor, self._device) for name, tensor in payload.tensors.items()}
            self._payloads[request.request_id] = replace(payload, tensors=copies)
        return wrong

    def end(self, request_id: str) -> list[str]:
        """Verify the tensors once more, where they are, after the steps that they were kept for; then let go of them."""
        if self._device is not None:
            self._device.finish()
        wrong = self._verify(request_id)
        del self._payloads[request_id]
        return wrong

    def _verify(self, request_id: str) -> list[str]:
        payload = self._payloads[request_id]
        return [
            f"{request_id}: {name} of {payload.name}"
            for name, tensor in payload.tensors.items()
            if checksum(tensor) != payload.checksums[name]
        ]


def run(
    rank: int, endpoints: Mapping[str, Endpoint], first: str, acknowledge: Connection, device: str | None = None
) -> None:
    """Serve until the last step; what goes wrong is told to the engine."""
    die_with_parent()
    torch.set_num_threads(1)
    try:
        _serve(rank, endpoints, first, acknowledge, None if device is None else WorkerDevice(device, rank))
    except ArenaError as error:
        acknowledge.send(Failure(rank, f"{type(error).__name__}: {error}"))
    except Exception:
        acknowledge.send(Failure(rank, f"\n{traceback.format_exc()}"))


def _serve(
    rank: int, endpoints: Mapping[str, Endpoint], first: str, acknowledge: Connection, device: WorkerDevice | None
) -> None:
    transports.pins_for = device.device if device else None
    readers = {name: endpoint.open() for name, endpoint in endpoints.items()}
    residents = Residents(device)
    name, last = first, False
    while not last:
        step: Step = readers[name].receive(SILENCE_MAX_S)
        received_ns = time.monotonic_ns()
        wrong = [fault for request in step.new_requests for fault in residents.admit(request, readers[name])]
        wrong += [fault for request_id in step.finished_ids for fault in residents.end(request_id)]
        answer = Acknowledgement(rank, step.number, received_ns, tuple(wrong))
        name, last = step.then_listen_to or name, step.last
        del step
        if device is not None and last:
            wait_until_true(lambda: not any(reader.flush() for reader in readers.values()))  # the engine counts its slots
        acknowledge.send(answer)
    for reader in readers.values():
        reader.close()
    if device is not None:
        device.close()
