"""How often a thread of GNU's OpenMP may look for the others before it sleeps: as many looks as take 50 us here.

A look is a load and the instruction ``pause``, whose length is the processor's: 10,000 are 0.13 ms on a Xeon and
0.24 ms on an EPYC.  The run-time counts them, and learns the number while it is loaded.  So a process of its own loads
it, without torch, and times looks by its CPU time, of which a busy machine disturbs some runs alone.
"""

from __future__ import annotations

import subprocess  # our own program, in this interpreter
import sys
from importlib.util import find_spec
from pathlib import Path

from stratos.engine.native.isa import SOURCE_FOLDER, cpu_flags, supported_sets

MAX_SPIN_NS = 50_000
TARGET_NS = 42_000
"""Leaves room for a core that slows down later."""
FALLBACK_LOOKS = 1_000
"""Where looks cannot be timed: the longest ``pause`` known, 140 cycles, makes them 50 us at 2.8 GHz."""
TIMEOUT_S = 20.0
PROGRAM = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
look = ctypes.CDLL(sys.argv[2]).stratos_looks_ns
look.restype, look.argtypes = ctypes.c_int64, [ctypes.c_int64]
look(2000)
print(min(look(2000) / 2000 for _ in range(15)))
"""


def bounded_looks() -> int:
    """Looks within ``MAX_SPIN_NS`` on this processor."""
    nanoseconds = look_ns()
    return FALLBACK_LOOKS if nanoseconds is None else max(1, int(TARGET_NS / nanoseconds))


def look_ns() -> float | None:
    """CPU time of a look; ``None`` where there are no kernels, or no run-time that they can be loaded beside."""
    libraries = _openmp(), _kernels()
    if None in libraries:
        return None
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, *map(str, libraries)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        found = float(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found if found > 0 else None


def _openmp() -> Path | None:
    """The run-time in torch's folder, found without importing torch."""
    torch = find_spec("torch")
    folders = [] if torch is None else torch.submodule_search_locations or []
    return next((path for folder in folders for path in sorted(Path(folder, "lib").glob("libgomp*.so*"))), None)


def _kernels() -> Path | None:
    paths = (SOURCE_FOLDER / isa.file_name for isa in supported_sets(cpu_flags()))
    return next((path for path in paths if path.exists()), None)
