"""Trail of a generation, for the request's receipt: each attempt's placement and end, and the prompt's way."""

from __future__ import annotations

from typing import Any

from stratos.common.changed import record
from stratos.core.generation import DraftUse, Receipt
from stratos.core.placement import Outcome, Placement
from stratos.core.requests.pins import CacheWrites, PinTerms

_NS_PER_US = 1000


@record(frozen=True, slots=True, kw_only=False)
class AttemptTrail:
    """One attempt that has ended."""

    placement: Placement
    outcome: Outcome
    cause: str | None
    """Why another one was due; ``None`` where none was."""
    num_output_tokens: int
    """New ones, over all choices."""

    def to_json(self, *, tells_choice: bool) -> dict[str, Any]:
        """The attempt in a receipt, with what its placement was chosen from or without."""
        placement = self.placement
        section = {
            "worker": placement.worker.worker_id,
            "prefill": [worker.worker_id for worker in placement.prefill] if placement.decode else [],
            "router": placement.router_address,
            "queued_ms": placement.queued_ms,
            "outcome": self.outcome.value,
            "cause": self.cause,
            "output_tokens": self.num_output_tokens,
        }
        return section | _choice(placement) if tells_choice else section


def _choice(placement: Placement) -> dict[str, Any]:
    """Workers by score, those that a filter dropped, and how many were before the request over time."""
    samples = placement.queue_samples
    return {
        "queue": [list(pair) for pair in zip(samples[::2], samples[1::2], strict=True)],
        "candidates": {name: round(score, 3) for name, score in placement.scores.items()},
        "rejected": dict(placement.rejections),
        "others": placement.num_unnamed,
    }


def drafts_section(drafts: DraftUse) -> dict[str, Any]:
    """Drafts of a generation; nothing where it had none."""
    if not (drafts.num_drafted or drafts.num_accepted or drafts.num_cut):
        return {}
    return {
        "drafted_tokens": drafts.num_drafted,
        "accepted_tokens": drafts.num_accepted,
        "cut_tokens": drafts.num_cut,
    }


def pins_section(pins: PinTerms, receipt: Receipt, writes: CacheWrites) -> dict[str, Any]:
    """Breakpoints of a prompt, and how much of it its worker keeps; nothing where there are none."""
    if not pins.breakpoints:
        return {}
    return {
        "breakpoints": [[mark.num_tokens, mark.ttl_s] for mark in pins.breakpoints],
        "pinned_tokens": receipt.num_pinned_tokens,
        "cache_write_tokens": writes.total,
    }


def prompt_section(receipt: Receipt, num_prompt_tokens: int, *, is_exact: bool) -> dict[str, Any]:
    """Where a prompt's KV came from, how long it took, and whether all attempts computed the same bits."""
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
        "is_exact": is_exact,
    }
