"""One limit of one tenant as one gateway sees it: a slice of the bucket in Redis, spent without asking. No I/O.

    note ──▶ demand                         ask ──▶ what was spent, what is wanted   ┐ one turn
    spend ──▶ balance goes down             grant ─▶ the slice is what Redis says    ┘
    give_back ──▶ it goes up (settlement)   miss ──▶ Redis is away: this gateway's share goes on

A slice whose lease has run out gives nothing: this process stood still, and others may have it now.
The next turn says how many slots of a semaphore they took, which this gateway has in use.

What comes back is spent again at once as far as it undoes what this slice has lost since the last turn; the rest goes
by Redis, which fills no bucket above its capacity.  Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from stratos.store.counters.leases import LeaseAsk, LeaseGrant
from stratos_gateway.limits.debt import Debt
from stratos_gateway.limits.demand import Demand
from stratos_gateway.limits.own_share import OwnShare
from stratos_gateway.limits.pace import EndPace
from stratos_gateway.limits.settings import LimitsConfig

_TINY = 1e-6
"""Rounding of amounts in Redis."""
_SOON_S = 0.01
"""Between two turns: a request waits for what is refilled until the next one."""
HEARD_S = 0.35
"""A gateway that has a core, and nothing new to say of a bucket, is heard so often."""
SLOW_S = 0.5
"""One that was silent for so long has none, or is gone."""
_SLOW_LATELY_S = 30.0
UNKNOWN_AFTER_S = 30.0
"""For an amount that is larger than this gateway's share: it waits for Redis."""


