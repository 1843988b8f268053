"""Builds ``arena._native``: the C files of this folder, as one extension for every Python from 3.10 on."""

from pathlib import Path

from cffi import FFI

HERE = Path("csrc")
SOURCES = [
    "arena_steps.c", "arena_trace.c", "arena_map.c", "arena_copy.c", "arena_ring.c", "arena_record.c", "arena_slots.c",
    "arena_objects.c", "arena_lease.c", "arena_lease_type.c", "arena_tensors.c", "arena_gates.c", "arena_probe.c",
]  # fmt: skip


def declarations() -> str:
    """The part of arena_native.h that cffi reads."""
    text = (Path(__file__).parent / "arena_native.h").read_text()
    return text.split("/* cdef begin */")[1].split("/* cdef end */")[0]


ffi = FFI()
ffi.cdef(declarations())
ffi.set_source(
    "arena._native",
    '#include "arena_native.h"',
    sources=[str(HERE / name) for name in SOURCES],
    include_dirs=[str(HERE)],
    depends=[str(path) for path in HERE.glob("*.h")],
    define_macros=[("Py_LIMITED_API", "0x030a0000")],
    extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-pthread", "-fvisibility=hidden"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
