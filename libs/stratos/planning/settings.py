"""Numbers of the pool planner; the autoscaler's settings hold ``PlannerConfig``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt

from stratos.core.placement import WorkerRole


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """When a pool grows and shrinks."""

    up_queue_depth: Annotated[int, Ge(0)] = 50
    """More waiting requests than this, at routers and at workers, start a worker."""
    up_ttft_s: Annotated[float, Gt(0)] = 1.0
    """So does a p95 of the time to the first token above this, while something waits: else more would not help."""
    up_utilisation: Annotated[float, Gt(0)] = 0.85
    """So does a larger share of batch slots or of KV blocks in use, whichever is larger."""
    down_queue_depth: Annotated[int, Ge(0)] = 10
    """A worker is drained only after fewer waiting requests than this for all of ``quiet_s``, ..."""
    down_ttft_s: Annotated[float, Gt(0)] = 0.5
    """... a p95 of the time to the first token below this, ..."""
    down_utilisation: Annotated[float, Gt(0)] = 0.4
    """... and a smaller share of slots and blocks in use; below half of up_utilisation, or the pool would swing."""
    batch_lines_per_worker: Annotated[int, Ge(0)] = 0
    """Lines of batches that one decode worker answers in an hour: a pool grows to keep the windows of open batches, and
    does not shrink below that. 0 leaves batches to the workers that are there."""
    prefill_tokens_per_worker: int = 8192
    """Prompt tokens one prefill worker may have queued."""
    default_batch_slots: int = 8
    """Stands for ``max_num_seqs`` of a worker that does not report it."""
    quiet_s: float = 60.0
    """How long, without a gap in the data."""
    max_gap_s: float = 10.0
    """Longer without an observation is a gap: the quiet window starts again. At least three polls."""
    cooldown_up_s: float = 3.0
    """Minimum time between two scale-ups."""
    cooldown_down_s: float = 10.0
    """Minimum time between a change and a scale-down."""
    confirm_s: float = 3.0
    """Workers that are missing or out for less than this are expected back."""
    max_step_up: Annotated[int, Ge(1)] = 4
    """Workers started at once, at most."""
    start_backoff_s: Annotated[float, Gt(0)] = 5.0
    """Pause after a start that failed; doubles with each further failure up to ``max_start_backoff_s``."""
    max_start_backoff_s: float = 60.0
    """Longest pause after starts that failed."""
    idle_s: Annotated[float, Gt(0)] = 300.0
    """A model had no request for this long: its pools, where they may be empty, go to zero together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKey:
    """Workers that can stand in for each other: one role, one model."""

    role: WorkerRole
    model_digest: str = ""
    """SHA-256 (hex) of the base model; empty where the deployment has one model."""
    model_name: str = ""
    """Name of the model for people: a label."""
    served_name: str = ""
    """Name that clients call it by, where that is another one."""

    other_digests: frozenset[str] = frozenset()
    """Digests of the same model that further workers of the pool serve while one revision replaces another."""

    @property
    def shown_name(self) -> str:
        """Name of the model in metrics, as of gateways and workers; its digest where no name was given."""
        return self.served_name or self.model_name or self.model_digest

    def holds_model(self, model_digest: str) -> bool:
        """Workers and requests of that model belong here, if their role does."""
        return self.model_digest in ("", model_digest) or model_digest in self.other_digests


class ScalingMode(enum.StrEnum):
    """Who decides how many workers a pool has, from one on; 0 <-> 1 is the autoscaler's in the first two."""

    HPA = "hpa"
    """A HorizontalPodAutoscaler, from the numbers that the autoscaler serves."""
    PLANNER = "planner"
    """The autoscaler."""
    EXTERNAL = "external"
    """Something that is no part of the platform, such as KEDA; 0 <-> 1 too."""
    NONE = "none"
    """People: nothing changes the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """One pool and how large it may be."""

    role: WorkerRole
    model_digest: str = ""
    model_name: str = ""
    """Name of the model for people; on Kubernetes also the label of its pods."""
    served_name: str = ""
    """Name that clients call it by: the label ``model`` of metrics."""
    min_workers: int
    """0: the pool sleeps together with the other pools of its model while it has no request."""
    max_workers: int
    mode: ScalingMode = ScalingMode.PLANNER
    deployment: str = ""
    """On Kubernetes: the Deployment of its pods."""
    floor: int = 0
    """Live workers that the load takes and two more: fewer of them raise an alert."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_workers <= self.max_workers:
            raise ValueError(f"{self.role}: 0 <= min {self.min_workers} <= max {self.max_workers} does not hold")

    @property
    def key(self) -> PoolKey:
        return PoolKey(
            role=self.role,
            model_digest=self.model_digest,
            model_name=self.model_name,
            served_name=self.served_name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """One pool: its bounds, and the numbers that all pools share."""

    bounds: PoolBounds
    planner: PlannerConfig = field(default_factory=PlannerConfig)

    @property
    def min_workers(self) -> int:
        return self.bounds.min_workers

    @property
    def max_workers(self) -> int:
        return self.bounds.max_workers


def check_pools(pools: Sequence[PoolBounds]) -> None:
    """Refuse pools that share workers: their planners would start and drain against each other.

    Raises:
        ValueError: two pools of a role have the same model, or one of several names none.
    """
    for role in WorkerRole:
        models = [(pool.model_digest, pool.model_name) for pool in pools if pool.role is role]
        if len(set(models)) < len(models):
            raise ValueError(f"two {role} pools have the same model")
        if len(models) > 1 and ("", "") in models:
            raise ValueError(f"of several {role} pools each needs a model_digest or a model_name")
