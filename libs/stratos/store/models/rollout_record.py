"""A roll-out: how the requests of one name go over to another revision of its model, step by step, and what stops that.

    start ──▶ step 10 % ──▶ step 50 % ──▶ step 100 % ──▶ done
                 │  ▲           │             │
                 │  └ paused    └─────────────┴──▶ rolled back, aborted: all requests go to the old revision

Each change is one write of this record.  The weights are the alias of that name, written after it, and
``is_applied`` says that this has been done: the process that goes on after a crash finds there what is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Interval

from stratos.store.models.alias_forms import split_name
from stratos.store.models.alias_record import WHOLE, AliasTarget, Sticky

LEAST_REQUESTS = 200
"""Of each arm, below which no gate judges: the p99 of fewer says nothing."""
LEAST_DRIFT = 0.001
"""Nats, below which no bound can be: outside exact mode the same weights are off each other by what a batch does."""


class RolloutPhase(StrEnum):
    """Standing of a roll-out."""

    RUNNING = "running"
    PAUSED = "paused"
    """Weights stay, and no gate judges."""
    DONE = "done"
    ABORTED = "aborted"
    """By a person."""
    ROLLED_BACK = "rolled_back"
    """By a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGates:
    """Bounds on the new revision, per cent but for ``drift``; ``None`` looks at nothing."""

    errors: Annotated[float, Interval(ge=0, le=100)] | None = None
    """Most of its requests that may fail by the platform's fault."""
    ttft_p99: Annotated[float, Interval(ge=0, le=1000)] | None = None
    """Most by which its p99 of times to the first token may be above that of the old revision."""
    itl_p99: Annotated[float, Interval(ge=0, le=1000)] | None = None
    """The same of times between tokens."""
    drift: Annotated[float, Interval(ge=LEAST_DRIFT, le=100)] | None = None
    """Most by which its log probabilities of a pinned text may be off those of the old revision: nats, mean of all
    tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Differences of log probabilities of a pinned text's tokens between both revisions, without signs, in nats."""

    mean: Annotated[float, Ge(0)]
    largest: Annotated[float, Ge(0)]
    num_tokens: Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The old revision's p99s, upper ends of their steps; kept for the last step, at which it gets no requests."""

    ttft_p99_us: Annotated[int, Ge(0)] | None = None
    num_ttfts: Annotated[int, Ge(0)] = 0
    """Times that a p99 is of."""
    itl_p99_us: Annotated[int, Ge(0)] | None = None
    num_itls: Annotated[int, Ge(0)] = 0
    num_requests: Annotated[int, Ge(0)] = 0
    num_unanswered: Annotated[int, Ge(0)] = 0
    """Beside them: refused for want of room, answered elsewhere, or left after more than the p99 of TTFTs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """The last roll-out of a name: a model's own, or one of its tags."""

    model: str
    """The name, such as ``base`` or ``base@stable``."""
    old: str
    """SHA-256 (hex) of the revision that had all requests."""
    new: str
    """SHA-256 (hex) of the revision that is to get them."""
    steps: tuple[Annotated[int, Interval(ge=1, le=WHOLE)], ...]
    """Per cent of the sessions that go to the new revision, growing, the last one 100."""
    hold_s: Annotated[float, Interval(ge=1, le=7 * 24 * 3600)]
    """Least time of each step."""
    gates: RolloutGates
    min_requests: Annotated[int, Interval(ge=LEAST_REQUESTS, le=1_000_000)] = LEAST_REQUESTS
    """Number for each arm at each step, below which no gate judges and the next step does not come."""
    sticky: Sticky = Sticky.SESSION
    started_by: str = ""
    started_us: Annotated[int, Ge(0)] = 0
    """Microseconds since the epoch by the store's clock, as are the others."""
    phase: RolloutPhase = RolloutPhase.RUNNING
    step: Annotated[int, Ge(0)] = 0
    """Place in ``steps``."""
    is_applied: bool = False
    """The alias has the weights of this step, or of this end."""
    since_us: Annotated[int, Ge(0)] = 0
    """When this step, pause or end began; a step begins when its weights are written."""
    epoch: Annotated[int, Ge(0)] = 0
    """Number of the count of requests that is judged: a step begins with a count of its own."""
    baseline: Baseline | None = None
    drift: Drift | None = None
    """Measured before the first weights; ``None`` until then, or without a gate on it."""
    alias_version: Annotated[int, Ge(0)] | None = None
    """Version of the model's alias when it started, 0 where it had none; other targets since are an edit by hand."""
    reason: str = ""
    """Cause of the last change."""

    @property
    def base(self) -> str:
        """Model whose revisions they are."""
        return split_name(self.model)[0]

    @property
    def is_active(self) -> bool:
        """It has not ended."""
        return self.phase in (RolloutPhase.RUNNING, RolloutPhase.PAUSED)

    @property
    def is_unfinished(self) -> bool:
        """It runs, or the weights of its end are not written."""
        return self.is_active or not self.is_applied

    @property
    def is_counted(self) -> bool:
        """Requests are evidence now."""
        return self.phase is RolloutPhase.RUNNING and self.is_applied

    @property
    def lacks_drift(self) -> bool:
        """Its gate on drift waits for a measurement, and no weights are written."""
        return self.phase is RolloutPhase.RUNNING and self.gates.drift is not None and self.drift is None

    @property
    def percent(self) -> int:
        """Share of the new revision."""
        if self.phase in (RolloutPhase.ABORTED, RolloutPhase.ROLLED_BACK):
            return 0
        return self.steps[self.step]

    def is_held(self, now_us: int) -> bool:
        """Its step has had its least time, by the store's clock."""
        return now_us - self.since_us >= 1e6 * self.hold_s

    @property
    def is_last_step(self) -> bool:
        """All requests go to the new revision."""
        return self.step == len(self.steps) - 1

    @property
    def targets(self) -> tuple[AliasTarget, ...]:
        """Targets that the name has now."""
        return self.targets_at(self.percent)

    def targets_at(self, percent: int) -> tuple[AliasTarget, ...]:
        """Targets that it has while the new revision gets so much."""
        shares = ((self.old, WHOLE - percent), (self.new, percent))
        return tuple(AliasTarget(model=self.base, digest=digest, weight=w) for digest, w in shares if w)
