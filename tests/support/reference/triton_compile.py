"""Compiles kernels for a GPU without one: launch functions run as always, but a launch ends after the compiler.

Use ``compiled`` in a process that does not interpret kernels.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class _Target:
    """As much of a driver as compiling needs."""

    capability: int

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass
class Compiled:
    """Kernels by name, in order of launch."""

    kernels: dict[str, list[Any]] = field(default_factory=dict)


@contextmanager
def compiled(capability: int = 90) -> Iterator[Compiled]:
    """Within the block every launch compiles for a compute capability and is recorded, and nothing runs."""
    record, run = Compiled(), JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        known = record.kernels.setdefault(self.fn.__name__, [])
        if all(kernel is not other for other in known):
            known.append(kernel)
        return kernel

    driver.set_active(_Target(capability))
    JITFunction.run = compile_only  # type: ignore[method-assign]
    try:
        yield record
    finally:
        JITFunction.run = run  # type: ignore[method-assign]


def resources(cubin: bytes) -> dict[str, int]:
    """Of a compiled kernel: registers per thread, and bytes of stack and local memory, where registers spill to."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout))
    return {"registers": int(found["REG"]), "spilled_bytes": int(found["STACK"]) + int(found["LOCAL"])}
