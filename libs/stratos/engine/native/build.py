"""Compiles the kernels: ``python -m stratos.engine.native.build``.

Part of the installation, never of a start.  One library per instruction set; a machine needs the fastest that it can
run, and the next one where the system may refuse that; ``--shipped`` builds for every processor, as an image needs it,
and ``--all`` the twin that tests compare with, too.  A library that comes from the same sources stays.  Without a
compiler, or on another processor family, it says so and leaves nothing: the engine then runs on pure torch.  The OpenMP
run-time is not linked: torch's is found when the library is loaded, under any file name, so that both share one pool of
threads.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess  # compiles our own sources with fixed arguments
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from stratos.engine.native import isa as instruction_sets
from stratos.engine.native.isa import (
    INSTRUCTION_SETS,
    SOURCE_FOLDER,
    TILE_TWIN,
    InstructionSet,
    cpu_flags,
    source_digest,
    supported_sets,
)

COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-exceptions", "-fno-rtti", "-fno-math-errno")
EXACT_FLAGS = ("-ffp-contract=off",)
"""Whether a product and a sum are fused is written in the sources, not left to how a loop was unrolled."""


class BuildFailed(Exception):
    """The compiler refused; the message is its own."""


def find_compiler() -> str | None:
    """Path of the first C++ compiler on the path."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def build(isa: InstructionSet, compiler: str, target: Path = SOURCE_FOLDER) -> Path:
    """Compile one library into the folder ``target``; an existing one is replaced at once or not at all.

    Raises:
        BuildFailed: with the compiler's message.
    """
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        definition = f'-DSTRATOS_SOURCES="{source_digest()}"'
        command = [compiler, *FLAGS, *EXACT_FLAGS, *isa.compiler_flags, definition]
        sources = sorted(SOURCE_FOLDER.glob("*.cpp"))
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # threads wait for compilers, which are processes
            objects = list(pool.map(partial(_compile, command, Path(scratch)), sources))
        library = Path(scratch) / isa.file_name
        _run([compiler, "-shared", *objects, "-o", str(library)])
        return library.replace(target / isa.file_name)


def is_current(library: Path) -> bool:
    """The library exists and comes from these sources and these compiler flags.

    The digest of the sources is compiled into it.  Flags are in no digest: a library has to be newer than the two
    modules that hold them.
    """
    if not library.exists() or source_digest().encode() not in library.read_bytes():
        return False
    flags_changed_s = max(Path(module).stat().st_mtime for module in (__file__, instruction_sets.__file__))
    return library.stat().st_mtime > flags_changed_s


def _compile(command: list[str], folder: Path, source: Path) -> str:
    target = str(folder / f"{source.stem}.o")
    _run([*command, "-c", str(source), "-o", target])
    return target


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildFailed(result.stderr.strip() or f"{command[0]} ended with {result.returncode}")


def chosen_sets(*, is_shipped: bool, builds_all: bool) -> tuple[InstructionSet, ...]:
    """Builds that do not depend on what this machine can run; none where that decides."""
    if builds_all:
        return (*INSTRUCTION_SETS, TILE_TWIN)
    return INSTRUCTION_SETS if is_shipped else ()


def main() -> int:
    """Build every library; a machine that cannot is no error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shipped", action="store_true", help="build for every instruction set, not for this machine")
    which.add_argument("--all", action="store_true", help="the same, and what tests alone run")
    arguments = parser.parse_args()
    chosen = chosen_sets(is_shipped=arguments.shipped, builds_all=arguments.all)
    compiler = find_compiler()
    is_other = platform.machine() not in ("x86_64", "AMD64")
    if is_other or compiler is None:
        reason = f"no C++ compiler ({', '.join(COMPILERS)})"
        if is_other:
            reason = f"they are written for x86-64, and this processor is {platform.machine()}"
        print(f"native kernels are not built ({reason}); the engine runs on pure torch, which is slower")
        return 0
    for isa in chosen or supported_sets(cpu_flags()):
        if _provide(isa, compiler) and not chosen and not isa.needs_permission:
            break  # older compilers do not know the newest instruction sets: then the next one serves
    return 0


def _provide(isa: InstructionSet, compiler: str) -> bool:
    if is_current(SOURCE_FOLDER / isa.file_name):
        return True
    print(f"==> compiling the engine's kernels for {isa.name}", flush=True)
    try:
        build(isa, compiler)
    except BuildFailed as error:
        print(f"native kernels for {isa.name} are not built: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
