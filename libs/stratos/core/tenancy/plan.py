"""A plan: on which terms a tenant's requests run. Premium, standard, batch and local are there without any record.

A plan in the store replaces the one of its name here; a tenant's own overrides replace single fields of its plan.
Built-in plans have versions: a tenant keeps the terms of the version under which it was given its plan.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from stratos.core.requests.limits import BATCH_CLASS, DEFAULT_PRIORITY_CLASS, LIMITS, NUM_PRIORITY_CLASSES
from stratos.core.requests.pins import TTL_24H_S
from stratos.core.requests.terms import Share
from stratos.core.tenancy.prices import (
    DEFAULT_CACHE_PRICES,
    DEFAULT_DISCOUNTS,
    DEFAULT_SIZE,
    NO_BUDGET,
    NO_PRICE,
    Budget,
    CachePrices,
    Discounts,
    Price,
)

MAX_WEIGHT = 1000
MAX_KEPT_RATIO = 0.9
"""Reserves of several plans keep no more than this of a pool from another one."""
_MOST = int(LIMITS["max_tokens"].maximum)
Pattern = Annotated[str, MinLen(1), MaxLen(256)]
"""Name of a model or an adapter; * stands for any characters."""
PoolLabel = Annotated[str, MinLen(1), MaxLen(64)]
"""What the workers of a pool have as their setting ``pool``."""
ALL_MODELS = ("*",)
NOTHING_KEPT: Mapping[str, float] = {}
PromiseWindowS = Literal[60, 120, 300, 600, 900, 1800, 3600]
"""Lengths of which an hour is a multiple, so that no window has two days."""
DEFAULT_WINDOW_S: PromiseWindowS = 300


class CachePolicy(enum.StrEnum):
    """Between which requests of a tenant the prefix cache is shared; tenants never share it."""

    TENANT = "tenant"
    """All of its requests."""
    KEY = "key"
    """Requests of one key."""
    OFF = "off"
    """None: every prompt is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Limits that are ``None`` do not bound anything."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    name: str = "standard"
    priority_class: Annotated[int, Ge(0), Le(NUM_PRIORITY_CLASSES - 1)] = DEFAULT_PRIORITY_CLASS
    """0 is the most urgent; the last one never ages above the default one."""
    weight: Annotated[int, Ge(1), Le(MAX_WEIGHT)] = 1
    """Share of a tenant among the backlogged tenants of its class: 3 gets three times the tokens of 1."""
    ttft_ms: Annotated[int, Gt(0)] | None = None
    """Promised time to the first token."""
    itl_ms: Annotated[int, Gt(0)] | None = None
    """Promised time between tokens."""
    ttft_p99_ms: Annotated[int, Gt(0)] | None = None
    """Promised p99 of the times to the first token in each window."""
    itl_p99_ms: Annotated[int, Gt(0)] | None = None
    """Promised p99 of the single times between tokens in each window."""
    promise_window_s: PromiseWindowS = DEFAULT_WINDOW_S
    """Length of such a window."""
    requests_per_min: Annotated[int, Gt(0)] | None = None
    tokens_per_min: Annotated[int, Gt(0)] | None = None
    """Prompt and output tokens, per base model; a request reserves its most output, and settles to the real one."""
    burst_s: Annotated[int, Ge(1), Le(3600)] = 60
    """Seconds of these rates that may come at once after a pause."""
    max_sequences: Annotated[int, Gt(0)] | None = None
    """Choices of all open requests together, over all gateways, per base model."""
    max_tokens: Annotated[int, Gt(0), Le(_MOST)] | None = None
    """Most output tokens of a choice."""
    max_n: Annotated[int, Gt(0), Le(int(LIMITS["n"].maximum))] = int(LIMITS["n"].maximum)
    """Most choices of a prompt."""
    max_prompt_tokens: Annotated[int, Gt(0)] = 4096
    """Longest prompt; the model's own bound holds as well."""
    models: tuple[Pattern, ...] = ALL_MODELS
    """Models and adapters that exist for the tenant; others answer like unknown ones."""
    cache_policy: CachePolicy = CachePolicy.TENANT
    content_policy: Annotated[str, MaxLen(64)] = ""
    """Name of the policy that the text of requests and answers goes through; empty is none."""
    resident_only: bool = False
    """Requests never leave this platform."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By size of the model, such as "8b"; "default" stands for sizes without a row."""
    cache_prices: CachePrices = DEFAULT_CACHE_PRICES
    discounts: Discounts = DEFAULT_DISCOUNTS
    budget: Budget = NO_BUDGET
    response_cache: bool = False
    """Whole answers are kept and given again to equal requests of the same cache policy whose output is determined."""
    response_ttl_s: Annotated[int, Ge(1), Le(30 * 24 * 3600)] = 3600
    """How long they are kept."""
    durable_streams: bool = False
    """Every stream has a record from which any gateway goes on with it; else those with an ``Idempotency-Key`` have."""
    detach_s: Annotated[int, Ge(0), Le(3600)] = 0
    """Seconds that a recorded answer goes on being generated after its client left; 0 ends it at once."""
    max_batch_ratio: Annotated[float, Gt(0), Le(1)] = 1.0
    """Part of a worker's batch slots that requests of this plan may fill."""
    kv_headroom_ratio: Annotated[float, Ge(0), Le(0.9)] = 0.0
    """Part of a worker's KV pool that requests of this plan leave free for others."""
    pools: tuple[PoolLabel, ...] = ()
    """Labels of workers that serve requests of this plan first; where none of them has room, any worker does."""
    kv_reserved_ratio: Annotated[float, Ge(0), Le(0.9)] = 0.0
    """Part of the KV pool of those workers that requests of other plans leave free."""

    pinned_kv_ratio: Annotated[float, Ge(0), Le(0.9)] = 0.1
    """Part of a worker's KV pool that prompts of a tenant may keep at its wish, by breakpoints; 0 keeps nothing."""
    pinned_host_ratio: Annotated[float, Ge(0), Le(0.9)] = 0.1
    """The same of a worker's host tier."""
    max_pin_s: Annotated[int, Ge(1), Le(TTL_24H_S)] | None = None
    """Seconds after its last use that such a prompt is kept at most, whatever was asked."""

    def price(self, model_size: str) -> Price:
        """Price of a model's tokens; nothing where no row fits."""
        return self.prices.get(model_size) or self.prices.get(DEFAULT_SIZE) or NO_PRICE

    @property
    def is_batch(self) -> bool:
        """Its requests wait for all others, and get the discount for that."""
        return self.priority_class == BATCH_CLASS

    def as_batch(self) -> Plan:
        """The plan for requests that wait for all others: at the price of that, and without promised times."""
        return replace(
            self,
            priority_class=BATCH.priority_class,
            weight=1,
            ttft_ms=None,
            itl_ms=None,
            ttft_p99_ms=None,
            itl_p99_ms=None,
            max_batch_ratio=min(self.max_batch_ratio, BATCH.max_batch_ratio),
            kv_headroom_ratio=max(self.kv_headroom_ratio, BATCH.kv_headroom_ratio),
        )

    def share(self, kept_kv: Mapping[str, float] = NOTHING_KEPT) -> Share:
        """Share that the router goes by.

        Args:
            kept_kv: what other plans have reserved, see ``reserved_beside``.
        """
        return Share(
            weight=self.weight,
            max_batch_ratio=self.max_batch_ratio,
            kv_headroom_ratio=self.kv_headroom_ratio,
            pools=frozenset(self.pools),
            kept_kv=kept_kv,
        )


