"""Real photographs at the sizes that cameras deliver.

scikit-image ships a few photographs inside its wheel, so nothing is downloaded. They are small; a frame of a
camera's size is made of one photograph, enlarged at most twofold (more would only blur it) and then continued by
reflection, so that every part of the frame has the detail and the noise of a real picture.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arena.tools.extras import require
from arena.tools.patches import ASPECT_MAX, resize

PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket", "retina", "hubble_deep_field", "immunohistochemistry")
ENLARGEMENT_MAX = 2.0
SIDE_MIN = 28
SIDE_MAX = 16384

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FrameSize:
    """Width and height of a frame in pixels."""

    width: int
    height: int

    @classmethod
    def parse(cls, text: str) -> FrameSize:
        """Read `4096x4096`, or a number of megapixels of a 4:3 sensor such as `12`."""
        if sides := re.fullmatch(r"(\d+)x(\d+)", text.strip()):
            size = cls(int(sides[1]), int(sides[2]))
        else:
            size = cls._of_megapixels(text)
        if min(size.width, size.height) < SIDE_MIN or max(size.width, size.height) > SIDE_MAX:
            raise ValueError(f"size {text!r} is {size}; both sides must be from {SIDE_MIN} to {SIDE_MAX} pixels")
        if max(size.width, size.height) > ASPECT_MAX * min(size.width, size.height):
            raise ValueError(f"size {text!r}: one side must be at most {ASPECT_MAX} times the other")
        return size

    @classmethod
    def _of_megapixels(cls, text: str) -> FrameSize:
        try:
            pixels = float(text) * 1e6
        except ValueError:
            raise ValueError(f"size {text!r} is neither WIDTHxHEIGHT nor a number of megapixels") from None
        if not 0 < pixels <= SIDE_MAX**2:
            raise ValueError(f"size {text!r} must be above 0 and at most {SIDE_MAX**2 / 1e6:.0f} megapixels")
        height = math.sqrt(pixels * 3 / 4)
        return cls(round(height * 4 / 3), round(height))

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def photograph(name: str) -> Pixels:
    """One of `PHOTOGRAPHS` as it ships: uint8, [height, width, 3]."""
    if name not in PHOTOGRAPHS:
        raise ValueError(f"no photograph {name!r}; there are {', '.join(PHOTOGRAPHS)}")
    pixels: Pixels = getattr(require("skimage.data"), name)()
    return np.ascontiguousarray(pixels[:, :, :3])


def frame(index: int, size: FrameSize) -> torch.Tensor:
    """The photograph number `index` (they repeat) as a frame of `size`: uint8, [height, width, 3]."""
    source = torch.from_numpy(photograph(PHOTOGRAPHS[index % len(PHOTOGRAPHS)]))
    return fill(source, size.height, size.width)


def fill(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Enlarge `image` up to `ENLARGEMENT_MAX`, continue it by reflection where that is too small, crop the rest."""
    scale = min(ENLARGEMENT_MAX, max(height / image.shape[0], width / image.shape[1]))
    scaled = resize(image, math.ceil(image.shape[0] * scale), math.ceil(image.shape[1] * scale))
    missing = (max(0, height - scaled.shape[0]), max(0, width - scaled.shape[1]))
    continued = np.pad(scaled.numpy(), ((0, missing[0]), (0, missing[1]), (0, 0)), mode="symmetric")
    return torch.from_numpy(np.ascontiguousarray(continued[:height, :width]))
