"""`pixel_values` as the image processors of two model families lay them out.

Qwen2-VL style: the frame is resized to multiples of 28 pixels within a budget, pairs of frames are stacked in time,
and each row of `pixel_values` is one patch of 2 x 14 x 14 pixels; the four patches of a 2 x 2 block, which the model
merges into one token, are neighbours. LLaVA style: square tiles, [n, 3, side, side].

The values are normalised (floating dtypes) or left as bytes (`torch.uint8`, for engines that normalise on the
device). Images come in as uint8 [height, width, 3].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

PATCH = 14
TEMPORAL = 2
MERGE = 2
FACTOR = PATCH * MERGE
PIXELS_MIN = 4 * FACTOR**2
PIXELS_MAX = 16384 * FACTOR**2
ASPECT_MAX = 200

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
CLIP_SIDE = 336
ANYRES_GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))


class QwenPixels(NamedTuple):
    """`pixel_values` [grid_t * grid_h * grid_w, 3 * 2 * 14 * 14] and the grid they came from, [1, 3]."""

    pixel_values: torch.Tensor
    image_grid_thw: torch.Tensor


def smart_resize(
    height: int, width: int, *, factor: int = FACTOR, pixels_min: int = PIXELS_MIN, pixels_max: int = PIXELS_MAX
) -> tuple[int, int]:
    """The nearest size whose sides are multiples of `factor`, with about the same aspect, within the pixel budget."""
    if max(height, width) > ASPECT_MAX * min(height, width):
        raise ValueError(f"aspect of {width}x{height} is over {ASPECT_MAX}: crop the image first")
    rounded = [max(factor, round(side / factor) * factor) for side in (height, width)]
    if math.prod(rounded) > pixels_max:
        shrink = math.sqrt(height * width / pixels_max)
        rounded = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif math.prod(rounded) < pixels_min:
        grow = math.sqrt(pixels_min / (height * width))
        rounded = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return rounded[0], rounded[1]


def resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bicubic, with antialiasing, to the given size."""
    if image.shape[:2] == (height, width):
        return image
    planes = image.permute(2, 0, 1).unsqueeze(0)
    resized = torch.nn.functional.interpolate(planes, (height, width), mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).contiguous()


def normalise(planes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scale bytes [..., 3, height, width] to CLIP's mean and deviation; uint8 stays as it is."""
    if dtype == torch.uint8:
        return planes
    mean = torch.tensor(CLIP_MEAN).view(3, 1, 1)
    deviation = torch.tensor(CLIP_STD).view(3, 1, 1)
    return planes.to(torch.float32).div_(255).sub_(mean).div_(deviation).to(dtype)


def qwen2_vl(
    frames: torch.Tensor, dtype: torch.dtype, *, pixels_min: int = PIXELS_MIN, pixels_max: int = PIXELS_MAX
) -> QwenPixels:
    """Patches of one image [height, width, 3] or of a video [frames, height, width, 3]."""
    video = frames if frames.ndim == 4 else frames.unsqueeze(0)
    height, width = smart_resize(video.shape[1], video.shape[2], pixels_min=pixels_min, pixels_max=pixels_max)
    resized = torch.stack([resize(image, height, width) for image in video])
    planes = normalise(resized.permute(0, 3, 1, 2), dtype)
    if missing := -len(planes) % TEMPORAL:
        planes = torch.cat([planes, planes[-1:].expand(missing, -1, -1, -1)])
    return _patches(planes)


def _patches(planes: torch.Tensor) -> QwenPixels:
    """Cut [frames, 3, height, width] into rows of patches, merged blocks first."""
    frames, channels, height, width = planes.shape
    grid = (frames // TEMPORAL, height // PATCH, width // PATCH)
    blocks = planes.reshape(grid[0], TEMPORAL, channels, grid[1] // MERGE, MERGE, PATCH, grid[2] // MERGE, MERGE, PATCH)
    rows = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    pixel_values = rows.reshape(math.prod(grid), channels * TEMPORAL * PATCH * PATCH)
    return QwenPixels(pixel_values.contiguous(), torch.tensor([grid], dtype=torch.int64))


def llava_anyres(
    image: torch.Tensor,
    dtype: torch.dtype,
    *,
    side: int = CLIP_SIDE,
    grids: Sequence[tuple[int, int]] = ANYRES_GRIDS,
) -> torch.Tensor:
    """The whole image in one tile, then the tiles of the grid that suits it best: [1 + tiles, 3, side, side]."""
    rows, columns = best_grid(image.shape[0], image.shape[1], side, grids)
    sheet = _letterbox(image, rows * side, columns * side).permute(2, 0, 1)
    tiles = sheet.reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
    whole = resize(image, side, side).permute(2, 0, 1).unsqueeze(0)
    return normalise(torch.cat([whole, tiles]), dtype).contiguous()


def best_grid(height: int, width: int, side: int, grids: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The (rows, columns) that keeps most of the image's pixels and, among equals, wastes the least area."""

    def merit(grid: tuple[int, int]) -> tuple[int, int]:
        area = (grid[0] * side, grid[1] * side)
        scale = min(area[0] / height, area[1] / width)
        kept = min(int(height * scale) * int(width * scale), height * width)
        return kept, kept - math.prod(area)

    return max(grids, key=merit)


def _letterbox(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Fit the image into the area, aspect kept, centred on black."""
    scale = min(height / image.shape[0], width / image.shape[1])
    fitted = resize(image, min(math.ceil(image.shape[0] * scale), height), min(math.ceil(image.shape[1] * scale), width))
    top, left = (height - fitted.shape[0]) // 2, (width - fitted.shape[1]) // 2
    sheet = torch.zeros(height, width, 3, dtype=image.dtype)
    sheet[top : top + fitted.shape[0], left : left + fitted.shape[1]] = fitted
    return sheet
