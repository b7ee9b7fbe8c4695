"""Numbers of the routing rules; the router's settings hold these groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from stratos.core.rules.ageing import AGEING_STEP_S, DISPATCHES_PER_AGED


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """The bound on a worker's own queue, and workers without batches; the KV admission rule comes with a status."""

    max_waiting_per_worker: Annotated[int, Ge(0)] = 2
    """Sequences above ``max_num_seqs`` that a worker is given, so that a freed batch slot is not idle for a status
    interval; the backlog itself waits in the router, where it is fair. None while the model has prefill workers, since
    a hand-off that finds no batch slot is refused."""
    clear_ratio: Annotated[float, Ge(0), Le(1)] = 0.25
    """Part of a model's workers that take no request of the lowest class while others come: at least one, and never all
    of them, so it changes nothing where there is one worker. 0 lets batches run everywhere."""
    clear_for_s: Annotated[float, Gt(0)] = 10.0
    """For so long after the last request of a higher class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """Bounds and order of the queues."""

    max_requests: Annotated[int, Ge(0)] = 1024
    """Requests per (model, class); the next one is refused at once."""
    max_tokens: Annotated[int, Ge(0)] = 8 * 1024 * 1024
    """Prompt tokens per (model, class)."""
    shed_from_pressure: Annotated[float, Gt(0), Le(1)] = 0.8
    """Part of a model's KV blocks that is taken or promised from which on new requests of the lowest class are refused
    by chance, ever more of them up to all at 1; a setting of 1 refuses none."""
    max_recoveries: Annotated[int, Ge(0)] = 8192
    """Recoveries are never shed for new work; this only bounds memory."""
    max_models: Annotated[int, Ge(1)] = 64
    """Models with a queue at once."""
    ttl_s: float = 30.0
    """Longest wait of a new request."""
    wake_timeout_s: Annotated[float, Ge(0)] = 0.0
    """Longest wait of a request whose model has no worker that may be chosen, since one is started or woken for it.
    Less than ttl_s leaves it at ttl_s. The gateways' http.max_deadline_s and requests.placement_timeout_s bound it."""
    recovery_ttl_s: float = 30.0
    """Longest wait of a stream that has to move."""
    ageing_step_s: float = AGEING_STEP_S
    """One class up at this age and at each further step."""
    dispatches_per_aged: Annotated[int, Ge(1)] = DISPATCHES_PER_AGED
    """While a higher class is backlogged, at most one of so many dispatches goes to an aged request."""
    hold_after_s: float = 1.0
    """A request that has waited this long reserves one worker, which is closed to its class and below until it fits
    there, so that large requests do not starve; recoveries and moves reserve at once."""
    prompt_token_cost: float = 1.0
    """Cost of a prompt token in the fair share of a tenant."""
    output_token_cost: float = 2.0
    """Cost of an output token in the fair share of a tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessConfig:
    """When a worker is out. Together with the status interval they keep a stopped worker in for less than 3 s."""

    silent_after_s: float = 1.5
    """A worker without a status for so long is out."""
    hung_after_s: float = 2.0
    """A worker whose step counter stands still for so long while it computes is out (at least 4 of its slow steps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectConfig:
    """Requests that may be the cause of a worker's death."""

    hold_s: Annotated[float, Gt(0)] = 5.0
    """A worker takes no other suspect for so long, unless the one it has settles or ends before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingConfig:
    """How long a booking lives without being confirmed."""

    flight_s: Annotated[float, Ge(0)] = 0.05
    """A placement reaches its worker within this time: a status that arrives earlier may not show it."""
    report_s: Annotated[float, Ge(0)] = 0.025
    """The end of a request is reported within this time: a status that arrived before may show it already."""
    confirm_s: float = 5.0
    """By now the worker's own status shows the request; what it does not show has ended without a report."""
    lease_s: float = 900.0
    """Longest life of a booking."""
