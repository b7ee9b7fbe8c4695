"""Limits of every tenant: claimed and taken before a request runs, settled when it has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.clock import Clock
from stratos.common.errors import ConcurrencyLimited, RateLimited, RequestOverRate
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import Tenant
from stratos_gateway.limits.bucket import BucketTerms, LeasedBucket
from stratos_gateway.limits.leaser import Leaser


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Most that a request may come to take."""

    num_tokens: int
    """Tokens of its prompts and of its longest possible output."""
    num_sequences: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A part of one limit."""

    kind: str
    """"requests", "tokens" or "sequences"."""
    bucket: LeasedBucket
    amount: float
    limit: int


class LimitReservation:
    """One request's claims on its tenant's limits; ``settle`` must be called, however it ended."""

    def __init__(self, claims: Sequence[Claim], clock: Clock) -> None:
        self.claims = claims
        self.is_taken = False
        self._clock = clock

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """How the limits stand now."""
        now = self._clock.now()
        return [
            header
            for claim in self.claims
            if not claim.bucket.is_semaphore
            for header in limit_headers(claim.kind, claim.limit, claim.bucket, now)
        ]

    @property
    def state(self) -> list[dict[str, Any]]:
        """How each limit stands now, for the request's receipt."""
        now = self._clock.now()
        return [
            {
                "kind": claim.kind,
                "limit": claim.limit,
                "claimed": claim.amount,
                "left_here": round(claim.bucket.balance, 3),
                "left": None if claim.bucket.is_semaphore else round(claim.bucket.remaining(now), 3),
            }
            for claim in self.claims
        ]

    def settle(self, num_tokens: int) -> None:
        """The request has ended and took so many tokens: the rest of its reservation, and its sequences, come back."""
        if not self.is_taken:
            return
        self.is_taken = False
        for claim in self.claims:
            if claim.bucket.is_semaphore:
                claim.bucket.give_back(claim.amount)
            elif claim.kind == "tokens":
                claim.bucket.give_back(claim.amount - num_tokens)


class TenantLimiter:
    """The limits of every tenant, for the one base model of this gateway.

    Args:
        leaser: keeps the slices.
        clock: monotonic.
        model: base model, in names of buckets.
    """

    def __init__(self, leaser: Leaser, clock: Clock, model: str) -> None:
        self._leaser = leaser
        self._clock = clock
        self._model = model

    def claim(self, tenant: Tenant, cost: Cost) -> LimitReservation:
        """Claims of a request on the tenant's limits; nothing is taken yet.

        Raises:
            RequestOverRate: it needs more at once than the plan ever allows.
        """
        return LimitReservation(self._claims(tenant, cost), self._clock)

    async def take(self, reservation: LimitReservation) -> None:
        """Take what was claimed. Where a slice is too small it waits for the next turn, and decides then.

        Raises:
            RateLimited: too many requests or tokens a minute; says when to come again.
            ConcurrencyLimited: too many sequences at once.
        """
        claims = reservation.claims
        short = self._take(claims)
        if short is not None and short.bucket.after_s(short.amount, self._clock.now()) <= 0:
            await self._leaser.turn_soon()
            short = self._take(claims)
        if short is not None:
            raise self._refusal(short)
        reservation.is_taken = True

    def _take(self, claims: Sequence[Claim]) -> Claim | None:
        """All of them or none; returns the one that is short."""
        now = self._clock.now()
        for place, claim in enumerate(claims):
            if not claim.bucket.take(claim.amount, now):
                for taken in claims[:place]:
                    taken.bucket.give_back(taken.amount)
                return claim
        return None

    def _refusal(self, claim: Claim) -> RateLimited:
        if claim.bucket.is_semaphore:
            return ConcurrencyLimited(f"{claim.limit} sequences of this tenant may run at once, over all its requests")
        after_s = claim.bucket.after_s(claim.amount, self._clock.now())
        return RateLimited(f"the limit of {claim.limit} {claim.kind} per minute is reached", after_s=after_s)

    def _claims(self, tenant: Tenant, cost: Cost) -> list[Claim]:
        plan = tenant.plan
        wanted = [
            ("sequences", plan.max_sequences, cost.num_sequences),
            ("requests", plan.requests_per_min, 1),
            ("tokens", plan.tokens_per_min, cost.num_tokens),
        ]
        return [
            self._claim(tenant.id, plan, kind, limit, amount) for kind, limit, amount in wanted if limit is not None
        ]

    def _claim(self, tenant: str, plan: Plan, kind: str, limit: int, amount: int) -> Claim:
        if kind == "sequences":
            terms = BucketTerms(capacity=limit, rate_per_s=0)
        else:
            terms = BucketTerms(capacity=max(1.0, limit * plan.burst_s / 60), rate_per_s=limit / 60)
        if amount > terms.capacity:
            raise RequestOverRate(
                f"this request needs {amount} {kind}, and the plan allows {terms.capacity:.0f} at once"
            )
        return Claim(kind, self._leaser.bucket(f"{kind}:{self._model}:{tenant}", terms), amount, limit)


def limit_headers(kind: str, limit_per_min: int, bucket: LeasedBucket, now: float) -> list[tuple[bytes, bytes]]:
    """``x-ratelimit-*`` of one limit; kind is "requests" or "tokens"."""
    remaining = max(0.0, bucket.remaining(now))
    reset_s = (bucket.terms.capacity - remaining) / bucket.terms.rate_per_s
    values = {"limit": str(limit_per_min), "remaining": str(math.floor(remaining)), "reset": duration(reset_s)}
    return [(f"x-ratelimit-{name}-{kind}".encode(), value.encode()) for name, value in values.items()]


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: ``12ms``, ``6.5s``, ``1m30s``."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"
