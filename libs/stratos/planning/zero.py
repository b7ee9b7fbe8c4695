"""Scale to zero: the pools of a model sleep together and wake together, since a prompt needs both of them.

    idle for ``idle_s`` without a gap in the data, no pool above one worker -> sleep
    a request waits and a pool has no worker                               -> wake, every pool of the model

Pools above one worker are shrunk by their own scaler first.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from stratos.planning.observation import PoolObservation


class ZeroVerdict(enum.StrEnum):
    """The next state of a model's pools."""

    AWAKE = "awake"
    WAKE = "wake"
    SLEEP = "sleep"
    ASLEEP = "asleep"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObservation:
    """All pools of a model at one moment."""

    pools: Sequence[PoolObservation]
    num_open: int = 0
    """Requests for it that are open at gateways."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for any of its workers."""
        return sum(pool.backlog for pool in self.pools)

    @property
    def is_busy(self) -> bool:
        """Something runs, waits, or is on its way."""
        return bool(
            self.num_open or self.num_waiting or any(worker.num_seqs for pool in self.pools for worker in pool.workers)
        )


class ZeroPlanner:
    """Planner of one model; time is an argument.

    Args:
        idle_s: how long the model must have had no request before it sleeps.
        max_gap_s: longer without an observation is a gap: what was not seen may have been a request.
    """

    def __init__(self, idle_s: float, max_gap_s: float) -> None:
        self._idle_s = idle_s
        self._max_gap_s = max_gap_s
        self._idle_since: float | None = None
        self._seen_at = float("-inf")

    def decide(self, seen: ModelObservation | None, now: float) -> ZeroVerdict:
        """Decide; ``AWAKE`` leaves the pools to their own scalers."""
        if seen is None:
            self._idle_since = None
            return ZeroVerdict.AWAKE
        is_partial = any(pool.is_partial for pool in seen.pools)
        if seen.is_busy or is_partial:
            self._idle_since = None
        elif self._idle_since is None or now - self._seen_at > self._max_gap_s:
            self._idle_since = now
        self._seen_at = now
        sizes = [pool.size for pool in seen.pools]
        if seen.num_waiting and not all(sizes):
            return ZeroVerdict.WAKE
        if not any(sizes):
            return ZeroVerdict.ASLEEP
        is_rested = self._idle_since is not None and now - self._idle_since >= self._idle_s
        return ZeroVerdict.SLEEP if is_rested and max(sizes) <= 1 else ZeroVerdict.AWAKE
