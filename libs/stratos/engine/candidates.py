"""Kernels of a GPU that wait for their first measurement: off by default, each in a switch of its own.

A measurement on a GPU makes a candidate the default, or removes it with its code. ``scripts/gpu_check.py`` measures
each one on and off; ``docs/gpu.md`` has this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCandidate:
    """A kernel that no GPU has measured yet."""

    name: str
    switch: str
    """Field of ``KernelSwitches`` that turns it on."""
    gain: str
    """Effect that a measurement has to show."""
    sections: tuple[str, ...]
    """Sections of ``scripts/gpu_check.py`` that measure it."""
    code: tuple[str, ...]
    """Files below ``libs/stratos/engine`` that go with it if it gains nothing."""


GPU_CANDIDATES = (
    GpuCandidate(
        name="products by the fastest kernel",
        switch="gemm_choice",
        gain="Products of up to 64 rows nearer to the bandwidth of memory. At start the fastest of torch's two "
        "libraries and our kernel is chosen for each size.",
        sections=("ablations", "products"),
        code=("layers/product_choice.py", "triton_kernels/few_rows.py"),
    ),
    GpuCandidate(
        name="inputs of a decode step by one kernel",
        switch="prepare_kernel",
        gain="Less time between two decode steps. One kernel, the first node of the captured graph, makes the inputs "
        "from one copy into a static buffer, instead of one copy and some fifteen small kernels before the graph.",
        sections=("ablations",),
        code=("runner/cuda/packed_inputs.py", "triton_kernels/decode_inputs.py"),
    ),
    GpuCandidate(
        name="dependent launch",
        switch="dependent_launch",
        gain="Less time between two kernels of a layer. Norms, rotation and KV write, attention, activation and "
        "products of few rows start while the kernel before them still runs, and wait before their first access to "
        "memory (programmatic dependent launch, compute capability 9.0).",
        sections=("ablations",),
        code=("triton_kernels/dependent_launch.py",),
    ),
)
