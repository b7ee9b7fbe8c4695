"""Old defects of tenants' limits, planted again: the checks of the table must find each of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

from stratos.common.clock import Clock
from stratos.store.counters.leases import LEASE, LeaseAsk, LeaseTurn
from stratos_gateway.limits.bucket import BucketTerms, LeasedBucket
from stratos_gateway.limits.claims import Claim, take_all
from stratos_gateway.limits.leaser import Leaser
from stratos_gateway.limits.leases import Leases
from stratos_gateway.limits.limiter import LimitReservation, TenantLimiter
from stratos_gateway.limits.settings import LimitsConfig


class _ChangedCalls(Leases):
    """Calls with other asks, or other answers."""

    def __init__(self, leases: Leases) -> None:
        self.gateway, self.is_alone = leases.gateway, leases.is_alone
        self.leases = leases

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        return await self.leases.lease(asks, ttl_s, reported)

    async def leave(self) -> None:
        await self.leases.leave()


class _OneSlot(_ChangedCalls):
    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        return await super().lease([self._one(ask) for ask in asks], ttl_s, reported)

    @staticmethod
    def _one(ask: LeaseAsk) -> LeaseAsk:
        return replace(ask, need=ask.in_use + 1, wish=ask.in_use + 1, least=0) if ask.rate_per_s == 0 else ask


class OneSlotPerTurn(Leaser):
    """A semaphore asks for one slot more than is in use, however many requests came together."""

    def __init__(self, leases: Leases, clock: Clock, config: LimitsConfig) -> None:
        super().__init__(_OneSlot(leases), clock, config)


class _OneTurn(TenantLimiter):
    """A request waits for one turn that begins after it came, and no longer."""

    async def _wait(self, reservation: LimitReservation) -> None:
        now, claims = self._clock.now(), reservation.claims
        if not any(claim.bucket.after_s(claim.amount, now) for claim in claims):
            buckets = [claim.bucket for claim in claims]
            for _ in range(2):  # the first may be under way
                await self._leaser.turn_soon(buckets, self._leaser.config.wait_s, asyncio.Event())
            if self._take_all(claims, self._clock.now()):
                reservation.hold()
                return
        raise self._refusal(claims, now)

    def _take_all(self, claims: Sequence[Claim], now: float) -> bool:
        return take_all(claims, now)


class OneSlotAndOneTurn(_OneTurn):
    """The half of ``OneSlotPerTurn`` that is in the limiter."""


class FirstShortClaim(_OneTurn):
    """Only the first limit that is short learns that something is wanted of it."""

    async def take(self, reservation: LimitReservation) -> None:
        if self._take_all(reservation.claims, self._clock.now()):
            reservation.is_taken = True
        else:
            await self._wait(reservation)

    def _take_all(self, claims: Sequence[Claim], now: float) -> bool:
        self._note_short(claims, now)
        return super()._take_all(claims, now)

    def _note_short(self, claims: Sequence[Claim], now: float) -> None:
        for claim in claims:
            claim.bucket.demand.note(claim.amount, now)
            if not claim.bucket.has(claim.amount, now):
                return


class _PlantedBuckets(Leaser):
    """Its buckets have the defect."""

    bucket_type: type[LeasedBucket]

    def bucket(self, name: str, terms: BucketTerms) -> LeasedBucket:
        if name not in self._buckets:
            self._buckets[name] = self.bucket_type(name, terms, self.config, self._clock.now())
        return super().bucket(name, terms)


class _Unbounded(LeasedBucket):
    """Refunds make the slice larger, whatever it was."""

    def give_back(self, amount: float, now: float) -> None:
        super().give_back(amount, now)
        self._held, self._back = self._held + self._back, 0.0


class UnboundedRefunds(_PlantedBuckets):
    """Slices grow by refunds; the script of this defect fills buckets above their capacity."""

    bucket_type = _Unbounded


OVERFLOWING = LEASE.replace("- math.max(missing, debt)", "- missing").replace(
    "local missing, refilled = math.max(0, capacity - level - held - others)",
    "local missing, refilled = capacity - level - held - others",
)
"""The lease script without the bound at the capacity."""


NO_SILENCE = LEASE.replace("if last and math.abs(now - last) > silence then", "if false then")
"""The lease script that takes every gateway for heard."""


class FirstBuckets(Leaser):
    """The first buckets of the table are renewed, and the others never."""

    async def _renew(self, due: Sequence[LeasedBucket]) -> None:
        await super()._renew(list(self._buckets.values())[:256])


class _NeverLapses(LeasedBucket):
    def _is_lapsed(self, now: float) -> bool:
        return False


class GoesOnAsBefore(_PlantedBuckets):
    """A gateway that stood still takes its slices for its own, whatever Redis has done with them meanwhile."""

    is_shut = False

    bucket_type = _NeverLapses


class ForgetsGateways(Leaser):
    """Without Redis every gateway takes itself for the only one."""

    def _part(self, bucket: LeasedBucket) -> float:
        return 1.0


class _Hurried(LeasedBucket):
    def after_s(self, cost: float, now: float) -> float:
        return super().after_s(cost, now) / 2


class HurriedClients(_PlantedBuckets):
    """Retry-After says less than what the rate needs."""

    bucket_type = _Hurried


class _HoldsOn(LeasedBucket):
    @property
    def is_in_vain(self) -> bool:
        return False


class HoldsOn(_PlantedBuckets):
    """Of two gateways that hold what the other one lacks neither gives way."""

    bucket_type = _HoldsOn


class _HidesWhatGoes(LeasedBucket):
    def ask(self, now: float, growth: float | None = None, *, is_in_vain: bool = False) -> LeaseAsk:
        level = self._level
        try:
            return super().ask(now, growth, is_in_vain=is_in_vain)
        finally:
            self._level = level


class HidesWhatGoes(_PlantedBuckets):
    """What a turn gives back is nowhere until its answer: clients that ask then are told a later time."""

    bucket_type = _HidesWhatGoes


class _BelievesSilent(LeasedBucket):
    def is_known(self, since: float, now: float) -> bool:
        return self.has_lease and now - self._level_at <= 2 * self._config.interval_s


class BelievesSilent(_PlantedBuckets):
    """What a gateway said last counts, however long ago that was."""

    bucket_type = _BelievesSilent


class _KeepsSlots(LeasedBucket):
    def _wish(self, now: float) -> float:
        return max(super()._wish(now), self._held)


class KeepsSlots(_PlantedBuckets):
    """A gateway goes on to wish for what it once had, whether it has any use for it or not."""

    bucket_type = _KeepsSlots


STRANDING = re.sub(r"\n  if (rate == 0|contested\[key\]) then wanted = .*", "", LEASE)
"""The lease script that lets gateways have what they wish for, although others lack it."""
