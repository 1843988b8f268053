"""Only what pyproject.toml cannot say: the C module, and one wheel for every Python from 3.10 on."""

from setuptools import setup

setup(
    cffi_modules=["csrc/build_native.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
