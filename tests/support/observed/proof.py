"""Record of a proof that an alert fires and resolves, and the series that several proofs share.

Series are one sample a minute in promtool's notation: ``0+5x10`` is 0, 5, 10, ... eleven samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

R = 'release="r"'


@dataclass(frozen=True, kw_only=True)
class Proof:
    """It fires at one minute and not at another, nor at ``quiet_at``, for another reason.

    ``also`` are minutes at which it fires with other labels.
    """

    series: Mapping[str, str]
    fires_at: int
    resolved_at: int
    quiet_at: int | None = None
    also: tuple[tuple[int, Mapping[str, str]], ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: {"release": "r"})


def labelled(**more: str) -> dict[str, str]:
    return {"release": "r", **more}


ON_I, RI = labelled(instance="i"), f'{R}, instance="i"'
POOL = 'role="decode", model="m", instance="a"'
OTHER = 'role="decode", model="other", instance="a"'


def pool(state: str, values: str) -> dict[str, str]:
    """Workers of a pool, as the autoscaler that acts knows them."""
    return {
        f'stratos_autoscaler_workers{{{R}, {POOL}, state="{state}"}}': values,
        f'stratos_autoscaler_active{{{R}, instance="a"}}': "1+0x60",
    }


def queue(oldest_s: str) -> dict[str, str]:
    """The queue of model m at a router, with one of the lowest class, and what names its digest."""
    return {
        f'stratos_router_queue_oldest_seconds{{{R}, model_digest="d", class="1", work="generation"}}': oldest_s,
        f'stratos_router_queue_oldest_seconds{{{R}, model_digest="d", class="3", work="generation"}}': "29+0x60",
        f'stratos_model_info{{{R}, model="m", model_digest="d", instance="g"}}': "1+0x60",
    }


def limited(count: str) -> dict[str, str]:
    """Refusals of a tenant, of one whose budget is spent, and of tenants without a series of their own."""
    return {
        f'stratos_requests_limited_total{{{R}, tenant="{tenant}", code="{code}"}}': count
        for tenant, code in (("t", "rate_limit_exceeded"), ("t", "insufficient_quota"), ("other", "concurrency_limit"))
    }


HERE = {'up{release="ns/r", component="router", instance="i"}': "1+0x240"}
"""A release of the namespace ns: what the cluster tells has no other label of it."""


def outcomes(failed: str, finished: str) -> dict[str, str]:
    """Ended requests of model m, and batches of another, half of which are refused for want of room."""
    return {
        f'stratos_request_outcomes_total{{{R}, model="{model}", class="{priority}", outcome="{outcome}"}}': values
        for model, priority, outcome, values in (
            ("m", "1", "failed", failed),
            ("m", "1", "finished", finished),
            ("batch", "3", "failed", finished),
            ("batch", "3", "finished", finished),
        )
    }
