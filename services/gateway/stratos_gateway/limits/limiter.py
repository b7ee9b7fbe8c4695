"""Limits of every tenant: claimed and taken before a request runs, settled when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratos.common.changed import record
from stratos.common.clock import Clock
from stratos.common.errors import ConcurrencyLimited, DependencyDown, RateLimited, RequestOverRate, StratosError
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import Tenant
from stratos.store.counters.leases import SETTLE_S
from stratos_gateway.limits.bucket import BucketTerms, Holder
from stratos_gateway.limits.claims import Claim, Waiter, take_all
from stratos_gateway.limits.headers import LimitStanding
from stratos_gateway.limits.leaser import Leaser

FIRST_WAIT_S = 1.0
"""Longest time that a tenant's first request at this gateway waits: Redis answers by then, or is known to be away.

Around an outage any request waits until it is known what may be given, but never longer than ``MOST_WAIT_S``."""
MOST_WAIT_S = SETTLE_S + 0.25
"""Longest time that a request waits for turns: those that have not reported by then count no more after an outage."""

_LOOK_S = 0.25
"""A request that waits looks so often whether this process stood still: that time is not its own."""

_STOOD_STILL = "this gateway stood still, and other requests of this tenant have its sequences now; try again"


@record(frozen=True, slots=True, kw_only=True)
class Cost:
    """Most that a request may come to take."""

    num_tokens: int
    """Tokens of its prompts and of its longest possible output."""
    num_sequences: int
    model: str = ""
    """Served name of the base model, in names of buckets; revisions of a model share them."""


class LimitReservation(Holder):
    """One request's claims on its tenant's limits; ``settle`` must be called, however it ended."""

    def __init__(self, claims: Sequence[Claim], leaser: Leaser, clock: Clock) -> None:
        self.claims = claims
        self.is_taken = False
        self.end: Callable[[StratosError], None] | None = None
        """Ends the request whose slots are lost."""
        self._leaser = leaser
        self._clock = clock

    @property
    def standings(self) -> list[LimitStanding]:
        """How the limits stand now that its client is told of."""
        now = self._clock.now()
        return [claim.standing(now) for claim in self.claims if not claim.bucket.is_semaphore]

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

    def hold(self) -> None:
        """All of them were taken."""
        self.is_taken = True
        for claim in self.claims:
            if claim.bucket.is_semaphore:
                self._leaser.hold(claim.bucket, self, claim.amount)

    def give_up(self) -> None:
        """Tell the request's client why it ends."""
        if self.end is not None:
            self.end(ConcurrencyLimited(_STOOD_STILL))

    def settle(self, num_tokens: int) -> None:
        """The request has ended and took so many tokens: the rest of its reservation, and its sequences, come back."""
        if not self.is_taken:
            return
        self.is_taken, now = False, self._clock.now()
        for claim in self.claims:
            claim.bucket.holders.pop(self, None)
            if claim.kind != "requests":
                back = claim.amount if claim.kind == "sequences" else claim.amount - num_tokens
                bucket = self._leaser.current(claim.bucket)
                bucket.give_back(back, now)
                bucket.serve(now)


