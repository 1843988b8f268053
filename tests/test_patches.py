"""Photographs and `pixel_values`: the layouts against slow oracles that follow the definition value by value."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from arena.tools import images, patches

DTYPES = (torch.bfloat16, torch.float32, torch.uint8)


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


def naive_value(byte: int, channel: int, dtype: torch.dtype) -> float:
    """One normalised value."""
    if dtype == torch.uint8:
        return byte
    return (byte / 255 - patches.CLIP_MEAN[channel]) / patches.CLIP_STD[channel]


def assert_same_values(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.uint8: 0.0, torch.float32: 1e-5, torch.bfloat16: 0.02}[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=0)


def naive_qwen2_vl(frames: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each row from its place in the picture: (time, block row, block column, row in block, column in block)."""
    count, height, width, _ = frames.shape
    pixels = frames.tolist()
    rows = []
    for time in range((count + 1) // 2):
        for block_y, block_x in itertools.product(range(height // 28), range(width // 28)):
            for in_y, in_x in itertools.product(range(2), range(2)):
                top, left = block_y * 28 + in_y * 14, block_x * 28 + in_x * 14
                row = []
                for channel, step, y, x in itertools.product(range(3), range(2), range(14), range(14)):
                    source = pixels[min(2 * time + step, count - 1)]
                    row.append(naive_value(source[top + y][left + x][channel], channel, dtype))
                rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_qwen2_vl_rows_are_the_patches_of_the_picture(dtype: torch.dtype, count: int) -> None:
    frames = torch.stack([picture(56, 84, seed) for seed in range(count)])
    made = patches.qwen2_vl(frames[0] if count == 1 else frames, dtype)
    assert made.image_grid_thw.tolist() == [[(count + 1) // 2, 4, 6]]
    assert made.pixel_values.shape == ((count + 1) // 2 * 24, 3 * 2 * 14 * 14)
    assert made.pixel_values.dtype == dtype
    assert made.pixel_values.is_contiguous()
    assert_same_values(made.pixel_values, naive_qwen2_vl(frames, dtype))


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (1080, 1920, (1092, 1932)),
        (480, 640, (476, 644)),
        (28, 28, (56, 56)),
        (10, 1000, (28, 1008)),
        (4096, 4096, (3584, 3584)),
        (3000, 4000, (2996, 4004)),
    ],
)
def test_smart_resize_of_known_sizes(height: int, width: int, expected: tuple[int, int]) -> None:
    assert patches.smart_resize(height, width) == expected


def test_smart_resize_stays_in_the_budget() -> None:
    for height, width in itertools.product(range(20, 3000, 271), repeat=2):
        resized = patches.smart_resize(height, width, pixels_max=1_003_520)
        assert all(side % 28 == 0 for side in resized)
        assert patches.PIXELS_MIN <= resized[0] * resized[1] <= 1_003_520


def test_smart_resize_refuses_a_strip() -> None:
    with pytest.raises(ValueError, match="aspect of 3000x10 is over 200"):
        patches.smart_resize(10, 3000)


def naive_planes(image: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    height, width, _ = image.shape
    pixels = image.tolist()
    values = [
        naive_value(pixels[y][x][channel], channel, dtype)
        for channel, y, x in itertools.product(range(3), range(height), range(width))
    ]
    return torch.tensor(values, dtype=torch.float64).reshape(3, height, width)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_anyres_tiles_are_read_row_by_row_after_the_whole(dtype: torch.dtype) -> None:
    image = picture(24, 48)
    made = patches.llava_anyres(image, dtype, side=24)
    assert made.shape == (3, 3, 24, 24)
    assert made.is_contiguous()
    assert_same_values(made[0], naive_planes(patches.resize(image, 24, 24), dtype))
    assert_same_values(made[1], naive_planes(image[:, :24], dtype))
    assert_same_values(made[2], naive_planes(image[:, 24:], dtype))


def test_anyres_pads_what_does_not_fill_the_grid_with_black() -> None:
    made = patches.llava_anyres(torch.full((20, 60, 3), 200, dtype=torch.uint8), torch.uint8, side=20, grids=[(2, 2)])
    sheet = made[1:].reshape(2, 2, 3, 20, 20).permute(0, 3, 1, 4, 2).reshape(40, 40, 3)
    picture_rows = (sheet == 200).all(dim=2).all(dim=1).nonzero().flatten().tolist()
    assert picture_rows == list(range(13, 27))
    assert sheet[:13].sum() == sheet[27:].sum() == 0


@pytest.mark.parametrize(
    ("height", "width", "grid"),
    [(300, 620, (1, 2)), (620, 300, (2, 1)), (3000, 3000, (2, 2)), (3000, 800, (3, 1)), (800, 3000, (1, 3))],
)
def test_best_grid_follows_the_aspect(height: int, width: int, grid: tuple[int, int]) -> None:
    assert patches.best_grid(height, width, 336, patches.ANYRES_GRIDS) == grid


@pytest.mark.parametrize("size", [(70, 90), (400, 500)])
def test_resize_agrees_with_pillow(size: tuple[int, int]) -> None:
    pil = pytest.importorskip("PIL.Image")
    image = torch.from_numpy(images.photograph("coffee")[:200, :300].copy())
    expected = np.asarray(pil.fromarray(image.numpy()).resize((size[1], size[0]), pil.Resampling.BICUBIC))
    difference = np.abs(patches.resize(image, *size).numpy().astype(int) - expected.astype(int))
    assert difference.max() <= 2


@pytest.mark.parametrize("name", images.PHOTOGRAPHS)
def test_photographs_ship_with_the_package(name: str) -> None:
    pixels = images.photograph(name)
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert len(np.unique(pixels)) > 100, "a photograph, not a drawing"


@pytest.mark.parametrize("size", ["28x28", "301x299", "2000x700", "1.5"])
def test_frame_has_the_size_and_the_content(size: str) -> None:
    wanted = images.FrameSize.parse(size)
    made = images.frame(1, wanted)
    assert made.shape == (wanted.height, wanted.width, 3)
    assert made.is_contiguous()
    corners = (made[:14, :14], made[:14, -14:], made[-14:, :14], made[-14:, -14:])
    assert all(len(corner.unique()) > 8 for corner in corners), "every part shows some of the photograph"


def test_sizes_are_megapixels_or_sides() -> None:
    assert images.FrameSize.parse("12") == images.FrameSize(4000, 3000)
    assert images.FrameSize.parse("4096x2048") == images.FrameSize(4096, 2048)


@pytest.mark.parametrize("text", ["", "big", "0", "-3", "nan", "inf", "27x100", "100x20000", "4000", "28x6000"])
def test_a_bad_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="size '"):
        images.FrameSize.parse(text)
