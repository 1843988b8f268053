"""Keys that stand for content: different for what differs in anything, equal in every process."""

from __future__ import annotations

import dataclasses
import enum
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arena.hashing import object_key


class Color(enum.Enum):
    RED = 1


class Shade(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Box:
    width: int
    height: int


@dataclasses.dataclass
class Size:
    width: int
    height: int


@dataclasses.dataclass
class Options(dict[str, int]):
    """As model outputs are: fields, and elements besides."""

    width: int

    def having(self, **elements: int) -> Options:
        self.update(elements)
        return self


@dataclasses.dataclass
class Label(str):
    width: int

    def __new__(cls, width: int, text: str = "") -> Label:
        return super().__new__(cls, text)


def image(mode: str, size: tuple[int, int] = (4, 2), fill: Any = 0) -> Image.Image:
    return Image.new(mode, size, fill)


def with_palette(*colors: int, transparency: int | None = None, mode: str = "RGB") -> Image.Image:
    made = Image.new("P", (4, 2))
    made.putpalette(colors, mode)
    if transparency is not None:
        made.info["transparency"] = transparency
    return made


def turned(orientation: int) -> Image.Image:
    made = image("RGB")
    made.getexif()[0x0112] = orientation
    return made


DIFFERENT: dict[str, list[object]] = {
    "numbers": [0, False, 0.0, 0j, -0.0, "0", b"0", None, np.int64(0), np.int32(0), np.float64(0)],
    "zeros": [0.0, np.float64(0), np.zeros(()), np.zeros(1), torch.zeros((), dtype=torch.float64), torch.zeros(())],
    "ones": [1, True, 1.0, "1", b"1", bytearray(b"1"), memoryview(b"1"), Color.RED, Shade.RED],
    "nothing": [None, "", b"", [], (), {}, set(), np.zeros(0), torch.zeros(0), "None"],
    "split": [("ab", "c"), ("a", "bc"), ("abc",), ("a", "b", "c"), (("ab",), "c"), ("ab", ("c",)), ["ab", "c"], "abc"],
    "nested": [{"a": {"b": 1}}, {"a": {"b": 1.0}}, {"a": {"c": 1}}, {"a": [("b", 1)]}, {"a.b": 1}, [{"a": 1}, {"b": 1}]],
    "shapes": [np.zeros(shape, np.uint8) for shape in ((12,), (3, 4), (4, 3), (2, 6), (1, 12), (12, 1), (2, 3, 2))],
    "dtypes": [np.zeros(4, dtype) for dtype in ("i4", "u4", "f4", "<i4", ">i4", "S4", "U1", "M8[s]", "m8[s]", "bool")][1:],
    "tensors": [
        torch.zeros(4, dtype=getattr(torch, dtype)) for dtype in ("float16", "bfloat16", "int16", "uint8", "float8_e4m3fn")
    ],
    "same bytes": [
        b"\0\0\0\0", np.zeros(4, np.uint8), torch.zeros(4, dtype=torch.uint8), np.zeros(4, np.int8), image("L", (4, 1)),
    ],
    "modes": [image(mode) for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "I", "F", "LA", "YCbCr", "HSV")],
    "sizes": [image("L", size) for size in ((8, 1), (4, 2), (2, 4), (1, 8))],
    "alpha": [image("RGBA", fill=(1, 2, 3, alpha)) for alpha in (0, 1, 255)],
    "palettes": [
        with_palette(0, 0, 0, 9, 9, 9),
        with_palette(9, 9, 9, 0, 0, 0),
        with_palette(0, 0, 0, 9, 9, 9, transparency=0),
        with_palette(0, 0, 0, 9, 9, 9, transparency=1),
        with_palette(0, 0, 0, 255, 9, 9, 9, 0, mode="RGBA"),
        with_palette(0, 0, 0, 255, 9, 9, 9, 1, mode="RGBA"),
    ],
    "orientations": [turned(1), turned(6), turned(3)],
    "classes": [Box(1, 2), Size(1, 2), Box(2, 1), (1, 2), {"width": 1, "height": 2}],
    "elements besides fields": [Options(1), Options(1).having(a=1), Options(1).having(a=2), Options(2).having(a=1)],
    "keys that differ in nothing": [{float("nan"): 1, float("nan"): 2}, {float("nan"): 2}, {float("nan"): 1}],
    "masks": [np.ma.masked_array([1, 2], [False, True]), np.ma.masked_array([1, 2], [True, False]), np.array([1, 2])],
    "fields": [np.zeros(2, [("a", "i4")]), np.zeros(2, [("b", "i4")]), np.zeros(2, "i4")],
    "paths": [PurePosixPath("a/b"), "a/b", PurePosixPath("a"), ("a", "b"), PureWindowsPath("a")],
    "views": [memoryview(np.zeros(shape, dtype)) for shape in ((2, 3), (3, 2), (6,)) for dtype in ("f4", "i4", ">i4", "f8")],
    "arrays": [each(np.zeros(2, [("a", "i4")])) for each in (np.asarray, np.rec.array, np.ma.asarray)],
    "fill values": [np.ma.masked_array([1.0, 2.0], [0, 1], fill_value=fill) for fill in (5, 6)],
    "masks of objects": [np.ma.masked_array([1, 2], mask, object) for mask in ([0, 1], [1, 0])],
    "object fields": [np.array([(1, None)], [(name, object), ("b", object)]) for name in ("a", "c")],
    "overlapping fields": [
        np.zeros(2, {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, offset]}) for offset in (0, 2)
    ],
    "flags": [re.RegexFlag(0), re.RegexFlag(3), re.RegexFlag(5), re.RegexFlag(2)],
    "ranges": [range(10**9), range(10**9 + 1), range(0, 10**9, 2), [0, 10**9]],
    "large numbers": [10**5000, -(10**5000), 10**5000 + 1],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    keys = [object_key(value) for value in DIFFERENT[name]]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)


