"""Trail of a generation, for the request's receipt: each attempt's placement and end, and the prompt's way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratos.core.generation import Receipt
from stratos.core.placement import Outcome, Placement

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class AttemptTrail:
    """One attempt that has ended."""

    placement: Placement
    outcome: Outcome
    cause: str | None
    """Why another one was due; ``None`` where none was."""
    num_output_tokens: int
    """New ones, over all choices."""

    def to_json(self) -> dict[str, Any]:
        """The attempt in a receipt."""
        placement = self.placement
        return {
            "worker": placement.worker.worker_id,
            "prefill": [worker.worker_id for worker in placement.prefill] if placement.decode else [],
            "router": placement.router_address,
            "queued_ms": placement.queued_ms,
            "outcome": self.outcome.value,
            "cause": self.cause,
            "output_tokens": self.num_output_tokens,
        }


def prompt_section(receipt: Receipt, num_prompt_tokens: int) -> dict[str, Any]:
    """Where a prompt's KV came from, and how long it took."""
    matched = receipt.num_cached_tokens
    return {
        "prefix_match_tokens": matched,
        "first_missed_token": matched if matched < num_prompt_tokens else None,
        "prefill_path": receipt.prefill_path.value,
        "prefill_worker": receipt.prefill_worker_id,
        "transferred_tokens": receipt.num_transferred_tokens,
        "recomputed_tokens": receipt.num_recomputed_tokens,
        "queue_us": receipt.queue_ns // _NS_PER_US,
        "prefill_us": receipt.prefill_ns // _NS_PER_US,
        "transfer_us": receipt.transfer_ns // _NS_PER_US,
        "numerics_id": receipt.numerics_id,
    }
