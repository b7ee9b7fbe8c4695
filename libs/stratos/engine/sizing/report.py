"""The block of text that a start prints: what was chosen, and why."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.plan import SizingChoice, size

UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""Best first: which one is named."""


def machine_line(machine: Machine) -> str:
    """Processor, cores and memory in one line."""
    unit = next((name for flag, name in UNITS.items() if flag in machine.cpu_flags), "no vector unit that is used")
    cores = f"{machine.num_cores} core{'' if machine.num_cores == 1 else 's'}"
    sockets = f" of {machine.num_sockets} memory nodes" if machine.num_sockets > 1 else ""
    memory = f"{size(machine.available_bytes)} of {size(machine.total_bytes)} free ({machine.limited_by})"
    return f"{machine.cpu_name}, {unit}, {cores}{sockets}, {memory}"


def choices_block(title: str, choices: Sequence[SizingChoice]) -> str:
    """A line for each choice under the title."""
    names, values = (max(len(getattr(choice, field)) for choice in choices) for field in ("name", "value"))
    lines = (f"  {choice.name:<{names}}  {choice.value:<{values}}  {choice.reason}" for choice in choices)
    return "\n".join((title, *lines))