class Holder(Protocol):
    """A request that has slots."""

    def give_up(self) -> None:
        """End: others have its slots. They are given back as always."""


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
    """

    def __init__(self, name: str, terms: BucketTerms, config: LimitsConfig, now: float) -> None:
        self.name = name
        self.terms = terms
        self.demand = Demand(now)
        self.holders: dict[Holder, float] = {}
        """Who has how many slots of a semaphore, the oldest first."""
        self.in_use = 0.0
        """Taken from a semaphore and not given back."""
        self._reported_use = 0.0
        """The same, as the last turn reported it."""
        self.has_lease = False
        self.is_contested = False
        """Another gateway lacks what this one may hold unused."""
        self._config = config
        self._held = self._used = self._back = 0.0
        """The slice at the last turn; of it spent since, and what came back beyond that."""
        self._total = self._acked = self._asked = 0.0
        """Spent so far, less what came back: now, and in the last report that was answered, or made."""
        self._is_counted = False
        """Redis keeps this count, by which it takes the next report: one that began at 0 would be a refund of all."""
        self._debt = self._new_debt = Debt(now)
        """Since the last report that was answered, and since the last one."""
        self._level = self._unused = 0.0
        self._level_at = self._turn_at = now
        self._said_at = self._others_at = self._slow_until = float("-inf")
        """What is known of the bucket is of then; of what other gateways hold, of then. One of them was slow lately."""
        self._own: OwnShare | None = None
        self._owed = Debt(now)
        """Missing from this gateway's share while Redis is away."""
        self.slice_until = float("-inf")
        """Redis has given the slice to no one until then, whatever its clock says."""
        self._was_lapsed = False
        """This process had stood still for too long when the last turn ended."""
        self._earned_at = now
        self._pace = EndPace()

    @property
    def is_semaphore(self) -> bool:
        """Put back what was taken."""
        return self.terms.rate_per_s == 0

    @property
    def is_own(self) -> bool:
        """Redis is away."""
        return self._own is not None

    @property
    def unreported(self) -> float:
        """Amount that Redis does not know to be spent; it comes back if this gateway is killed."""
        return self._total - self._acked

    @property
    def balance(self) -> float:
        """Amount that may be taken here now; below 0 where more is in use or was used than is held."""
        return self._held - (self.in_use if self.is_semaphore else self._used)

    @property
    def has_news(self) -> bool:
        """Whether a gateway that lacks something here can get it, or hears that it is in use."""
        return self.balance > 0 or self.in_use != self._reported_use

    @property
    def num_lost(self) -> float:
        """Slots in use here that others got while this process stood still."""
        return max(0.0, self.in_use - self._held) if self.is_semaphore and self._was_lapsed else 0.0

    def end_lost(self) -> int:
        """Ask the newest holders to end until none has more than this gateway was given; returns how many."""
        lost, ended = self.num_lost, 0
        for holder in reversed(list(self.holders)):
            if lost <= _TINY:
                break
            lost -= self.holders.pop(holder)
            ended += 1
            holder.give_up()
        return ended

    def leased_until(self) -> float:
        """When others may have slots that are in use here; infinity where none is, and without Redis."""
        return self.slice_until if self.is_semaphore and self.in_use and self._own is None else float("inf")

    def _is_lapsed(self, now: float) -> bool:
        return self.has_lease and self._own is None and now >= self.slice_until

    def has(self, cost: float, now: float) -> bool:
        """Whether the amount may be taken."""
        if self._own is not None:
            self._earn(now)
        if self.balance + _TINY >= cost and not self._is_lapsed(now):
            return True
        self.demand.refuse(cost, now)
        return False

    def spend(self, cost: float, now: float) -> None:
        """Take what is there."""
        if self.is_semaphore:
            self.in_use += cost
        else:
            self._used += cost
            self._count(cost, now)
            if self._own is not None:
                self._owe(cost, now)

    def give_back(self, amount: float, now: float) -> None:
        """A part of what was taken was not used; below 0 where more was used."""
        if self.is_semaphore:
            self.in_use -= amount
            self._pace.note(amount, now)
            return
        undone = min(amount, self._used)
        self._used -= undone
        self._back += amount - undone
        if self._own is None:
            self._count(-amount, now)
        else:  # it is worth something here alone: Redis could not tell what came before it
            self._owe(-amount, now)

    def _count(self, amount: float, now: float) -> None:
        self._total += amount
        for debt in {self._debt, self._new_debt}:
            debt.add(amount, self.terms.rate_per_s, now)

    def after_s(self, cost: float, now: float) -> float:
        """Seconds until the tenant may have the amount, if it takes nothing else; 0 where the next turns may bring it.

        Of a semaphore an estimate, by the pace at which the tenant's sequences ended here lately, and as many of those
        that run elsewhere.
        """
        if not self.has_lease and self._own is None:
            return 0.0
        missing = cost - self.remaining(now)
        if missing <= max(_TINY, self.terms.rate_per_s * _SOON_S):
            return 0.0
        if self.is_semaphore:
            return self._pace.after_s(missing * self._part_here(now), now)
        if self._own is None:
            return missing / self.terms.rate_per_s
        never = cost > self._own.part * self.terms.capacity
        return UNKNOWN_AFTER_S if never else missing / (self._own.part * self.terms.rate_per_s)

    def _part_here(self, now: float) -> float:
        """Part of the slots in use that is in use here; all, where that is not known."""
        if self._own is not None or not self.in_use:
            return 1.0
        return min(1.0, self.in_use / max(_TINY, self.terms.capacity - self.remaining(now)))

    def is_known(self, since: float, now: float) -> bool:
        """Whether a limit may be named to a request that came at ``since``: what is left is known as of then or of now.

        Sequences may have ended elsewhere, at a gateway that has had no core to say so.
        """
        if self._own is not None:
            return True
        if now < self._slow_until:  # what it said may have left before what it had done
            return since <= min(self._said_at, self._others_at - self._config.interval_s / 2)
        is_said = since <= self._said_at or now - self._said_at <= 2 * self._config.interval_s
        return is_said and (since <= self._others_at or self._said_at - self._others_at <= HEARD_S)

    def serve(self, now: float) -> None:
        """Requests that wait take what is here, in the order in which they came."""
        line = self.demand.line
        if line and self._own is not None:
            self._earn(now)
        if self.balance > _TINY:
            for request in line:
                if request.cost <= self.balance + _TINY:
                    request.serve(now)

    def remaining(self, now: float) -> float:
        """Amount that the tenant has left over all gateways, as far as this one knows."""
        if self._own is not None:
            return self.balance
        elsewhere = self._level + self._unused + self.terms.rate_per_s * max(0.0, now - self._level_at)
        return min(self.balance + self._back + elsewhere, self.terms.capacity)

    def is_due(self, now: float) -> bool:
        """A turn has something to say or to get."""
        if self.demand.waiting or not self.has_lease or (self.is_contested and self.balance > _TINY):
            return True
        since_s = now - self._turn_at
        is_low = self.demand.is_recent(now) and self.balance < self._wish(now) / 2
        is_new = bool(self.unreported) or is_low or self.in_use < self._reported_use
        return since_s > (self._config.interval_s / 2 if is_new else self._config.lease_s / 3)

    def is_idle(self, now: float) -> bool:
        """Nothing was wanted for long, and nothing is held here that others could use. Redis knows it, too."""
        is_settled = self._own is None and self._held == 0 and not (self.unreported or self._is_counted or self.in_use)
        return is_settled and not self.demand.waiting and now - self.demand.wanted_at > self._config.idle_s

    @property
    def is_in_vain(self) -> bool:
        """Whether another gateway lacks what this one holds for requests that lack something of an earlier limit.

        Limits are gathered in one order, so that of two gateways that hold what the other one lacks one gives way.
        """
        return self.is_contested and self.demand.is_held_up

    def ask(self, now: float, growth: float | None = None, *, is_in_vain: bool = False) -> LeaseAsk:
        """The report and the wish of a turn that begins.

        Args:
            now: seconds.
            growth: part of the bucket in whose measure alone the slice may grow now; ``None`` leaves it free.
            is_in_vain: what waits here needs nothing in this turn.
        """
        if self._own is not None:
            self._earn(now)
        self._was_lapsed = self._is_lapsed(now) or (self._was_lapsed and self._own is not None)
        wish, least = self._wish(now), self.demand.least(now)
        need, owed = self.in_use + (0.0 if is_in_vain else self.demand.waiting), self._owed_now(now)
        keep = self._kept(wish, least)
        if growth is not None:
            wish, least = min(wish, self._most_after_outage(growth, now)), 0.0
            need = min(need, wish)
        left_here, self._asked = self.balance + self._back, self._total
        self._held, self._used, self._back = keep, 0.0, 0.0
        self._level += left_here - self.balance  # the tenant's still, until the answer says what became of it
        self._turn_at, self._new_debt, self._reported_use = now, Debt(now), self.in_use
        return LeaseAsk(
            bucket=self.name,
            capacity=self.terms.capacity,
            rate_per_s=self.terms.rate_per_s,
            total=self._total,
            acked=self._acked,
            in_use=self.in_use,
            need=need,
            wish=wish,
            least=self.in_use + least if self.is_semaphore and least else min(least, wish),
            keep=keep,
            debt=self._debt.at(self.terms.rate_per_s, now) if owed is None else 0.0,
            is_share=growth is not None,
            owed=owed,
        )

    def farewell(self, now: float) -> LeaseAsk:
        """The last report: nothing is wanted any more."""
        return replace(self.ask(now), in_use=0.0, need=0.0, wish=0.0, least=0.0, keep=0.0)

    def grant(self, grant: LeaseGrant, now: float) -> None:
        """The turn's answer; what was taken since ``ask`` is still to be reported."""
        self._was_lapsed = self._was_lapsed or self._is_lapsed(now)  # perhaps before Redis had the report
        self._is_counted = grant.held > 0 or abs(self._asked - self._acked) > _TINY  # as ``LEASE`` keeps it
        self._held, self._acked = grant.held, self._asked
        self.slice_until = self._turn_at + self._config.lease_s
        self._debt = self._new_debt
        self._level, self._level_at, self._unused = grant.level, now, grant.unused
        if now < self.slice_until:
            self._said_at, self._others_at = self._turn_at, self._turn_at - grant.silent_s
        if grant.silent_s > SLOW_S:
            self._slow_until = now + _SLOW_LATELY_S
        self._earned_at, self.has_lease, self._own, self.is_contested = self._turn_at, True, None, False

    def miss(self, part: float, since_s: float, now: float) -> None:
        """Redis is away: this gateway goes on with its part of the bucket.

        Args:
            part: of the capacity and of the rate.
            since_s: when it was first found away; minus infinity where this gateway is alone.
            now: seconds.
        """
        if self._own is None:
            self._was_lapsed = self._is_lapsed(now)
            since_s = max(since_s, now - self.terms.capacity / self.terms.rate_per_s) if self.terms.rate_per_s else now
            slice_held = 0.0 if self._was_lapsed else max(0.0, self.balance)
            self._own = OwnShare(part=part, slice_held=slice_held, since_s=since_s)
            self._owed = Debt(since_s, part * self.terms.capacity)
            self._earned_at = since_s
        self._earn(now)
        if self._own.part != part:  # another gateway has come, and owes the difference
            self._owe((part - self._own.part) * self.terms.capacity, now)
            self._own = OwnShare(part=part, slice_held=max(0.0, self.balance), since_s=now)

    def _earn(self, now: float) -> None:
        """Add what was earned, and what came back, to the balance."""
        own, capacity, rate = self._own, self.terms.capacity, self.terms.rate_per_s
        assert own is not None, "only while Redis is away"
        if self.is_semaphore:
            self._held = max(own.part * capacity, self.in_use)
            return
        earned = own.part * rate * (now - self._earned_at) + self._back
        self._held = min(self.balance + earned, own.most(capacity, rate, now))
        self._used, self._back, self._earned_at = 0.0, 0.0, now

    def _owed_now(self, now: float) -> float | None:
        """Most that is missing of what was spent in an outage; ``None`` without one.

        Each share begins empty.  So what all gateways owe is at least what one bucket would lack, and no more than its
        capacity if they kept to their shares.
        """
        if self._own is None or self.is_semaphore:
            return None
        return self._owed.at(self._own.part * self.terms.rate_per_s, now)

    def _owe(self, amount: float, now: float) -> None:
        assert self._own is not None, "only while Redis is away"
        self._owed.add(amount, self._own.part * self.terms.rate_per_s, now)

    def _most_after_outage(self, part: float, now: float) -> float:
        """Slice with which a gateway goes on before the others have reported what they took in the outage."""
        if self.is_semaphore:
            return max(part * self.terms.capacity, self.in_use)
        return max(0.0, self.balance) + part * self.terms.rate_per_s * (now - self._earned_at)

    def _wish(self, now: float) -> float:
        """Enough for what is expected, and no more than there is.

        Of a semaphore what waits, and a spare request's worth while requests come.
        """
        is_wanted = now - self.demand.wanted_at <= self._config.idle_s or self.demand.waiting
        if self.is_semaphore:
            spare = self.demand.waiting + (self.demand.largest if self.demand.is_recent(now) else 0.0)
        else:
            spare = self.demand.expected() if is_wanted else 0.0
            if not self.demand.is_recent(now):  # what is here may stay, unless others want it; more would be stranded
                spare = min(spare, max(0.0, self.balance))
        return min(self.terms.capacity, self.in_use + spare)

    def _kept(self, wish: float, least: float) -> float:
        """Amount that stays here while a turn is under way; another gateway may have the rest before the answer."""
        if self._own is not None:
            return self._held if self.is_semaphore else max(0.0, self.balance)
        is_needed = not self.is_contested and least <= self.balance
        spare = max(0.0, self.balance) if is_needed else 0.0
        return min(self.in_use + spare, max(wish, self.in_use))
