"""One worker at one moment: its own status, the router's verdict on it, and what the router has booked since.

The status is the truth, but it is a moment old.  ``fresh`` are the placements that it may not show yet: those made
since it arrived, or so shortly before that they were on their way.  One that it shows already counts twice until the
next status: for a moment too much room is taken, and never too little.
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
    fresh_adapters: frozenset[str] = frozenset()
    """Adapters of the placements that the status may not show, those left out that were resident then."""
    num_ended_seqs: int = 0
    """Sequences of the status that were reported as ended since it arrived."""

    @property
    def num_seqs(self) -> int:
        """Sequences that run, wait, are promised a place or are on their way there."""
        return max(0, self.status.num_seqs - self.num_ended_seqs) + self.fresh.num_seqs

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that are taken, by requests on their way too; evictable cache is not among them."""
        blocks = self.status.blocks
        return blocks.allocated + blocks.reserved + blocks.fenced + self.fresh.num_blocks

    def kept_for_other_routers(self, free: float) -> float:
        """Of ``free`` room in the status, what other routers may be giving away at this moment.

        Routers see one status and do not see one another: each of R places at most one request by a status, or what
        fits into its R-th part.
        """
        num_routers = self.status.num_routers
        if num_routers <= 1 or not self.fresh.num_requests:
            return 0.0
        return max(0.0, free) * (num_routers - 1) / num_routers

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens that have to be computed there."""
        return self.status.num_queued_tokens + self.fresh.num_prefill_tokens

    @property
    def free_kv_ratio(self) -> float:
        """Share of the pool that is neither taken nor promised."""
        total = self.status.blocks.total
        taken = self.num_used_blocks + self.status.num_promised_blocks
        return max(0.0, 1.0 - taken / total) if total else 0.0
