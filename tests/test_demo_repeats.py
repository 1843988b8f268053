"""`arena demo --repeat-images`: half of the images travel as handles, and every tensor is right."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from arena.tools.commands import arena
from arena.tools.workload import Payload, renewed

OPTIONS = ["demo", "--repeat-images", "--workers", "2", "--sizes", "320x240", "--seconds", "1"]


def test_half_of_the_images_are_cached() -> None:
    shown = CliRunner().invoke(arena, [*OPTIONS, "--json"])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert told["ok"]
    assert told["wrong"] == []
    plain, cached = told["rows"]
    assert [plain["transport"], cached["transport"]] == ["arena", "arena + cache"]
    assert told["hits"] * 2 == told["lookups"] > 0
    assert plain["megabytes_copied"] == pytest.approx(plain["megabytes"], rel=0.05)
    assert cached["megabytes_copied"] < 0.9 * plain["megabytes_copied"], "the small half of the kinds repeats"
    assert told["verdict"].startswith(f"all {told['tensors_verified']} checksums right; 50% of the images were cached")


def test_every_second_image_is_new() -> None:
    images = [Payload.of(f"image {i}", {"pixel_values": torch.full((4, 4), float(i))}) for i in range(4)]
    first, second = renewed(images, 1), renewed(images, 2)
    assert [a.checksums == b.checksums for a, b in zip(first, images, strict=True)] == [True, False, True, False]
    assert [a.checksums == b.checksums for a, b in zip(first, second, strict=True)] == [True, False, True, False]
    assert images[1].checksums == Payload.of("image 1", images[1].tensors).checksums, "the original is as it was"
