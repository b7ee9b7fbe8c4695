"""Which instruction sets the kernels are built for, and which of them this processor has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent
_CPU_FACTS = Path("/proc/cpuinfo")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One build of the kernels.

    Each computes bfloat16 in an order of its own, so its name is part of the numerics id.
    """

    name: str
    cpu_flags: tuple[str, ...]
    """Flags that the processor must have, as Linux spells them."""
    compiler_flags: tuple[str, ...]
    needs_permission: bool = False
    """A system may refuse it to a process although the processor has it: then the next one serves."""

    @property
    def file_name(self) -> str:
        """Name of the shared library, beside the sources."""
        return f"kernels-{self.name}.so"


_AVX2_CPU = ("avx2", "fma", "f16c")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512_BF16_CPU = (*_AVX2_CPU, *_AVX512, "avx512_bf16", "avx512_vnni")
_AVX512_BF16 = (*_AVX2, *(f"-m{flag}" for flag in _AVX512), "-mavx512bf16", "-mavx512vnni")
_TILE_ORDER = "-DSTRATOS_TILE_ORDER"

INSTRUCTION_SETS = (
    InstructionSet(
        "amx",
        (*_AVX512_BF16_CPU, "amx_tile", "amx_bf16", "amx_int8"),
        (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8", _TILE_ORDER),
        needs_permission=True,
    ),
    InstructionSet("avx512-bf16", _AVX512_BF16_CPU, _AVX512_BF16),
    InstructionSet("avx512", (*_AVX2_CPU, *_AVX512), (*_AVX2, *(f"-m{flag}" for flag in _AVX512))),
    InstructionSet("avx2", _AVX2_CPU, _AVX2),
)
"""Fastest first."""
TILE_TWIN = InstructionSet("amx-twin", _AVX512_BF16_CPU, (*_AVX512_BF16, _TILE_ORDER))
"""The sums of ``amx`` by vectors, for tests: the same bits on processors without tiles, and never taken by itself."""


def cpu_flags(facts: Path = _CPU_FACTS) -> frozenset[str]:
    """Features of this processor; empty where the system does not tell."""
    if not facts.exists():
        return frozenset()
    for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def supported_sets(flags: frozenset[str]) -> list[InstructionSet]:
    """Builds that a processor with ``flags`` can run, fastest first."""
    return [isa for isa in INSTRUCTION_SETS if flags.issuperset(isa.cpu_flags)]


def source_digest(folder: Path = SOURCE_FOLDER) -> str:
    """Names the sources, so that a library built from others is noticed."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
