"""Tokens of a real issuer on a socket, through a whole gateway and its admin port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stratos_gateway.oidc.fetching import FetchFailed, fetch_keys
from stratos_gateway.oidc.settings import OidcIssuer
from tests.support.promises import Promised
from tests.support.servers.oidc_issuer import AUDIENCE, Issuer, SigningKey, running_issuer
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import say


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as found:
        yield found


@pytest.fixture
async def world(redis_url: str, tmp_path: Path, issuer: Issuer) -> AsyncIterator[AdminWorld]:
    roles = {"ops": "admin", "owners": "tenant-admin"}
    config = {
        "issuers": [{"issuer": issuer.url, "audience": AUDIENCE, "roles": roles, "tenants": ["*"]}],
        "min_refresh_gap_s": 0.05,
    }
    async with admin_world(redis_url, tmp_path, oidc=config) as found:
        yield found


async def reach(world: AdminWorld, token: str) -> list[int]:
    """What a token gets for models, its own tenant, another tenant, all plans."""
    world.keys["token"] = token
    paths = ("/tenants/acme", "/tenants/other", "/plans")
    return [await world.status(token), *[(await world.call("GET", path, by="token")).status_code for path in paths]]


async def test_claims_decide_whose_a_request_is_and_what_it_may(world: AdminWorld, issuer: Issuer) -> None:
    await eventually(lambda: world.status(issuer.token()), "an answer")
    assert await reach(world, issuer.token()) == [200, 403, 403, 403]
    assert await reach(world, issuer.token(roles=["owners"])) == [200, 200, 404, 403]
    assert await reach(world, issuer.token(roles=["ops", "owners"])) == [200, 200, 200, 200]
    assert await reach(world, issuer.token(tenant="unknown", roles="ops")) == [403] * 4
    assert await reach(world, issuer.token(lives_s=-60)) == [401] * 4
    assert await reach(world, issuer.token()[:-8] + "AAAAAAAA") == [401] * 4
    assert await reach(world, "a" * 7000 + ".b.c") == [401] * 4
    assert await reach(world, "a" * 9000 + ".b.c") == [401] * 4
    assert await reach(world, world.keys["owner"]) == [200, 200, 404, 403], "keys work beside tokens"
    world.keys["token"] = issuer.token(roles=["ops"])
    assert (await world.call("POST", "/tenants/other/suspend", {}, by="token")).status_code == 200
    log = (await world.call("GET", "/audit")).json()["data"]
    assert (log[-1]["actor"], log[-1]["action"]) == (f"jwt:{issuer.url}#ann", "tenant.suspend")


async def test_keys_rotate_and_outlast_their_issuer(world: AdminWorld, issuer: Issuer) -> None:
    old = issuer.token()
    await eventually(lambda: world.status(old), "an answer")
    issuer.keys.append(SigningKey("second", "RS256"))
    await eventually(lambda: _has(world, issuer.token(), 200), "the new key is known")
    assert await world.status(old) == 200, "both are there while they overlap"
    issuer.is_down = True
    await asyncio.sleep(0.1)
    assert await world.status(issuer.keys[-1].sign({"iss": issuer.url}, kid="third")) == 401
    assert [await world.status(token) for token in (old, issuer.token())] == [200, 200]


async def test_what_a_token_runs_ends_with_its_tenant(world: AdminWorld, issuer: Issuer, promised: Promised) -> None:
    world.worker.script, world.worker.step_s = say("a b c d " * 300), 0.02
    headers = {"authorization": f"Bearer {issuer.token()}"}
    body = {"model": "base", "prompt": [5, 6], "max_tokens": 1000}
    running = asyncio.create_task(world.public.post("/v1/completions", json=body, headers=headers))
    await eventually(lambda: world.worker.running, "it runs")
    assert (await world.call("POST", "/tenants/acme/suspend", {})).status_code == 200
    with promised("what a token runs ends with its tenant", 1.0):
        answer = await running
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")


async def test_a_token_means_no_later_tenant_of_a_name(world: AdminWorld, issuer: Issuer) -> None:
    old = issuer.token(roles=["owners"])
    await eventually(lambda: world.status(old), "an answer")
    assert (await world.call("DELETE", "/tenants/acme")).status_code == 200
    await eventually(lambda: _has(world, old, 403), "it is gone")
    assert (await world.call("PUT", "/tenants/acme", {"plan": "standard"})).status_code == 200
    made = (await world.call("GET", "/tenants/acme")).json()
    new = issuer.token(tenant=made["id"], roles=["owners"])
    await eventually(lambda: _has(world, new, 200), "who names its id has it")
    assert await reach(world, new) == [200, 200, 404, 403]
    for _ in range(3):
        assert await reach(world, old) == [403] * 4


async def test_an_issuer_is_asked_for_what_it_says_of_itself_alone(issuer: Issuer) -> None:
    config = OidcIssuer(issuer=issuer.url, audience=AUDIENCE, tenants=("acme",))
    assert set(await fetch_keys(config, 5.0)) == {("first", "ES256")}
    issuer.document = lambda path: {"issuer": "https://other.example", "jwks_uri": f"{issuer.url}/keys"}  # type: ignore[method-assign]
    with pytest.raises(FetchFailed, match="another issuer"):
        await fetch_keys(config, 5.0)
    issuer.document = lambda path: {"issuer": issuer.url, "jwks_uri": "http://10.0.0.1/keys"}  # type: ignore[method-assign]
    with pytest.raises(FetchFailed, match="https"):
        await fetch_keys(config, 5.0)
    issuer.document = lambda path: {"keys": ["x" * 2_000_000]}  # type: ignore[method-assign]
    with pytest.raises(FetchFailed, match="more than"):
        await fetch_keys(config, 5.0)
    assert "/keys" not in issuer.paths[-1]


async def _has(world: AdminWorld, token: str, status: int) -> bool:
    return await world.status(token) == status
