"""One worker at one moment: its own status, the router's verdict on it, and what the router has booked since.

The status is the truth, but it is a moment old.  ``fresh`` are the placements that it may not show yet: those made
since it arrived, or so shortly before that they were on their way.  One that it shows already counts twice until the
next status: for a moment too much room is taken, and never too little.
"""

from __future__ import annotations

import math
from dataclasses import field

from stratos.common.changed import record
from stratos.core.features import can_speak_with
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import WorkerRef


@record(frozen=True, slots=True, kw_only=True)
class BookedLoad:
    """Sum over some placements."""

    num_requests: int = 0
    num_seqs: int = 0
    num_lowest_seqs: int = 0
    """Sequences of the lowest class among them."""
    num_blocks: int = 0
    """KV blocks of prompts and output budgets; decode side."""
    num_prefill_tokens: int = 0
    """Prompt tokens to compute; prefill side."""

    def __add__(self, other: BookedLoad) -> BookedLoad:
        return BookedLoad(
            num_requests=self.num_requests + other.num_requests,
            num_seqs=self.num_seqs + other.num_seqs,
            num_lowest_seqs=self.num_lowest_seqs + other.num_lowest_seqs,
            num_blocks=self.num_blocks + other.num_blocks,
            num_prefill_tokens=self.num_prefill_tokens + other.num_prefill_tokens,
        )

    def __sub__(self, other: BookedLoad) -> BookedLoad:
        return BookedLoad(
            num_requests=self.num_requests - other.num_requests,
            num_seqs=self.num_seqs - other.num_seqs,
            num_lowest_seqs=self.num_lowest_seqs - other.num_lowest_seqs,
            num_blocks=self.num_blocks - other.num_blocks,
            num_prefill_tokens=self.num_prefill_tokens - other.num_prefill_tokens,
        )


NO_LOAD = BookedLoad()
UNKNOWN_SEQS = 64
"""Batch slots of a worker whose status has no number of them."""
BEGINNER = 1 << 20
"""So many routers leave none of them a second request by one status."""


@record(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as filters and scorers see it."""

    ref: WorkerRef
    status: WorkerStatus
    out_reason: str = ""
    """Why it may not be chosen; empty when it may."""
    moved_at: float = 0.0
    """When a status last showed that it moves, or has nothing to do; monotonic seconds."""
    fresh: BookedLoad = NO_LOAD
    held: BookedLoad = NO_LOAD
    fresh_adapters: frozenset[str] = frozenset()
    """Adapters of the placements that the status may not show, those left out that were resident then."""
    num_ended_seqs: int = 0
    """Sequences of the status that were reported as ended since it arrived."""
    num_routers: int = 1
    """Routers that may be placing requests there at this moment, this one among them."""
    has_refused: bool = False
    """A request of this router's that the status does not show has failed there."""

    is_in: bool = field(init=False, repr=False, compare=False)
    """It answers, is ready, does not drain, and speaks this build's protocol."""
    num_seqs: int = field(init=False, repr=False, compare=False)
    """Sequences that run, wait, are promised a place or are on their way there."""
    num_used_blocks: int = field(init=False, repr=False, compare=False)
    """KV blocks that are taken, by requests on their way too; evictable cache is not among them."""
    num_queued_tokens: int = field(init=False, repr=False, compare=False)
    """Prompt tokens that have to be computed there."""
    sure_seqs: float = field(init=False, repr=False, compare=False)
    """Sequences that certainly fit into its batch; admission may allow more."""
    sure_blocks: float = field(init=False, repr=False, compare=False)
    """KV blocks that admission certainly gives; it may give more."""
    free_slots_ratio: float = field(init=False, repr=False, compare=False)
    """Share of the batch slots that no sequence wants."""

    def __post_init__(self) -> None:
        """Numbers that every decision reads: there are far more decisions than views."""
        status, fresh = self.status, self.fresh
        engine, blocks, total = status.engine, status.engine.blocks, status.engine.blocks.total
        num_seqs = max(0, status.num_seqs - self.num_ended_seqs) + fresh.num_seqs
        used = blocks.allocated + blocks.reserved + blocks.fenced + fresh.num_blocks
        is_shared = self.num_routers > 1 and (fresh.num_requests > 0 or self.has_refused)
        free_seqs = status.max_num_seqs - num_seqs if status.max_num_seqs else math.inf
        free_blocks = engine.kv_watermark * total - used - engine.num_promised_blocks
        is_in = not (self.out_reason or status.is_draining or status.not_ready_reason)
        put = object.__setattr__
        put(self, "is_in", is_in and can_speak_with(status.protocol_version))
        put(self, "num_seqs", num_seqs)
        put(self, "num_used_blocks", used)
        put(self, "num_queued_tokens", engine.num_queued_tokens + fresh.num_prefill_tokens)
        put(self, "sure_seqs", -math.inf if is_shared else free_seqs)
        put(self, "sure_blocks", -math.inf if is_shared else free_blocks)
        put(self, "free_slots_ratio", max(0.0, 1.0 - num_seqs / (status.max_num_seqs or UNKNOWN_SEQS)))

    def kept_for_other_routers(self, free: float) -> float:
        """The part of ``free`` room that other routers may be giving away at this moment.

        Routers see one status and do not see one another: each of R places at most one request by a status, or what
        fits into its R-th part, and none after one that the worker refused.  R is 1 where all recent placements were
        this router's.
        """
        num_routers = self.num_routers
        if num_routers > 1 and self.has_refused:
            return max(0.0, free)
        if num_routers <= 1 or not self.fresh.num_requests:
            return 0.0
        return max(0.0, free) * (num_routers - 1) / num_routers

    @property
    def free_kv_ratio(self) -> float:
        """Share of the pool that is neither taken nor promised."""
        total = self.status.engine.blocks.total
        taken = self.num_used_blocks + self.status.engine.num_promised_blocks
        return max(0.0, 1.0 - taken / total) if total else 0.0


def num_sharing(status: WorkerStatus, router: str) -> int:
    """Routers among which a worker's room is divided, as ``router`` sees it.

    One is active for a model, the others follow.  It has the whole room once its placements alone have been seen there.
    One that begins places one request by a status, until the worker has shown it to the one that was active before, and
    what that one had placed is there.
    """
    placing = status.placing_routers
    if placing == (router,):
        return 1
    if placing and router not in placing:
        return BEGINNER
    return status.num_routers if status.num_routers <= 1 else max(status.num_routers, len(placing))
