"""Compiles the kernels, once per instruction set: ``python -m stratos.engine.native.build``.

Part of the installation, never of a start.  Without a compiler, or on another processor family, it says so and leaves
nothing: the engine then runs on pure torch.  The OpenMP run-time is not linked: torch's is found when the library is
loaded, whatever its file is called, so that both share one pool of threads.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess  # compiles our own sources with fixed arguments
import sys
import tempfile
from pathlib import Path

from stratos.engine.native.isa import INSTRUCTION_SETS, SOURCE_FOLDER, InstructionSet, source_digest

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
        objects = []
        for source in sorted(SOURCE_FOLDER.glob("*.cpp")):
            objects.append(str(Path(scratch) / f"{source.stem}.o"))
            definition = f'-DSTRATOS_SOURCES="{source_digest()}"'
            command = [compiler, *FLAGS, *EXACT_FLAGS, *isa.compiler_flags, definition]
            _run([*command, "-c", str(source), "-o", objects[-1]])
        library = Path(scratch) / isa.file_name
        _run([compiler, "-shared", *objects, "-o", str(library)])
        return library.replace(target / isa.file_name)


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildFailed(result.stderr.strip() or f"{command[0]} ended with {result.returncode}")


def main() -> int:
    """Build every library; a machine that cannot is no error."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0]).parse_args()
    compiler = find_compiler()
    if platform.machine() not in ("x86_64", "AMD64") or compiler is None:
        reason = (
            f"no C++ compiler ({', '.join(COMPILERS)})" if compiler is None else f"a {platform.machine()} processor"
        )
        print(f"native kernels are not built ({reason}); the engine runs on pure torch, which is slower")
        return 0
    for isa in INSTRUCTION_SETS:
        try:
            print(f"built {build(isa, compiler).name}")
        except BuildFailed as error:
            print(f"native kernels for {isa.name} are not built: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
