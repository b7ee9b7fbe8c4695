"""Promises of tenants' limits, checked on what gateways did: one exact bucket per limit beside all of them.

The law: a bucket of the plan's size and rate, from which all gateways together take and into which refunds go up to its
capacity, is never below 0.  Then in no window T more than ``capacity + rate * T`` was taken beyond what came back.  A
refund counts from when its gateway has reported it, ``REPORTED_S`` after it was made, or after the gateway was stopped,
at the latest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.core.tenant import Tenant
from stratos_gateway.limits.limiter import Cost

ROUNDING = 1e-3
REPORTED_S = 0.25
LATE = 1.2
"""Most of the exact time that a Retry-After may say."""


@dataclass
class ExactBucket:
    """One limit of one tenant, without leases."""

    capacity: float
    rate_per_s: float
    at: float
    level: float = field(init=False)
    lowest: float = 0.0
    freed: list[tuple[float, float]] = field(default_factory=list)
    """Slots that came back: when, and how many."""

    def __post_init__(self) -> None:
        self.level = self.capacity

    def move(self, amount: float, now: float) -> None:
        """Take, or give back where it is below 0."""
        if amount < 0 and not self.rate_per_s:
            self.freed.append((now, -amount))
        self.level = min(self.now_at(now) - amount, self.capacity)
        self.at = now
        self.lowest = min(self.lowest, self.level)

    def now_at(self, now: float) -> float:
        return min(self.capacity, self.level + self.rate_per_s * (now - self.at))

    def brought(self, since_s: float, now: float) -> float:
        """What was refilled, or came back of slots, in the last seconds."""
        if self.rate_per_s:
            return since_s * self.rate_per_s
        self.freed = [one for one in self.freed if one[0] >= now - since_s]
        return sum(amount for _, amount in self.freed)

    def frees_s(self, cost: float, now: float) -> float:
        """Seconds until the amount is there; infinite for slots, whose ends are not known."""
        missing = cost - self.now_at(now)
        if missing <= 0:
            return 0.0
        return missing / self.rate_per_s if self.rate_per_s else float("inf")


@dataclass
class LawBucket(ExactBucket):
    """The same, where a gateway's refunds count together, as late as may be: when needed, or reported at the latest."""

    reports: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By gateway: when its report is out at the latest, and the amount."""

    def give_back(self, amount: float, gateway: str, now: float) -> None:
        """Some of what was taken at a gateway comes back."""
        due, before = self.reports.get(gateway, (now + REPORTED_S, 0.0))
        self.reports[gateway] = due, before + amount

    def report_by(self, gateway: str, due: float) -> None:
        """What came back at a gateway is reported by then: one that stands still reports nothing."""
        if gateway in self.reports:
            self.reports[gateway] = due, self.reports[gateway][1]

    def take(self, amount: float, now: float) -> None:
        """Take, of what came back as well."""
        for gateway, (due, back) in sorted(self.reports.items(), key=lambda report: report[1]):
            if due <= now or self.now_at(now) < amount:
                self.move(-back, max(min(due, now), self.at))
                del self.reports[gateway]
        self.move(amount, now)


class Book:
    """Everything that all gateways accepted, refused and gave back.

    Args:
        clock: of the world.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], ExactBucket] = {}
        self._laws: dict[tuple[str, str], LawBucket] = {}
        self.num_taken: Counter[str] = Counter()
        self.num_refused: Counter[str] = Counter()
        self.tokens_used: Counter[str] = Counter()
        self.wrongful: list[str] = []
        """Refusals of what the plan allows."""
        self.early: list[str] = []
        self.late: list[str] = []
        self.known_late_s = 0.0
        """A gateway may not know yet what was refilled, or came back at another one, in so long."""

    def _limits(self, tenant: Tenant) -> dict[str, ExactBucket]:
        plan, now = tenant.plan, self._clock.now()
        limits = {"sequences": plan.max_sequences, "requests": plan.requests_per_min, "tokens": plan.tokens_per_min}
        found = {}
        for kind, limit in limits.items():
            if limit is not None:
                is_slots = kind == "sequences"
                capacity = float(limit) if is_slots else max(1.0, limit * plan.burst_s / 60)
                rate_per_s, key = 0.0 if is_slots else limit / 60, (tenant.name, kind)
                found[kind] = self._buckets.setdefault(key, ExactBucket(capacity, rate_per_s, now))
                self._laws.setdefault(key, LawBucket(capacity, rate_per_s, now))
        return found

    def taken(self, tenant: Tenant, cost: Cost) -> None:
        """A request was accepted."""
        self.num_taken[tenant.name] += 1
        for kind, bucket in self._limits(tenant).items():
            bucket.move(_amount(kind, cost), self._clock.now())
            self._laws[tenant.name, kind].take(_amount(kind, cost), self._clock.now())

    def settled(self, tenant: Tenant, cost: Cost, num_tokens: int, gateway: str) -> None:
        """It has ended at its gateway, with so many tokens."""
        self.tokens_used[tenant.name] += num_tokens
        back = {"tokens": cost.num_tokens - num_tokens, "sequences": cost.num_sequences}
        for kind, bucket in self._limits(tenant).items():
            if kind in back:
                bucket.move(-back[kind], self._clock.now())
                self._laws[tenant.name, kind].give_back(back[kind], gateway, self._clock.now())

    def stood_still(self, gateway: str, *, is_over: bool) -> None:
        """A gateway was stopped, or goes on."""
        for law in self._laws.values():
            law.report_by(gateway, self._clock.now() + REPORTED_S if is_over else float("inf"))

    def refused(self, tenant: Tenant, cost: Cost, error: StratosError) -> None:
        """A request was not accepted."""
        now, after_s = self._clock.now(), error.after_s or 0.0
        self.num_refused[tenant.name] += 1
        limits = [(bucket, _amount(kind, cost)) for kind, bucket in self._limits(tenant).items()]
        frees_s = max(bucket.frees_s(amount, now) for bucket, amount in limits)
        known_s = max(bucket.frees_s(amount + bucket.brought(self.known_late_s, now), now) for bucket, amount in limits)
        text = f"{tenant.name} at {now:.3f}: refused for {after_s:.4f} s, exact is {frees_s:.4f} s ({error.code})"
        if known_s <= 0:
            self.wrongful.append(text)
        elif known_s < float("inf"):
            if after_s < frees_s - ROUNDING:
                self.early.append(text)
            if after_s > LATE * frees_s + self.known_late_s:
                self.late.append(text)

    def unused(self, tenant: Tenant, cost: Cost) -> float:
        """Requests of a cost that the tenant may have now."""
        now = self._clock.now()
        return min(bucket.now_at(now) / _amount(kind, cost) for kind, bucket in self._limits(tenant).items())

    @property
    def excess(self) -> dict[str, float]:
        """Limits that were passed, each with the amount."""
        return {
            f"{name} {kind}": round(-bucket.lowest, 6)
            for (name, kind), bucket in self._laws.items()
            if bucket.lowest < -ROUNDING * max(1.0, bucket.capacity / 1000)
        }

    def problems(self, *, is_exact: bool) -> list[str]:
        """Broken promises, one line each; Retry-After counts where nothing else was taken meanwhile."""
        found = [f"the law: {limit} is passed by {amount}" for limit, amount in sorted(self.excess.items())]
        kinds = {"refused what the plan allows": self.wrongful}
        if is_exact:
            kinds |= {"Retry-After is too early": self.early, "Retry-After is too late": self.late}
        return found + [f"{text}, {len(lines)} times: {lines[0]}" for text, lines in kinds.items() if lines]


def _amount(kind: str, cost: Cost) -> float:
    return {"sequences": cost.num_sequences, "requests": 1, "tokens": cost.num_tokens}[kind]
