"""The C++ kernels for tests: those that setup built, else built once per test process where there is a compiler."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from stratos.engine.native.build import build, find_compiler
from stratos.engine.native.isa import SOURCE_FOLDER, cpu_flags, supported_sets
from stratos.engine.native.library import NativeLibrary, NativeLibraryUnusable

NATIVE_SETS = [isa.name for isa in supported_sets(cpu_flags())]
"""Instruction sets that this processor can run."""


@functools.cache
def _build_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stratos-kernels-")


@functools.cache
def native_library(name: str) -> NativeLibrary:
    """The library of one instruction set; skips the test where it can be neither loaded nor built."""
    isa = next(isa for isa in supported_sets(cpu_flags()) if isa.name == name)
    try:
        return NativeLibrary(SOURCE_FOLDER / isa.file_name, isa.name)
    except NativeLibraryUnusable:
        compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    return NativeLibrary(build(isa, compiler, Path(_build_folder().name)), isa.name)