CHEAP_TIERS = ("flex", "batch")
"""Values of ``service_tier`` for requests that wait for all others, at the price of that."""
BUILT_IN_VERSION = 2
"""Of the built-in plans as they are now; 1 are those of release 0.1."""
PREMIUM = Plan(
    name="premium", priority_class=DEFAULT_PRIORITY_CLASS - 1, weight=4, ttft_ms=1000, itl_ms=100, ttft_p99_ms=500,
    itl_p99_ms=50,
)  # fmt: skip
STANDARD = Plan(
    name="standard", ttft_ms=5000, itl_ms=250, ttft_p99_ms=2000, itl_p99_ms=100, requests_per_min=60,
    tokens_per_min=100_000,
)  # fmt: skip
BATCH = Plan(name="batch", priority_class=BATCH_CLASS, max_batch_ratio=0.75, kv_headroom_ratio=0.1)
LOCAL = Plan(name="local")
"""Of the first key of an installation: no limits, no prices, no promises."""
BUILT_IN_PLANS: Mapping[str, Plan] = {plan.name: plan for plan in (PREMIUM, STANDARD, BATCH, LOCAL)}
_FIRST_PLANS = {
    "premium": replace(PREMIUM, ttft_p99_ms=None, itl_p99_ms=None),
    "standard": Plan(name="standard", ttft_ms=5000, itl_ms=250),
}
"""Plans of version 1 that have changed since."""


def built_in_plan(name: str, version: int = BUILT_IN_VERSION) -> Plan | None:
    """A built-in plan as it is for a tenant.

    Args:
        name: of the plan; ``None`` comes back where there is none of this name.
        version: under which the tenant was given it.
    """
    return (_FIRST_PLANS.get(name) if version < BUILT_IN_VERSION else None) or BUILT_IN_PLANS.get(name)


def reserved_beside(name: str, plans: Iterable[Plan]) -> Mapping[str, float]:
    """KV that all other plans than the one of a name have reserved, by the label of the workers."""
    kept: dict[str, float] = {}
    for plan in plans:
        for label in set(plan.pools) if plan.kv_reserved_ratio and plan.name != name else ():
            kept[label] = min(MAX_KEPT_RATIO, kept.get(label, 0.0) + plan.kv_reserved_ratio)
    return kept
