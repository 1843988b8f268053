"""What an engine sends to its workers: one scheduler message a step, with new requests' images inside.

A request lives for a few steps, as it does under chunked prefill: its tensors come with its first step, the steps
after it only name it, and the last one tells that it has ended.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from arena.tools.images import FrameSize, frame
from arena.tools.patches import llava_anyres, qwen2_vl

REQUEST_STEPS = 3
TEXT_REQUESTS = 32
WORDS_PER_PAGE = 512


@dataclass(frozen=True)
class Payload:
    """The tensors of one request's images, and a checksum of each."""

    name: str
    tensors: Mapping[str, torch.Tensor]
    checksums: Mapping[str, str]

    @classmethod
    def of(cls, name: str, tensors: Mapping[str, torch.Tensor]) -> Payload:
        """Compute the checksums."""
        return cls(name, tensors, {key: checksum(tensor) for key, tensor in tensors.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass
class SamplingParameters:
    """How a request samples its tokens."""

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 20
    repetition_penalty: float = 1.05
    tokens_max: int = 512
    stop_token_ids: tuple[int, ...] = (151643, 151645)


@dataclass
class NewRequest:
    """All that a worker must learn about a request, once."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParameters
    block_ids: list[int]
    tokens_computed: int
    image_hashes: list[str]
    image_positions: list[tuple[int, int]]
    payload: Payload


@dataclass
class RunningRequests:
    """What changed for the requests that run already, one entry each."""

    request_ids: list[str]
    new_token_ids: list[list[int]]
    new_block_ids: list[list[int]]
    tokens_computed: list[int]


@dataclass
class Step:
    """One scheduler message."""

    number: int
    new_requests: list[NewRequest]
    running: RunningRequests
    scheduled_tokens: dict[str, int]
    scheduled_tokens_total: int
    finished_ids: list[str]
    free_image_hashes: list[str] = field(default_factory=list)
    then_listen_to: str | None = None
    """The transport that brings the next message."""
    last: bool = False


def checksum(tensor: torch.Tensor) -> str:
    """A digest of dtype, shape and bytes at about the speed of memory.

    One 64-bit sum for each page of 4096 bytes, and a cryptographic digest of the sums: any changed byte, and any
    page in a wrong place, changes it.  The sums are made where the tensor is: of one on a GPU nothing else comes back.
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if data.storage_offset() % 8:
        data = data.clone()
    whole = len(data) // (8 * WORDS_PER_PAGE) * 8 * WORDS_PER_PAGE
    sums = data[:whole].view(torch.int64).reshape(-1, WORDS_PER_PAGE).sum(dim=1)  # modulo 2**64
    digest = hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=16)
    digest.update(sums.cpu().numpy().tobytes())
    digest.update(data[whole:].cpu().numpy().tobytes())
    return digest.hexdigest()


def payloads(size: FrameSize, seed: int) -> list[Payload]:
    """The images of one wave of requests: both processors, all three dtypes."""
    image = frame(seed, size)
    made = []
    for dtype in (torch.bfloat16, torch.float32, torch.uint8):
        pixel_values, grid = qwen2_vl(image, dtype)
        tensors = {"pixel_values": pixel_values, "image_grid_thw": grid}
        made.append(Payload.of(f"qwen2-vl {_short(dtype)}", tensors))
    made.append(Payload.of("llava float32", {"pixel_values": llava_anyres(image, torch.float32)}))
    return made


def renewed(images: Sequence[Payload], number: int) -> list[Payload]:
    """The same images, every second one changed so that it is a new one; `number` tells which."""
    changed = []
    for index, image in enumerate(images):
        if index % 2:
            tensors = {key: tensor.clone() for key, tensor in image.tensors.items()}
            first = tensors["pixel_values"].reshape(-1).view(torch.uint8)
            first[:8] = torch.from_numpy(np.array([number], np.int64).view(np.uint8))
            image = Payload.of(f"{image.name}, new", tensors)
        changed.append(image)
    return changed


def wave(images: Sequence[Payload], first_step: int, rng: random.Random) -> Iterator[Step]:
    """Steps that bring one request a step, keep each for `REQUEST_STEPS` steps, and end with none alive."""
    for index in range(len(images) + REQUEST_STEPS):
        number = first_step + index
        new = [_new_request(number, images[index], rng)] if index < len(images) else []
        alive = range(max(0, index - REQUEST_STEPS + 1), min(index, len(images)))
        finished = [index - REQUEST_STEPS] if index >= REQUEST_STEPS else []
        yield _step(number, new, [_request_id(first_step + i) for i in alive],
                    [_request_id(first_step + i) for i in finished], rng)  # fmt: skip


def _step(number: int, new: list[NewRequest], alive: list[str], finished: list[str], rng: random.Random) -> Step:
    texts = [f"text-{index}" for index in range(TEXT_REQUESTS)]
    running = RunningRequests(
        request_ids=alive + texts,
        new_token_ids=[[] for _ in alive] + [[rng.randrange(151_000)] for _ in texts],
        new_block_ids=[[rng.randrange(50_000)] for _ in alive + texts],
        tokens_computed=[rng.randrange(8_192) for _ in alive + texts],
    )
    scheduled = {request.request_id: 2048 for request in new} | dict.fromkeys(alive, 2048) | dict.fromkeys(texts, 1)
    return Step(number, new, running, scheduled, sum(scheduled.values()), finished)


def _new_request(step: int, payload: Payload, rng: random.Random) -> NewRequest:
    return NewRequest(
        request_id=_request_id(step),
        prompt_token_ids=[rng.randrange(151_000) for _ in range(256)],
        sampling=SamplingParameters(),
        block_ids=[rng.randrange(50_000) for _ in range(64)],
        tokens_computed=0,
        image_hashes=list(payload.checksums.values()),
        image_positions=[(16, 1024)],
        payload=payload,
    )


def _request_id(step: int) -> str:
    return f"image-{step}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
