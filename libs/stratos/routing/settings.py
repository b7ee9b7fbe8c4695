"""Numbers of the routing rules; the router service fills them from its settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerWeights:
    """How much each scorer counts; scores lie in [0, 1]."""

    queue: float = 2.0
    free_kv: float = 1.0
    adapter: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """The KV admission rule and the bound on a worker's own queue."""

    kv_mark: float = 0.90
    """Share of the KV pool that admission may fill; recoveries may fill all of it."""
    default_output_tokens: int = 256
    """Stands for a model's p90 output length until enough requests have ended."""
    max_waiting_per_worker: int = 2
    """Sequences above ``max_num_seqs`` that a worker is given, so that a freed seat is not idle for a status interval.
    The backlog itself waits in the router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Bounds and order of the queues."""

    num_classes: int = 4
    max_requests: int = 1024
    """Per (model, class)."""
    max_tokens: int = 8 * 1024 * 1024
    """Prompt tokens per (model, class)."""
    max_recoveries: int = 8192
    """Recoveries are never shed for new work; this only bounds memory."""
    max_models: int = 64
    ttl_s: float = 30.0
    recovery_ttl_s: float = 30.0
    """A stream must not be silent for longer than this."""
    ageing_step_s: float = 2.0
    """One class up at this age and at each further step."""
    dispatches_per_aged: int = 10
    """While a higher class is backlogged, at most one of so many dispatches goes to an aged request."""
    hold_after_s: float = 1.0
    """A request that has waited this long for room lets no other pass any more, so large requests do not starve."""
    prompt_token_cost: float = 1.0
    output_token_cost: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    """When a worker is out. Together with the status interval they keep a stopped worker in for less than 3 s."""

    silent_after_s: float = 1.5
    hung_after_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingSettings:
    """How long a booking lives without being confirmed."""

    confirm_s: float = 5.0
    """By now the worker's own status shows the request; what it does not show has ended unreported."""
    lease_s: float = 900.0
    """Longest life of any booking."""
