"""The numerics id: everything that decides the last bits of a result, so that equal ids compute equal KV.

It ends with what it promises.  ``exact``: a token's bits are a function of its context and the weights, with any batch,
chunk and number of threads.  ``exact+threads-N``: the same among workers with N threads.  ``batched``: nothing, a
batch may change a bit.  Only kernels that are invariant by design promise the first; a library's products are made
independent of the batch by padding (``layers.invariance``), but how it shares a product out among threads is its own.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Kernel(Protocol):
    """Facts of an implementation on which the promise depends."""

    @property
    def is_invariant_by_design(self) -> bool:
        """Same as ``AttentionBackend.is_invariant_by_design``."""
        ...


def promise(kernels: tuple[Kernel, ...], device: torch.device, *, is_exact: bool) -> tuple[str, ...]:
    """Conditions of the bits that ``kernels`` compute, with as many threads as the caller has now.

    Args:
        kernels: everything that computes a layer.
        device: where they run; only a CPU's results depend on threads.
        is_exact: exact mode is on.
    """
    if all(kernel.is_invariant_by_design for kernel in kernels):
        return ("exact",)
    if not is_exact:
        return ("batched",)
    return ("exact", f"threads-{torch.get_num_threads()}") if device.type == "cpu" else ("exact",)


def numerics_id(device: torch.device, dtype: str, *parts: str) -> str:
    """Processor, torch version, compute type, names of the kernels and their promise."""
    unit = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"{device.type}-{unit}/torch-{torch.__version__}/{dtype}/{'+'.join(parts)}"
