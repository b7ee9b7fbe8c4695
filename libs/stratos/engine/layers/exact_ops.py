"""Layer operations in torch whose bits depend on nothing but the row.

Torch computes the elements that do not fill a vector with scalar functions, which round differently; where that tail
lies depends on the size of the batch and on the threads.  Sums of a row, and single multiplications, additions and
divisions have one right result; the exponential has not, so it is made of them here.
"""

from __future__ import annotations

from torch import Tensor

from stratos.engine.layers.ops import SILU_GATE, TorchOps, joined_halves
from stratos.engine.revisions import revised


class ExactTorchOps(TorchOps):
    """For CPUs without the C++ kernels, in exact mode."""

    name = revised("torch-ops", "torch-exact")

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return joined_halves(gate_up, SILU_GATE)
