"""Claims of a request on its tenant's limits, and the line in which it waits: who came first is served first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stratos.common.changed import record
from stratos_gateway.limits.bucket import LeasedBucket
from stratos_gateway.limits.demand import PlaceInLine
from stratos_gateway.limits.headers import LimitStanding


@record(frozen=True, slots=True, kw_only=False)
class Claim:
    """A part of one limit."""

    kind: str
    """"requests", "tokens" or "sequences"."""
    bucket: LeasedBucket
    amount: float
    limit: int

    def standing(self, now: float) -> LimitStanding:
        """How the limit stands."""
        remaining, terms = max(0.0, self.bucket.remaining(now)), self.bucket.terms
        return LimitStanding(self.kind, self.limit, remaining, (terms.capacity - remaining) / terms.rate_per_s)

    def after_s(self, since: float, now: float) -> float:
        """Seconds until a request that came at ``since`` may have it; 0 where that, or what is left, is not known."""
        return self.bucket.after_s(self.amount, now) if self.bucket.is_known(since, now) else 0.0


def take_all(claims: Sequence[Claim], now: float) -> bool:
    """Take all of them or none."""
    has = [claim.bucket.has(claim.amount, now) for claim in claims]  # each one that is short is told so
    if not all(has):
        return False
    for claim in claims:
        claim.bucket.spend(claim.amount, now)
    return True


class Waiter:
    """A request that waits until it can have all it claims.

    It is served by whatever brings that: a turn's answer, or an end of another request. One that comes later finds
    what those before it could not use.

    Args:
        claims: in the order in which limits are gathered.
        on_served: called once they are taken.
    """

    def __init__(self, claims: Sequence[Claim], on_served: Callable[[], None]) -> None:
        self.wake = asyncio.Event()
        self.is_served = False
        self._claims = claims
        self._on_served = on_served
        self._places = [_ClaimPlace(self, claim.amount, claims[:number]) for number, claim in enumerate(claims)]

    def __enter__(self) -> Waiter:
        for claim, place in zip(self._claims, self._places, strict=True):
            claim.bucket.demand.join(place)
        return self

    def __exit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        for claim, place in zip(self._claims, self._places, strict=True):
            claim.bucket.demand.leave(place)

    def serve(self, now: float) -> None:
        """Take all it claims, if that is there."""
        if self.is_served or not take_all(self._claims, now):
            return
        self.is_served = True
        self._leave()
        self._on_served()
        self.wake.set()


class _ClaimPlace(PlaceInLine):
    """Place of a request among those that wait for one of its limits."""

    def __init__(self, waiter: Waiter, cost: float, earlier: Sequence[Claim]) -> None:
        self.cost = cost
        self._waiter = waiter
        self._earlier = earlier

    def is_held_up(self) -> bool:
        return any(claim.bucket.balance < claim.amount for claim in self._earlier)

    def serve(self, now: float) -> None:
        self._waiter.serve(now)
