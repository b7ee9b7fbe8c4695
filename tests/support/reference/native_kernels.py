"""The C++ kernels for tests: those that setup built, else built once per test process where there is a compiler."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
from torch import Tensor

from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.native.build import build, find_compiler
from stratos.engine.native.isa import SOURCE_FOLDER, TILE_TWIN, cpu_flags, supported_sets
from stratos.engine.native.library import NativeLibrary, NativeLibraryUnusable, TilesRefused

_SETS = {isa.name: isa for isa in supported_sets(cpu_flags())}
if cpu_flags().issuperset(TILE_TWIN.cpu_flags):
    _SETS[TILE_TWIN.name] = TILE_TWIN
NATIVE_SETS = list(_SETS)
"""Builds that this processor can run, the one with the tiles' sums by vectors among them."""
TILE_SETS = [name for name in ("amx", TILE_TWIN.name) if name in _SETS]
"""Those of them that add in the order of the tile instruction."""


@functools.cache
def _build_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stratos-kernels-")


@functools.cache
def native_library(name: str) -> NativeLibrary:
    """The library of one instruction set; skips the test where it can be neither loaded nor built."""
    isa = _SETS[name]
    try:
        return NativeLibrary(SOURCE_FOLDER / isa.file_name, isa.name)
    except TilesRefused as refusal:
        pytest.skip(str(refusal))
    except NativeLibraryUnusable:
        compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    return NativeLibrary(build(isa, compiler, Path(_build_folder().name)), isa.name)


def by_groups(linear: NativeProduct, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer of codes makes of rows with its groups one by one, and with several taken together."""
    linear.argument.single_groups = 1
    single = linear(x)
    linear.argument.single_groups = 0
    return single, linear(x)
