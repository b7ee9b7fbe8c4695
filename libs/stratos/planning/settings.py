"""Numbers of the pool planner; the autoscaler fills them from its settings."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.placement import WorkerRole


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """One pool."""

    role: WorkerRole
    min_workers: int
    max_workers: int
    up_utilisation: float = 0.8
    """Seats and KV blocks in use above which a worker more is wanted."""
    down_utilisation: float = 0.6
    """The survivors of a scale-down must stay below this, or the pool would swing."""
    queue_per_worker: int = 1
    """Requests waiting at the router, per worker, that mean one worker more, also while batch slots are free."""
    prefill_tokens_per_worker: int = 8192
    """Prompt tokens one prefill worker may have queued."""
    default_seats: int = 8
    """Stands for ``max_num_seqs`` of a worker that does not report it."""
    quiet_s: float = 60.0
    """A smaller pool must have been enough for this long without a gap in the data."""
    max_gap_s: float = 10.0
    """Longer without an observation is a gap: the quiet window starts again."""
    cooldown_up_s: float = 3.0
    cooldown_down_s: float = 10.0
    confirm_s: float = 3.0
    """Workers that are missing or out for less than this are expected back."""
    max_step_up: int = 4
    start_backoff_s: float = 5.0
    """Pause after a start that failed; doubles with each further failure up to ``max_start_backoff_s``."""
    max_start_backoff_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_workers <= self.max_workers:
            raise ValueError(f"{self.role}: 0 <= min {self.min_workers} <= max {self.max_workers} does not hold")