class TenantLimiter:
    """The limits of every tenant, which hold for each base model by itself.

    Args:
        leaser: keeps the slices.
        clock: monotonic.
    """

    def __init__(self, leaser: Leaser, clock: Clock) -> None:
        self._leaser = leaser
        self._clock = clock

    def claim(self, tenant: Tenant, cost: Cost) -> LimitReservation:
        """Claims of a request on the tenant's limits; nothing is taken yet.

        Raises:
            RequestOverRate: it needs more at once than the plan ever allows.
        """
        return LimitReservation(self._claims(tenant, cost), self._leaser, self._clock)

    async def take(self, reservation: LimitReservation) -> None:
        """Take what was claimed. Where a slice is too small it waits for the next turns, and decides then.

        Raises:
            RateLimited: too many requests or tokens a minute; says when to come again.
            ConcurrencyLimited: too many sequences at once.
            DependencyDown: this gateway has heard in time neither what is left nor that Redis is away.
        """
        claims, now = reservation.claims, self._clock.now()
        for claim in claims:  # all of them before the first turn: one that is short must not hide the others' demand
            claim.bucket.demand.note(claim.amount, now)
            claim.bucket.serve(now)  # those that came before it
        if take_all(claims, now):
            reservation.hold()
        else:
            await self._wait(reservation)

    async def _wait(self, reservation: LimitReservation) -> None:
        """Take turns until the claims are taken, as long as the tenant has left what they need, here or elsewhere."""
        begin, still_s, claims = self._clock.now(), 0.0, reservation.claims
        with Waiter(claims, reservation.hold) as waiter:
            while (left_s := self._left_s(claims, begin, still_s)) > 0:
                asked_s, since_s = min(left_s, _LOOK_S), self._clock.now()
                await self._leaser.turn_soon([claim.bucket for claim in claims], asked_s, waiter.wake)
                waiter.serve(now := self._clock.now())
                if waiter.is_served:
                    return
                late_s = now - since_s - asked_s
                still_s += late_s if late_s > _LOOK_S else 0.0
        raise self._refusal(claims, begin)

    def _left_s(self, claims: Sequence[Claim], begin: float, still_s: float) -> float:
        """Seconds for which a request waits on that has waited since ``begin``; 0 or less for none.

        For ``still_s`` of that time this process stood still: no turn was waited for.
        """
        now, config = self._clock.now(), self._leaser.config
        after_s = max(claim.after_s(begin, now) for claim in claims)
        wait_s = FIRST_WAIT_S if _is_first(claims) else config.wait_s
        waited_s = now - begin - still_s
        most_s = max(wait_s, MOST_WAIT_S) - waited_s
        if self._leaser.is_away and begin < self._leaser.shares_at <= now:  # for a share, which begins empty
            return min(most_s, max(after_s, config.interval_s)) if after_s <= most_s else 0.0
        if after_s:
            return 0.0
        return min(max(wait_s - waited_s, self._leaser.settles_in_s), most_s)

    def _refusal(self, claims: Sequence[Claim], begin: float) -> StratosError:
        """The limit that takes longest; where it is not known whether any is reached none is named."""
        now = self._clock.now()
        short = [claim for claim in claims if not claim.bucket.has(claim.amount, now)] or claims
        after_s, claim = max(((claim.after_s(begin, now), claim) for claim in short), key=lambda found: found[0])
        if not self._leaser.is_away and (_is_first(claims) or not after_s):
            return DependencyDown("it was not known in time what is left of the tenant's limits", after_s=FIRST_WAIT_S)
        after_s = after_s or self._leaser.config.interval_s
        if claim.bucket.is_semaphore:
            text = f"{claim.limit} sequences of this tenant may run at once, over all its requests"
            return ConcurrencyLimited(text, after_s=after_s)
        return RateLimited(f"the limit of {claim.limit} {claim.kind} per minute is reached", after_s=after_s)

    def _claims(self, tenant: Tenant, cost: Cost) -> list[Claim]:
        plan = tenant.plan
        wanted = [
            ("sequences", plan.max_sequences, cost.num_sequences),
            ("requests", plan.requests_per_min, 1),
            ("tokens", plan.tokens_per_min, cost.num_tokens),
        ]
        owner = f"{cost.model}:{tenant.id}"
        return [self._claim(owner, plan, kind, limit, amount) for kind, limit, amount in wanted if limit is not None]

    def _claim(self, owner: str, plan: Plan, kind: str, limit: int, amount: int) -> Claim:
        if kind == "sequences":
            terms = BucketTerms(capacity=limit, rate_per_s=0)
        else:
            terms = BucketTerms(capacity=max(1.0, limit * plan.burst_s / 60), rate_per_s=limit / 60)
        if amount > terms.capacity:
            raise RequestOverRate(
                f"this request needs {amount} {kind}, and the plan allows {terms.capacity:.0f} at once"
            )
        return Claim(kind, self._leaser.bucket(f"{kind}:{owner}", terms), amount, limit)


def _is_first(claims: Sequence[Claim]) -> bool:
    """Whether this gateway has not heard of one of them yet."""
    return any(not claim.bucket.has_lease for claim in claims)
