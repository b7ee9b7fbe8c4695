"""Use of a processor's peak: operations that steps computed at least, next to a peak that is set.

Every token takes part in the products with the weights of its layers, and one that is sampled in that of the output
layer.  Attention, adapters and what a step computes in vain (padding, rejected drafts' rows of the output layer) are
left out, so the use is a lower bound; it is what decides the speed of prompts.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from stratos.engine.contract.results import StepResult
from stratos.engine.contract.runner import RunnerInfo
from stratos.rpc.instruments import counter, gauge

OPERATIONS = counter(
    "stratos_engine_operations", "Multiplications and additions of products with weights that steps computed at least."
)
OPERATIONS_PEAK = gauge("stratos_engine_peak_operations_per_second", "Peak of the worker's processor, as set.")


class OperationMeter:
    """Belongs to the event loop.

    Args:
        registry: of the process.
        info: of the loaded model.
        peak_per_s: operations a second; 0 leaves every series out, because without it nothing follows from the count.
    """

    def __init__(self, registry: CollectorRegistry, info: RunnerInfo, peak_per_s: float) -> None:
        self._info = info
        self._is_on = peak_per_s > 0 and info.token_operations > 0
        if not self._is_on:
            return
        self._count = OPERATIONS.open(registry)
        OPERATIONS_PEAK.open(registry).set(peak_per_s)

    def on_step(self, result: StepResult) -> None:
        """Count a step's tokens."""
        if not self._is_on:
            return
        num_sampled = result.num_sampled
        layers = result.shares.num_tokens * self._info.token_operations
        self._count.inc(layers + num_sampled * self._info.sampled_operations)
