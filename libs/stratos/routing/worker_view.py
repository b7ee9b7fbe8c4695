"""One worker at one moment: its own status, the router's verdict on it, and what the router has booked on it.

The status is the truth, but it is a moment old.  ``fresh`` are placements made since it arrived, ``held`` all
placements that have not ended; the load is whichever account is larger, so that neither a burst between two
statuses nor the load of another router is overlooked, and nothing is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.fleet import WorkerStatus
from stratos.core.placement import WorkerRef


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedLoad:
    """Sum over some placements."""

    num_requests: int = 0
    num_seqs: int = 0
    num_blocks: int = 0
    """KV blocks of prompts and output budgets; decode side."""
    num_prefill_tokens: int = 0
    """Prompt tokens to compute; prefill side."""

    def __add__(self, other: BookedLoad) -> BookedLoad:
        return BookedLoad(
            num_requests=self.num_requests + other.num_requests,
            num_seqs=self.num_seqs + other.num_seqs,
            num_blocks=self.num_blocks + other.num_blocks,
            num_prefill_tokens=self.num_prefill_tokens + other.num_prefill_tokens,
        )

    def __sub__(self, other: BookedLoad) -> BookedLoad:
        return BookedLoad(
            num_requests=self.num_requests - other.num_requests,
            num_seqs=self.num_seqs - other.num_seqs,
            num_blocks=self.num_blocks - other.num_blocks,
            num_prefill_tokens=self.num_prefill_tokens - other.num_prefill_tokens,
        )


NO_LOAD = BookedLoad()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What filters and scorers look at."""

    ref: WorkerRef
    status: WorkerStatus
    out_reason: str = ""
    """Why it may not be chosen; empty when it may."""
    age_s: float = 0.0
    """Seconds since the status arrived."""
    moved_at: float = 0.0
    """When a status last showed that it moves, or has nothing to do; monotonic seconds."""
    fresh: BookedLoad = NO_LOAD
    held: BookedLoad = NO_LOAD
    num_ended_seqs: int = 0
    """Sequences of the status that were reported as ended since it arrived."""

    @property
    def num_seqs(self) -> int:
        """Sequences that run, wait or are on their way there."""
        reported = max(0, self.status.num_running + self.status.num_waiting - self.num_ended_seqs)
        return max(self.held.num_seqs, reported + self.fresh.num_seqs)

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that are taken or promised; evictable cache is not among them."""
        blocks = self.status.blocks
        return max(self.held.num_blocks, blocks.allocated + blocks.reserved + blocks.fenced + self.fresh.num_blocks)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens that have to be computed there."""
        return self.status.num_queued_tokens + self.fresh.num_prefill_tokens

    @property
    def free_kv_ratio(self) -> float:
        """Share of the pool that is neither taken nor promised."""
        total = self.status.blocks.total
        return max(0.0, 1.0 - self.num_used_blocks / total) if total else 0.0
