"""Load of one engine: what it holds, what waits there, and whether its step loop moves.

The engine fills the record, its worker hands it on in ``WorkerStatus``, and the wire carries it field by field: a new
number is a field here and in the message, with no copy between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.kv import BlockLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The part of an engine's status that other processes see."""

    step: int
    """Counter of the step loop."""
    is_computing: bool
    """The engine has work, so the counter must move."""
    slow_step_s: float = 0.0
    """Slowest recent step: what a big model or a busy machine may take, so that slow is not taken for stuck."""
    blocks: BlockLedger
    num_waiting: int
    num_running: int
    num_queued_tokens: int
    """Prompt tokens that still have to be computed there."""
    num_free_batch_slots: int
    """Places in the batch that no request has or was promised; sequences that wait will take some of them."""
    num_promised_blocks: int
    """KV blocks that its requests and waiting sequences are expected to take and do not hold."""
    p90_output_tokens: int
    """90th percentile of the output lengths so far, one-token probes left out."""
    kv_watermark: float
    """Share of the KV pool that admission may fill."""
    num_free_adapter_slots: int
    """Adapters without a user that could be loaded now."""
