"""One limit of one tenant as one gateway sees it: a slice of the bucket in Redis, spent without asking. No I/O.

    take ──▶ balance goes down              ask ──▶ what was spent, what is wanted   ┐ one turn
    give_back ──▶ it goes up (settlement)   grant ─▶ the slice is what Redis says    ┘
                                            miss ──▶ Redis is away: this gateway's share of the rate goes on

Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.store.counters.leases import LeaseAsk, LeaseGrant
from stratos_gateway.limits.settings import LimitsConfig

_DEMAND_S = 0.5
"""A slice holds what was wanted in so many seconds, refused requests included."""
_MEMORY_S = 1.0
"""A refused cost counts for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTerms:
    """Size and rate of a bucket, from the plan."""

    capacity: float
    rate_per_s: float
    """0 for a semaphore, whose holders give back what they take."""


class LeasedBucket:
    """The slice of one bucket.

    Args:
        name: of the bucket in Redis.
        terms: of the plan.
        config: of leases.
        now: seconds.
        num_gateways: that were last seen at Redis.
    """

    def __init__(self, name: str, terms: BucketTerms, config: LimitsConfig, now: float, num_gateways: int = 1) -> None:
        self.name = name
        self.terms = terms
        self._config = config
        self.balance = 0.0
        """Amount that may be taken here now; below 0 where a semaphore was made smaller while it was in use."""
        self.in_use = 0.0
        """Taken from a semaphore and not given back."""
        self.has_lease = False
        self._spent = 0.0
        self._asked = 0.0
        self._level = 0.0
        self._level_at = now
        self.num_gateways = num_gateways
        self._shared_at = now
        self._wanted_at = now
        self._demand = 0.0
        self._demand_at = now
        self._largest = 0.0
        self._refused: tuple[float, float] | None = None

    @property
    def is_semaphore(self) -> bool:
        """Put back what was taken."""
        return self.terms.rate_per_s == 0

    def take(self, cost: float, now: float) -> bool:
        """Take an amount; false where the slice has less."""
        self._note(cost, now)
        if self.balance + 1e-9 < cost:
            if self._refused is None or now - self._refused[1] > _MEMORY_S or cost <= self._refused[0]:
                self._refused = (cost, now)
            return False
        self._spend(cost)
        return True

    def give_back(self, amount: float) -> None:
        """A part of what was taken was not used; below 0 where more was used."""
        self._spend(-amount)

    def after_s(self, cost: float, now: float) -> float:
        """Seconds until the whole bucket may have the amount, if no other gateway takes it; 0 where it may now."""
        if self.is_semaphore:
            return 0.0 if not self.has_lease or self._level + self.balance >= cost else self._config.interval_s
        missing = cost - self.remaining(now)
        return max(0.0, missing / self.terms.rate_per_s) if self.has_lease else 0.0

    def remaining(self, now: float) -> float:
        """Amount that the tenant has left over all gateways, as far as this one knows."""
        refilled = self._level + self.terms.rate_per_s * max(0.0, now - self._level_at)
        return min(max(0.0, self.balance) + refilled, self.terms.capacity)

    def is_due(self, now: float) -> bool:
        """A turn has something to say or to get."""
        is_low = self.balance < self._wish(now) / 2
        is_old = now - self._level_at > self._config.lease_s / 3
        return self._spent != 0 or is_low or is_old or not self.has_lease

    def is_idle(self, now: float) -> bool:
        """Nothing was wanted for long, and nothing is held here that others could use."""
        return (
            now - self._wanted_at > self._config.idle_s and not self.in_use and self._spent == 0 and self.balance == 0
        )

    def ask(self, now: float) -> LeaseAsk:
        """The report and the wish of a turn that begins."""
        self._asked = self._spent
        return LeaseAsk(
            bucket=self.name,
            capacity=self.terms.capacity,
            rate_per_s=self.terms.rate_per_s,
            spent=0.0 if self.is_semaphore else self._asked,
            wish=self._wish(now),
            least=self._least(now),
        )

    def grant(self, grant: LeaseGrant, now: float) -> None:
        """The turn's answer; what was taken since ``ask`` is still to be reported."""
        self._spent -= self._asked
        self.balance = grant.held - (self.in_use if self.is_semaphore else self._spent)
        self._level, self._level_at, self.num_gateways = grant.level, now, max(1, grant.num_gateways)
        self._shared_at, self.has_lease = now, True

    def miss(self, now: float) -> None:
        """Redis did not answer: this gateway goes on with its part of the rate, as many gateways as were last seen.

        A bucket without any lease begins with its part of the burst.
        """
        part = self.terms.capacity / self.num_gateways
        is_first, self.has_lease = not self.has_lease, True
        if self.is_semaphore:
            self.balance = max(self.balance, part - self.in_use)
            return
        earned = self.terms.rate_per_s / self.num_gateways * max(0.0, now - self._shared_at)
        self._shared_at = now
        self._level, self._level_at = 0.0, now
        self.balance = part if is_first else max(self.balance, min(self.balance + earned, part))

    def _note(self, cost: float, now: float) -> None:
        """Demand is smoothed over ``_DEMAND_S``."""
        self._wanted_at = now
        faded = max(0.0, 1.0 - (now - self._demand_at) / _DEMAND_S)
        self._demand = self._demand * faded + cost
        self._largest = max(self._largest * (0.5 + faded / 2), cost)
        self._demand_at = now

    def _spend(self, amount: float) -> None:
        self.balance -= amount
        if self.is_semaphore:
            self.in_use += amount
        else:
            self._spent += amount

    def _wish(self, now: float) -> float:
        """Enough for the demand of half a second and for two of the largest requests, and no more than there is.

        Of a semaphore one request's worth, and only while requests come: spare slots are missing elsewhere.
        """
        wanted_s = now - self._wanted_at
        if wanted_s > (_MEMORY_S if self.is_semaphore else self._config.idle_s):
            return self.in_use
        spare = self._largest if self.is_semaphore else max(self._demand, 2 * self._largest)
        return min(self.terms.capacity, self.in_use + spare)

    def _least(self, now: float) -> float:
        """The smallest amount that was refused a moment ago; a semaphore keeps what is in use."""
        if self._refused is None or now - self._refused[1] > _MEMORY_S or self.is_semaphore:
            return 0.0
        return min(self._refused[0], self._wish(now))
