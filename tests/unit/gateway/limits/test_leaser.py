"""Who shares the limits while Redis is away: the gateways of one model, whoever else there is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.store.counters.leases import LeaseAsk, LeaseGrant, LeaseTurn
from stratos_gateway.limits.bucket import BucketTerms
from stratos_gateway.limits.leaser import HEARTBEAT_S, SHARES_AFTER_S, Leaser
from stratos_gateway.limits.leases import Leases
from stratos_gateway.limits.own_share import gateway_name
from stratos_gateway.limits.settings import LimitsConfig

OWN, SECOND, THIRD = (gateway_name("base", name) for name in ("one", "two", "three"))
OTHERS = [gateway_name("large", name) for name in ("one", "two", "three")]
SLOTS = BucketTerms(capacity=6, rate_per_s=0)


class Store(Leases):
    """Names gateways, until it is away."""

    def __init__(self, *gateways: str) -> None:
        self.gateway, self.is_alone, self.gateways, self.is_away = OWN, False, gateways, False

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        if self.is_away:
            raise DependencyDown("away")
        return LeaseTurn([LeaseGrant(0, 0) for _ in asks], self.gateways)

    async def leave(self) -> None: ...


@pytest.mark.parametrize(
    ("others", "share"),
    [([], 6), ([SECOND], 3), ([SECOND, THIRD], 2), ([*OTHERS], 6), ([SECOND, *OTHERS], 3), (["older"], 3)],
)
async def test_gateways_of_other_models_take_no_part_of_a_bucket(others: list[str], share: int) -> None:
    store, clock = Store(OWN, *others), FakeClock()
    leaser = Leaser(store, clock, LimitsConfig())
    for _ in range(3):
        clock.advance(HEARTBEAT_S)
        await leaser.turn()
    store.is_away, bucket = True, leaser.bucket("sequences:m:t", SLOTS)
    leaser.note_gateways(others)
    await leaser.turn_soon([bucket], 0.0, asyncio.Event())
    await leaser.turn()
    assert not bucket.is_own, "a gateway that starts could not know of so short an outage"
    clock.advance(SHARES_AFTER_S)
    await leaser.turn()
    assert bucket.is_own
    assert bucket.balance == share


async def test_one_of_which_the_others_cannot_know_yet_has_no_share_until_it_told_them() -> None:
    store, clock = Store(OWN, SECOND), FakeClock()
    leaser = Leaser(store, clock, LimitsConfig())
    await leaser.turn()
    store.is_away, bucket = True, leaser.bucket("sequences:m:t", SLOTS)
    clock.advance(HEARTBEAT_S)
    await leaser.turn()
    clock.advance(SHARES_AFTER_S)
    await leaser.turn()
    assert (bucket.is_own, bucket.balance) == (True, 0)
    leaser.count_in([[SECOND]])
    clock.advance(HEARTBEAT_S)
    await leaser.turn()
    assert bucket.balance == 3
