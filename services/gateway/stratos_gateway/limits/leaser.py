"""Renews the slices of all buckets: one task, one turn with Redis, however many requests wait for it.

Its second work is to know how many gateways there are, for the time without Redis: every call says who was heard in the
last minutes, and a gateway that the others cannot know of yet tells them (``peer_gateways``).

Its third is to keep what may be spent twice: after an outage no slice grows before the others have reported, and a
gateway that did not see the outage is told of it by Redis, which was not called by anyone for ``SILENCE_S``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from redis.exceptions import RedisError

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown
from stratos.store.counters.leases import SETTLE_S, SILENCE_S, LeaseTurn
from stratos_gateway.limits.bucket import BucketTerms, Holder, LeasedBucket
from stratos_gateway.limits.known_gateways import KnownGateways
from stratos_gateway.limits.leases import Leases
from stratos_gateway.limits.own_share import share_ratio
from stratos_gateway.limits.settings import LimitsConfig

_log = logging.getLogger(__name__)
_MIN_GAP_S = 0.01
_MAX_BUCKETS = 256
"""Buckets of one call: Redis does nothing else for so long. A turn has as many calls as it needs."""
HEARTBEAT_S = SILENCE_S / 2
"""A gateway is heard so often, also without any limited tenant, and hears of new ones."""
_SILENT_CALL_S = 0.25
"""A call that is under way for longer may find no Redis."""
SHARES_AFTER_S = SILENCE_S + 0.1
"""Without Redis shares begin after so long, and slices go on until then: later Redis knows that it was away."""


class _TurnEnd:
    """Wakes those that wait for its end."""

    def __init__(self) -> None:
        self.is_over = False
        self._sleepers: dict[asyncio.Event, None] = {}

    def woken(self, wake: asyncio.Event) -> asyncio.Event:
        """Set it at the end."""
        self._sleepers[wake] = None
        return wake

    def end(self) -> None:
        """It has ended."""
        self.is_over = True
        for wake in self._sleepers:
            wake.set()


class Leaser:
    """The buckets that this gateway uses.

    Args:
        leases: where they are.
        clock: monotonic.
        config: how often, and for how long.
    """

    def __init__(self, leases: Leases, clock: Clock, config: LimitsConfig) -> None:
        self.config = config
        self._leases = leases
        self._clock = clock
        self._buckets: dict[str, LeasedBucket] = {}
        self._wanted = asyncio.Event()
        self._this_turn, self._next_turn = _TurnEnd(), _TurnEnd()
        self._this_turn.end()
        self.known = KnownGateways(leases.gateway, clock)
        """Those that share the limits."""
        self._called_at = self._looked_at = self._settles_at = float("-inf")
        self._holds = False
        """Some slice has something unused."""
        self._urgent: dict[str, LeasedBucket] = {}
        """Waited for, or wanted by other gateways."""
        self._away_at: float | None = None
        """Begin of the first of the calls that found no Redis; ``None`` while it answers."""
        self.shares_at = float("-inf")
        """From when on shares are given in this outage."""
        self._registered_at = float("inf")
        """When Redis first answered: the others hear of this gateway within a heartbeat."""
        self.is_counted = leases.is_alone
        """All gateways count this one; before that, without Redis, it has no share."""
        self.is_registered = leases.is_alone
        """Because Redis told them."""
        self._is_unsure = False
        """Others may have spent what no bucket knows of: Redis was away, and they have not reported since."""
        self._mark = ""
        """Redis was away, and this gateway has not reported since what ``_unreported`` names; else empty."""
        self._unreported: set[str] = set()
        self._call_at: float | None = None
        """Begin of the call that is under way."""
        self._open_until = self._found_until = float("inf")
        """When slots in use here may be others', unless a turn comes before; and once this turn has ended."""
        self.has_heard = False
        """Redis has answered once."""

    @property
    def buckets(self) -> Collection[LeasedBucket]:
        """All that are in use."""
        return self._buckets.values()

    @property
    def is_away(self) -> bool:
        """The last call found no Redis."""
        return self._away_at is not None

    @property
    def is_shut(self) -> bool:
        """This process stood still for so long that slots in use here may be others': nothing may be sent."""
        return self._clock.now() >= self._open_until

    async def opened(self) -> None:
        """Wait until it is known which of them are, and their requests were asked to end."""
        while self.is_shut:
            wake = self._next_turn.woken(asyncio.Event())
            self._wanted.set()
            await wake.wait()

    def hold(self, bucket: LeasedBucket, holder: Holder, amount: float) -> None:
        """Slots of a semaphore were taken."""
        bucket.holders[holder] = amount
        self._open_until = min(self._open_until, bucket.leased_until())
        self._found_until = min(self._found_until, bucket.leased_until())

    @property
    def settles_in_s(self) -> float:
        """Seconds until it is known what may be given, around an outage; 0 where it is."""
        now = self._clock.now()
        known_at = self.shares_at if self.is_away else self._settles_at
        is_open = self._is_unsure or (not self.is_away and self._is_silent(now))
        return max(0.0, known_at - now, self.config.interval_s if is_open else 0.0)

    def _is_silent(self, now: float) -> bool:
        """A call is under way for long: Redis may have gone."""
        return self._call_at is not None and now - self._call_at >= _SILENT_CALL_S

    def note_gateways(self, names: Iterable[str]) -> None:
        """Another gateway says who is there; that counts until Redis says it, and as long as it says so."""
        self.known.note(names)
        self._share_again()

    def count_in(self, answers: Iterable[Sequence[str]]) -> None:
        """Other gateways have noted this one, and say who is there, each with its own name first."""
        self.is_counted = True
        self.known.learn(answers)
        self._share_again()

    def _share_again(self) -> None:
        self._miss([bucket for bucket in self._buckets.values() if bucket.is_own])

    def bucket(self, name: str, terms: BucketTerms) -> LeasedBucket:
        """The bucket of a name; a plan that changed changes it."""
        found = self._buckets.get(name)
        if found is None or found.is_semaphore != (terms.rate_per_s == 0):
            found = self._buckets[name] = LeasedBucket(name, terms, self.config, self._clock.now())
            if self.is_away and self.has_heard:
                self._miss([found])
        found.terms = terms
        return found

    def current(self, bucket: LeasedBucket) -> LeasedBucket:
        """The bucket of its name now: one that was idle for as long as a stream ran is renewed again."""
        return self._buckets.setdefault(bucket.name, bucket)

    async def turn_soon(self, buckets: Iterable[LeasedBucket], wait_s: float, wake: asyncio.Event) -> None:
        """Have a turn of the buckets begin soon. Wait for its end, or that of one under way, but at most ``wait_s``.

        Args:
            buckets: that are due.
            wait_s: seconds.
            wake: ends the wait as well.
        """
        wake.clear()
        (self._next_turn if self._this_turn.is_over else self._this_turn).woken(wake)
        self._urgent |= {bucket.name: bucket for bucket in buckets}
        self._wanted.set()
        try:
            async with asyncio.timeout(wait_s):
                await wake.wait()
        except TimeoutError:  # Redis is slow; a tenant's first request here must not wait for it for ever
            if self._clock.now() - self._called_at >= SHARES_AFTER_S:
                self._miss([bucket for bucket in buckets if not bucket.has_lease])

    async def run(self) -> None:
        """Root task."""
        while True:
            try:
                await self.turn()
                await asyncio.sleep(self._turns_s / 2 if self._is_unsure and not self._mark else _MIN_GAP_S)
                async with asyncio.timeout(self._turns_s if self._buckets else self._heartbeat_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def leave(self) -> None:
        """This gateway ends: what it held is free at once, and the others count without it."""
        try:
            async with asyncio.timeout(self.config.lease_s):
                asks = [bucket.farewell(self._clock.now()) for bucket in self._buckets.values()]
                for begin in range(0, len(asks), _MAX_BUCKETS):
                    await self._leases.lease(asks[begin : begin + _MAX_BUCKETS], self.config.lease_s)
                await self._leases.leave()
        except (DependencyDown, RedisError, TimeoutError) as error:
            _log.debug("the other gateways notice by themselves that this one is gone: %s", error)

    async def turn(self) -> None:
        """Report and renew what is due; what requests wait for comes first."""
        self._this_turn, self._next_turn = self._next_turn, _TurnEnd()
        self._wanted.clear()
        now, due = self._clock.now(), list(self._urgent.values())
        self._urgent = {}
        if now - self._looked_at > self.config.interval_s / 2:  # requests that wait make turns in between, of their own
            self._looked_at = now
            due += self._look(now)
        due += [bucket for name, bucket in self._buckets.items() if name in self._unreported]
        if due or self._mark or now - self._called_at >= self._heartbeat_s:
            self._called_at = now
            await self._renew(list(dict.fromkeys(due)))
        self._open_until = self._found_until
        self._this_turn.end()

    @property
    def _heartbeat_s(self) -> float:
        """Pause between two calls without buckets: to hear what others want of what is held, and of Redis's return."""
        is_short = (
            (self._holds and len(self.known.all) > 1) or self._is_unsure or (self.is_away and not self._leases.is_alone)
        )
        return self._turns_s if is_short else HEARTBEAT_S

    @property
    def _turns_s(self) -> float:
        return min(self.config.interval_s, HEARTBEAT_S)

    def _look(self, now: float) -> list[LeasedBucket]:
        """All buckets that are due; idle ones are forgotten."""
        for name in [name for name, bucket in self._buckets.items() if bucket.is_idle(now)]:
            del self._buckets[name]
        self._holds = any(bucket.balance > 0 for bucket in self._buckets.values())
        due = [bucket for bucket in self._buckets.values() if bucket.is_due(now)]
        self._found_until = self._shortest_lease(due, now)
        return due

    def _shortest_lease(self, due: Sequence[LeasedBucket], now: float) -> float:
        """Until when slots in use here are leased once the due ones are renewed."""
        renewed = dict.fromkeys(due)
        ends = [
            now + self.config.lease_s if bucket in renewed else bucket.leased_until()
            for bucket in self._buckets.values()
            if bucket.in_use and bucket.is_semaphore
        ]
        return min(ends, default=float("inf"))

    async def _renew(self, due: Sequence[LeasedBucket]) -> None:
        for begin in range(0, max(1, len(due)), _MAX_BUCKETS):
            some, now = due[begin : begin + _MAX_BUCKETS], self._clock.now()
            in_vain = [bucket.is_in_vain for bucket in some]  # of all before the first ask, which lets go of slices
            asks = [
                bucket.ask(now, self._growth(bucket, now), is_in_vain=is_in_vain)
                for bucket, is_in_vain in zip(some, in_vain, strict=True)
            ]
            names, self._call_at = {bucket.name for bucket in some}, now
            reported = self._mark if self._unreported & self._buckets.keys() <= names else ""
            try:
                turn = await self._leases.lease(asks, self.config.lease_s, reported)
            except (DependencyDown, RedisError) as error:
                self._on_missed(error, now)
                self._miss(dict.fromkeys([*due[begin:], *self._without_share()]))
                return
            finally:
                self._call_at = None
            self._on_heard(turn)
            self._note_reported(turn.mark, names)
            for bucket, grant in zip(some, turn.grants, strict=True):
                bucket.grant(grant, self._clock.now())
                if bucket.num_lost and (ended := bucket.end_lost()):
                    _log.warning("this gateway stood still: %d requests end whose slots others have now", ended)
            for bucket in some:
                bucket.serve(self._clock.now())
            for name in self._buckets.keys() & set(turn.wanted):
                if (bucket := self._buckets[name]).has_news:
                    bucket.is_contested, self._urgent[name] = True, bucket

    def _without_share(self) -> list[LeasedBucket]:
        return [bucket for bucket in self._buckets.values() if not bucket.is_own]

    def _note_reported(self, mark: str, names: set[str]) -> None:
        """Keep in mind what is still to be reported; a new mark asks for all."""
        if not mark:
            self._unreported.clear()
        elif mark != self._mark:  # the call that is told of it may have waited since before
            self._unreported = set(self._buckets)
        else:
            self._unreported -= names
        self._mark = mark
        if mark:
            self._wanted.set()  # the others wait for it

    def _growth(self, bucket: LeasedBucket, now: float) -> float | None:
        """Shortly after an outage, and in the call that ends it, the part that a slice may grow by."""
        return self._part(bucket) if self.is_away or self._is_unsure or now < self._settles_at else None

    def _on_heard(self, turn: LeaseTurn) -> None:
        now, gateways = self._clock.now(), self.known.on_told(turn.gateways)
        if self._away_at is not None:
            _log.info("slices of rate limits are renewed again")
            if len(gateways) > 1:  # one that is alone has reported all there is
                self._settles_at = now + min(SETTLE_S, max(now - self._away_at, 2 * self.config.interval_s))
        self._away_at, self.has_heard = None, True
        self._registered_at = min(self._registered_at, now)
        self._is_unsure = bool(turn.unheard)
        if not self._is_unsure and now - self._registered_at >= 2 * HEARTBEAT_S:
            self.is_counted = self.is_registered = True

    def _on_missed(self, error: Exception, begun_at: float) -> None:
        if self._away_at is None and self._leases.is_alone:
            self._away_at = float("-inf")
        elif self._away_at is None:
            _log.warning("slices of rate limits are not renewed: %s; every gateway goes on with its share", error)
            self._away_at, self._is_unsure = begun_at, False
            self.shares_at = max(begun_at + SHARES_AFTER_S, self._clock.now())

    def _miss(self, buckets: Iterable[LeasedBucket]) -> None:
        now = self._clock.now()
        if self.is_away and now < self.shares_at:
            return
        since_s = self.shares_at if self.is_away else now
        for bucket in buckets:
            bucket.miss(self._part(bucket), since_s, now)
            bucket.serve(now)

    def _part(self, bucket: LeasedBucket) -> float:
        if not self.is_counted:
            return 0.0
        return share_ratio(bucket.name, bucket.terms.capacity, sorted(self.known.all), self._leases.gateway)
