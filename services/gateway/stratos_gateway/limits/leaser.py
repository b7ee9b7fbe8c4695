"""Renews the slices of all buckets: one task, one call of Redis per turn, however many requests wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown
from stratos.store.counters.leases import LeaseAsk, LeaseGrant
from stratos_gateway.limits.bucket import BucketTerms, LeasedBucket
from stratos_gateway.limits.settings import LimitsConfig

_log = logging.getLogger(__name__)
_MIN_GAP_S = 0.01
_MAX_BUCKETS = 256
"""Buckets of one call; the rest follow in the next turn."""


class Leases(Protocol):
    """Where buckets are."""

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float) -> list[LeaseGrant]:
        """Report and renew; raises ``DependencyDown``."""
        ...


class NoLeases(Leases):
    """One gateway by itself: it has all of every bucket."""

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float) -> list[LeaseGrant]:
        """Redis is always away, and no other gateway was ever seen."""
        raise DependencyDown("this gateway counts limits by itself")


NO_LEASES = NoLeases()


class Leaser:
    """The buckets that this gateway uses.

    Args:
        leases: where they are.
        clock: monotonic.
        config: how often, and for how long.
    """

    def __init__(self, leases: Leases, clock: Clock, config: LimitsConfig) -> None:
        self._leases = leases
        self._clock = clock
        self._config = config
        self._buckets: dict[str, LeasedBucket] = {}
        self._wanted = asyncio.Event()
        self._next_turn = asyncio.Event()
        self._said = False
        self._num_gateways = 1
        self.num_turns = 0
        self.num_missed_turns = 0

    def bucket(self, name: str, terms: BucketTerms) -> LeasedBucket:
        """The bucket of a name; a plan that changed changes it."""
        found = self._buckets.get(name)
        if found is None or found.is_semaphore != (terms.rate_per_s == 0):
            found = self._buckets[name] = LeasedBucket(name, terms, self._config, self._clock.now(), self._num_gateways)
        found.terms = terms
        return found

    async def turn_soon(self) -> None:
        """Wait until a turn that begins after this call has ended, but not for long."""
        turn = self._next_turn
        self._wanted.set()
        try:
            async with asyncio.timeout(self._config.wait_s):
                await turn.wait()
        except TimeoutError:
            for bucket in self._buckets.values():
                if not bucket.has_lease:  # the first request of a tenant must not wait for Redis to come back
                    bucket.miss(self._clock.now())

    async def run(self) -> None:
        """Root task."""
        while True:
            try:
                async with asyncio.timeout(self._config.interval_s if self._buckets else None):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            await self.turn()
            await asyncio.sleep(_MIN_GAP_S)

    async def turn(self) -> None:
        """Report and renew what is due."""
        ended, self._next_turn = self._next_turn, asyncio.Event()
        self._wanted.clear()
        now = self._clock.now()
        for name in [name for name, bucket in self._buckets.items() if bucket.is_idle(now)]:
            del self._buckets[name]
        due = [bucket for bucket in self._buckets.values() if bucket.is_due(now)][:_MAX_BUCKETS]
        if due:
            await self._renew(due, now)
        ended.set()

    async def _renew(self, due: Sequence[LeasedBucket], now: float) -> None:
        self.num_turns += 1
        try:
            grants = await self._leases.lease([bucket.ask(now) for bucket in due], self._config.lease_s)
        except (DependencyDown, RedisError) as error:
            self.num_missed_turns += 1
            self._say(f"slices of rate limits are not renewed: {error}")
            for bucket in due:
                bucket.miss(self._clock.now())
            return
        self._say("")
        for bucket, grant in zip(due, grants, strict=True):
            bucket.grant(grant, self._clock.now())
        self._num_gateways = max(bucket.num_gateways for bucket in due)

    def _say(self, problem: str) -> None:
        if problem and not self._said:
            _log.warning("%s; every gateway goes on with its share", problem)
        elif self._said and not problem:
            _log.info("slices of rate limits are renewed again")
        self._said = bool(problem)
