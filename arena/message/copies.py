"""Copies to a device: where they go, and in which pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from arena.device.interface import Device, Stream
from arena.device.pinning import Chunk
from arena.message.tensors import is_dense


def copy(
    device: Device, tensor: torch.Tensor, where: torch.device | str | int, stream: Stream | None, *, non_blocking: bool
) -> torch.Tensor:
    """A copy on the device of what is not pinned: its bytes are read before this returns."""
    stream, target = target_of(device, tensor, where, stream)
    device.copy(tensor, target, stream, non_blocking=non_blocking)
    return target


def check_tensor(tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"tensor={tensor!r}: must be a tensor")


def target_of(
    device: Device, tensor: torch.Tensor, where: torch.device | str | int, stream: Stream | None
) -> tuple[Stream, torch.Tensor]:
    check_tensor(tensor)
    stream = device.current_stream(where) if stream is None else device.stream_of(stream)
    return stream, device.empty_like(tensor, where, stream)


def pieces(
    source: torch.Tensor, target: torch.Tensor, offset: int, cuts: Sequence[Chunk]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Source and target, cut where one copy would read from two pinned chunks; ``offset`` is where the source begins.

    Only what is flat can be cut.
    """
    if len(cuts) < 2:
        return [(source, target)]
    flat = _bytes_of(source), _bytes_of(target)
    ranges = [slice(cut.offset - offset, cut.offset - offset + cut.nbytes) for cut in cuts]
    return [(flat[0][at], flat[1][at]) for at in ranges]


def is_flat(tensor: torch.Tensor) -> bool:
    """Whether its elements are one range of memory, as they are."""
    return is_dense(tensor.shape, tensor.stride()) and not tensor.is_conj() and not tensor.is_neg()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a flat tensor, in its own order."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