def test_layout_in_memory_does_not_matter_but_order_does() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for same in (np.asfortranarray(array), array[:, ::1], np.ascontiguousarray(array[::-1])[::-1]):
        assert object_key(same) == object_key(array)
    assert object_key(array.T) != object_key(array)
    assert object_key(np.ascontiguousarray(array.T)) == object_key(array.T)
    tensor = torch.from_numpy(array)
    assert object_key(tensor.t().contiguous().t()) == object_key(tensor)
    assert object_key(tensor.t()) != object_key(tensor)
    assert object_key(torch.complex(tensor, tensor).conj()) == object_key(torch.complex(tensor, -tensor))


def test_bytes_between_the_fields_of_an_array_do_not_matter() -> None:
    dtype = np.dtype({"names": ["a", "b"], "formats": ["u1", [("c", "f8")]], "offsets": [0, 8], "itemsize": 20})
    clean = np.zeros(3, dtype)
    for gap in (3, 19):
        other = np.zeros(3, dtype)
        other.view(np.uint8).reshape(3, 20)[:, gap] = 7
        assert object_key(other) == object_key(clean)
        assert object_key(other[0]) == object_key(clean[0])
    other["b"]["c"][1] = 1
    assert object_key(other) != object_key(clean)


def test_order_of_keyword_arguments_does_not_matter() -> None:
    one = {"size": {"width": 1, "height": 2}, "crop": True}
    other = {"crop": True, "size": {"height": 2, "width": 1}}
    assert object_key("image", one) == object_key("image", other)
    assert object_key({3, 1, 2}) == object_key({2, 3, 1})
    assert object_key([1, 2]) != object_key([2, 1])


def test_context_is_apart_from_the_value() -> None:
    assert len({object_key("a", "b"), object_key("ab"), object_key(("a", "b")), object_key("b", "a"), object_key("a")}) == 5


def test_views_are_compared_as_they_read() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert object_key(memoryview(np.asfortranarray(array))) == object_key(memoryview(array))
    assert object_key(memoryview(array)[::-1]) == object_key(memoryview(array[::-1].copy()))


def animated(second: str) -> Image.Image:
    file = io.BytesIO()
    image("P").save(file, "GIF", save_all=True, append_images=[image("RGB", fill=second)])
    return Image.open(file)


def test_an_image_of_several_frames_is_refused_but_not_its_frames() -> None:
    """Two that differ in their second frame only are not one object."""
    with pytest.raises(TypeError, match=r"class.* of 2 frames: give the file's bytes"):
        object_key(animated("red"))
    red, blue = animated("red"), animated("blue")
    assert object_key(red.copy()) == object_key(blue.copy())
    red.seek(1)
    blue.seek(1)
    assert object_key(red.copy()) != object_key(blue.copy())


def test_a_phones_photograph_is_its_first_picture() -> None:
    """MPO: the frames behind it are previews of the same photograph."""
    file = io.BytesIO()
    image("RGB").save(file, "MPO", save_all=True, append_images=[image("RGB", fill="red")])
    photograph = Image.open(file)
    assert (photograph.format, photograph.n_frames) == ("MPO", 2)  # type: ignore[attr-defined]
    assert object_key(photograph) == object_key(photograph.copy())


@pytest.mark.parametrize("orientation", ["abc", float("nan"), None, b"6", 0, 9, (6, 1)])
def test_an_orientation_that_is_none_turns_nothing(orientation: Any) -> None:
    odd = image("RGB")
    odd.getexif()[0x0112] = orientation
    assert object_key(odd) == object_key(turned(1))


def test_copies_of_an_image_are_equal() -> None:
    original = with_palette(1, 2, 3)
    assert object_key(original.copy()) == object_key(original)


class Text(str):
    __slots__ = ()


class Number(np.float64):
    pass


class Boxes(np.ndarray[Any, Any]):
    pass


class Points(torch.Tensor):
    pass


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


REFUSED: dict[str, object] = {
    "object": object(),
    "function": lambda: 0,
    "in a list": [object()],
    "in a dict": {"a": object()},
    "str": Text("a"),
    "str with fields": Label(1),
    "class": {1: int},
    "number": Number(1),
    "array": np.zeros(2).view(Boxes),
    "tensor": torch.zeros(2).as_subclass(Points),
    "meta": torch.zeros(2, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
    "nested": nested(),
    "references": memoryview(np.array([None])),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_has_no_content_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="class"):
        object_key(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested"):
        object_key(endless)


PROGRAM = """
import numpy as np, torch
from PIL import Image
from arena.hashing import object_key
value = {"image": Image.new("RGB", (3, 2), (1, 2, 3)), "ids": {"b", "a", "c"}, "x": np.arange(4), "t": torch.ones(2)}
print(object_key(value, "model", {"size": 336, "crop": None}).hex())
"""


def test_the_same_in_every_process_and_hash_seed() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("0", "1", "4711")
    ]
    outputs = {process.communicate(timeout=120)[0] for process in processes}
    assert len(outputs) == 1
    assert len(outputs.pop().strip()) == 64


ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def frozen(value: Any) -> Any:
    """Equal exactly where the values are the same in content and type."""
    if isinstance(value, dict):
        return dict, frozenset((key, frozen(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(frozen, value))
    return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)


@given(VALUES, VALUES)
def test_equal_exactly_for_equal_content(one: object, other: object) -> None:
    assert (object_key(one) == object_key(other)) == (frozen(one) == frozen(other))
