"""Layer operations in torch whose bits depend on nothing but the row.

Torch computes the elements that do not fill a vector with scalar functions, which round differently; where that tail
lies depends on the size of the batch and on the threads.  Sums of a row, and single multiplications, additions and
divisions have one right result; the exponential has not, so it is made of them here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.engine.layers.ops import TorchOps
from stratos.engine.revisions import revised

_LOG2_E = 1.44269504
_POLYNOMIAL = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
"""Coefficients of 2^f for |f| <= 0.5: the series of exp, relative error below 2e-7."""


class ExactTorchOps(TorchOps):
    """For CPUs without the C++ kernels, in exact mode."""

    name = revised("torch-ops", "torch-exact")

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, -1)
        return (gate / (exp2(gate * -_LOG2_E) + 1.0) * up).to(gate_up.dtype)


def exp2(x: Tensor) -> Tensor:
    """``2^x`` of float32, bounded to exponents within +-126."""
    x = x.clamp(-126.0, 126.0)
    whole = x.round()
    fraction = x - whole
    value = torch.full_like(x, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        value = value * fraction + coefficient
    power = ((whole.nan_to_num_().to(torch.int32) + 127) << 23).view(torch.float32)
    return value * power
