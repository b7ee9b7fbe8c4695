"""The numerics id: everything that decides the last bits of a result, so that equal ids compute equal KV.

It names the compute type and each kernel with the revision of its arithmetic (``engine.revisions``); processor and
versions of libraries stand before them where a library computes a part of a layer, else they change nothing.

It ends with what it promises.  ``exact``: a token's bits are a function of its context and the weights, with any batch,
chunk and number of threads.  ``exact+threads-N``: the same among workers with N threads.  ``batched``: nothing, a
batch may change a bit.  Only kernels that are invariant by design promise the first; a library's products are made
independent of the batch by padding (``layers.invariance``), but how it shares a product out among threads is its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

import torch

from stratos.core.kv import BATCHED


class Kernel(Protocol):
    """Facts of an implementation on which the promise depends."""

    @property
    def is_invariant_by_design(self) -> bool:
        """Same as ``AttentionBackend.is_invariant_by_design``."""
        ...

    @property
    def libraries(self) -> tuple[str, ...]:
        """Same as ``AttentionBackend.libraries``."""
        ...


def promise(kernels: Sequence[Kernel], device: torch.device, *, is_exact: bool) -> tuple[str, ...]:
    """Conditions of the bits that ``kernels`` compute, with as many threads as the caller has now.

    Args:
        kernels: everything that computes a layer.
        device: where they run; only a CPU's results depend on threads.
        is_exact: exact mode is on.
    """
    if all(kernel.is_invariant_by_design for kernel in kernels):
        return ("exact",)
    if not is_exact:
        return (BATCHED,)
    return ("exact", f"threads-{torch.get_num_threads()}") if device.type == "cpu" else ("exact",)


def libraries_of(kernels: Sequence[Kernel], routing: Sequence[str] = ()) -> frozenset[str]:
    """Libraries that compute a part of a layer; ``routing``: those that choose experts and weight them."""
    return frozenset(name for kernel in kernels for name in kernel.libraries) | frozenset(routing)


def numerics_id(device: torch.device, dtype: str, libraries: frozenset[str], *parts: str) -> str:
    """Device, versions of libraries, compute type, names of the kernels and their promise.

    ``cpu/bfloat16/native-avx512.r1+native-avx512.r1+gemm-avx512.r1+rope-12ab...+exact`` of our own kernels, and
    ``cpu-AVX512/torch-2.13.0/float32/torch-tiled.r1+...`` where torch computes.
    """
    unit = device.type
    if device.type != "cpu":
        unit += f"-{torch.cuda.get_device_name(device)}"
    elif libraries:
        unit += f"-{torch.backends.cpu.get_cpu_capability()}"
    versions = [f"{name}-{importlib.import_module(name).__version__}" for name in sorted(libraries)]
    if device.type == "cuda" and "torch" in libraries:
        versions.append(f"cuda-{torch.version.cuda}")  # the toolkit whose libraries multiply
    return "/".join((unit, *versions, dtype, "+".join(parts)))
