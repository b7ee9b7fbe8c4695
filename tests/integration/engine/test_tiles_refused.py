"""A process to which the system refuses tiles, although the processor has them."""

from __future__ import annotations

import subprocess  # permission is asked once in the life of a process
import sys

import pytest

from stratos.engine.native.isa import SOURCE_FOLDER
from tests.support.reference.native_kernels import TILE_SETS, native_library

REFUSED = """
import ctypes
from stratos.engine.native.isa import SOURCE_FOLDER
from stratos.engine.native.library import NativeLibrary, TilesRefused

class Stack(ctypes.Structure):
    _fields_ = (("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

memory = ctypes.create_string_buffer(6000)  # a signal stack without room for tiles: the system then refuses them
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
try:
    NativeLibrary(SOURCE_FOLDER / "kernels-amx.so", "amx")
except TilesRefused as refusal:
    print(refusal)
"""


@pytest.mark.skipif("amx" not in TILE_SETS, reason="this processor has no tiles")
def test_a_system_that_refuses_tiles_is_heard() -> None:
    if native_library("amx").path.parent != SOURCE_FOLDER:
        pytest.skip("the kernels are not built")
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert "needs tiles, and the system refuses them" in done.stdout
