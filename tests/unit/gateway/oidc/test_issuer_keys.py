"""When an issuer is asked for its keys, and what holds while it does not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from stratos.common.clock import FakeClock
from stratos_gateway.oidc.fetching import FetchFailed
from stratos_gateway.oidc.issuer_keys import IssuerKeys
from stratos_gateway.oidc.key_set import KeySet, parse_key_set
from stratos_gateway.oidc.settings import OidcConfig, OidcIssuer
from tests.support.servers.oidc_issuer import SigningKey

ISSUER = OidcIssuer(issuer="https://id.example", audience="a", tenants=("acme",))
CONFIG = OidcConfig(min_refresh_gap_s=5, max_age_s=1000)
OLD, NEW = SigningKey("old"), SigningKey("new")


class World:
    """An issuer's keys, and who asks."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.served = [OLD]
        self.is_down = False
        self.num_fetches = 0
        self.keys = IssuerKeys(ISSUER, self.fetch, self.clock, CONFIG)

    async def fetch(self, issuer: OidcIssuer) -> KeySet:
        self.num_fetches += 1
        await asyncio.sleep(0)
        if self.is_down:
            raise FetchFailed("no answer")
        return parse_key_set(json.dumps({"keys": [key.public for key in self.served]}).encode(), issuer.algorithms)

    async def has(self, key_id: str) -> bool:
        return await self.keys.find(key_id, "ES256") is not None


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    task = asyncio.create_task(made.keys.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_first_token_waits_for_the_first_fetch(world: World) -> None:
    assert await world.has("old")
    assert world.num_fetches == 1


async def test_a_new_key_is_found_once_the_gap_has_passed_and_an_old_one_goes(world: World) -> None:
    assert await world.has("old")
    world.served = [NEW]
    assert not await world.has("new"), "asked a moment ago"
    world.clock.advance(5)
    assert await world.has("new")
    assert not await world.has("old")
    assert world.num_fetches == 2


async def test_made_up_keys_cost_one_fetch_a_gap(world: World) -> None:
    assert await world.has("old")
    for _ in range(4):
        world.clock.advance(5)
        assert not any(await asyncio.gather(*(world.has(f"made-up-{number}") for number in range(50))))
    assert world.num_fetches == 5


async def test_keys_are_believed_for_a_while_without_their_issuer(world: World) -> None:
    assert await world.has("old")
    world.is_down = True
    world.clock.advance(999)
    assert await world.has("old")
    assert not await world.has("new")
    assert world.keys.is_known
    world.clock.advance(2)
    assert not await world.has("old")
    assert not world.keys.is_known
    world.is_down = False
    world.clock.advance(5)
    assert await world.has("old")
