"""What a plan and a key let a request do, over HTTP: caps, ACLs, blocks, networks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import httpx
import pytest

from stratos.common.errors import DependencyDown
from stratos.core.tenancy.plan import CachePolicy
from tests.support.servers.plain_http import plain_client
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY
from tests.support.worlds.gateway_world import World, gateway_world, make_adapter

LONG = {"model": {"max_stream_len": 8192, "max_input_tokens": 8192}, "edge": {"trusted_proxies": ("127.0.0.1",)}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world(**LONG) as found:
        yield found


async def complete(
    world: World, *, key: str = KEY, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 2, **body}
    return await world.http.post(
        "/v1/completions", json=body, headers={"authorization": f"Bearer {key}", **(headers or {})}
    )


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


@pytest.mark.parametrize(("num_tokens", "status"), [(4095, 200), (4096, 200), (4097, 400)])
async def test_a_prompt_has_at_most_4096_tokens_unless_the_plan_says_otherwise(
    world: World, num_tokens: int, status: int
) -> None:
    answer = await complete(world, prompt=[5] * num_tokens)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert error_of(answer) == (400, "context_length_exceeded", "prompt")
        assert not world.worker.submits
        world.keys.change_plan(KEY, max_prompt_tokens=8000)
        assert (await complete(world, prompt=[5] * num_tokens)).status_code == 200


async def test_n_and_max_tokens_are_capped(world: World) -> None:
    world.keys.change_plan(KEY, max_n=2, max_tokens=5)
    assert error_of(await complete(world, n=3)) == (400, "invalid_request", "n")
    assert error_of(await complete(world, max_tokens=6)) == (400, "invalid_request", "max_tokens")
    assert (await complete(world, n=2, max_tokens=5)).status_code == 200
    chat = {"model": "base", "messages": [{"role": "user", "content": "hi"}]}
    assert (await world.http.post("/v1/chat/completions", json=chat)).status_code == 200
    assert world.worker.submits[-1].sampling.max_tokens == 5  # of a request that names none
    assert (await complete(world, key=OTHER_KEY, n=3, max_tokens=6)).status_code == 200


async def answer_for(world: World, name: str) -> list[tuple[int, str, dict[str, str]]]:
    """Every way in which a client can ask for a name, with the name itself taken out of the answer."""
    own = {"date", "x-request-id", "content-length", "retry-after", "retry-after-ms"}
    requests = [
        await complete(world, model=name),
        await world.http.post(
            "/v1/chat/completions", json={"model": name, "messages": [{"role": "user", "content": "x"}]}
        ),
        await world.http.post("/v1/embeddings", json={"model": name, "input": "x"}),
        await world.http.get(f"/v1/models/{name}"),
    ]
    return [
        (
            answer.status_code,
            answer.text.replace(name, "NAME"),
            {k: v for k, v in answer.headers.items() if k not in own},
        )
        for answer in requests
    ]


@pytest.mark.parametrize("outage", [False, True])
async def test_outside_the_acl_is_like_unknown_also_in_an_outage(world: World, outage: bool) -> None:
    world.registry.adapters = {"": [make_adapter("shown"), make_adapter("hidden")]}
    world.registry.error = DependencyDown("no") if outage else None
    world.keys.change_plan(KEY, models=("shown", "base"))
    tenant = world.keys.tenants[KEY]
    assert await answer_for(world, "hidden") == await answer_for(world, "unknown")
    assert {status for status, _, _ in await answer_for(world, "hidden")} == {503 if outage else 404}
    assert (await complete(world, model="shown")).status_code == 200
    world.keys.tenants[KEY] = replace(tenant, models=("shown",))
    assert await answer_for(world, "base") == await answer_for(world, "unknown")
    listed = (await world.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["shown"]
    assert (await complete(world, key=OTHER_KEY, model="hidden")).status_code == 200


async def test_what_is_blocked_is_refused_to_those_who_may_know_of_it(world: World) -> None:
    world.registry.adapters = {"": [make_adapter("common")], "one": [make_adapter("own", tenant="one")]}
    world.blocks.adapters = {("one", "own")}
    assert error_of(await complete(world, model="own")) == (403, "permission_denied", "model")
    assert (await complete(world, model="common")).status_code == 200
    assert [m["id"] for m in (await world.http.get("/v1/models")).json()["data"]] == ["base", "common"]
    world.blocks.models = {"base"}
    for name in ("base", "common"):
        assert error_of(await complete(world, model=name)) == (403, "permission_denied", "model")
    assert (await world.http.get("/v1/models")).json()["data"] == []
    world.keys.change_plan(KEY, models=("own",))
    assert error_of(await complete(world, model="base")) == (404, "model_not_found", "model")


async def test_a_key_works_from_its_networks_alone(world: World) -> None:
    tenant = world.keys.tenants[KEY]
    world.keys.tenants[KEY] = replace(tenant, networks=(ip_network("10.1.0.0/16"), ip_network("127.0.0.1")))
    assert (await complete(world)).status_code == 200
    said = {"10.1.2.3": 200, "10.2.0.1": 403, "9.9.9.9, 10.1.2.3": 200, "10.1.2.3, 9.9.9.9": 403, "nonsense": 403}
    for forwarded, status in said.items():  # of the trusted proxy on loopback
        assert (await complete(world, headers={"x-forwarded-for": forwarded})).status_code == status, forwarded
    assert (await world.http.get("/v1/models", headers={"x-forwarded-for": "9.9.9.9"})).status_code == 403


async def test_the_header_of_other_sdks_carries_a_key_too(world: World) -> None:
    async with plain_client(str(world.http.base_url)) as client:
        found = {
            name: (await client.get("/v1/models", headers=headers)).status_code
            for name, headers in {
                "x-api-key": {"x-api-key": KEY},
                "wrong": {"x-api-key": "sk-wrong"},
                "empty": {"x-api-key": ""},
                "both": {"x-api-key": KEY, "authorization": "Bearer sk-wrong"},
                "neither": {},
            }.items()
        }
    assert found == {"x-api-key": 200, "wrong": 401, "empty": 401, "both": 401, "neither": 401}


async def test_the_plans_class_and_share_reach_the_router(world: World) -> None:
    world.keys.change_plan(KEY, priority_class=3, weight=7, max_batch_ratio=0.5, kv_headroom_ratio=0.25)
    assert (await complete(world)).status_code == 200
    [request] = world.router.requests
    share = request.terms.share
    assert (request.terms.priority_class, share.weight, share.max_batch_ratio, share.kv_headroom_ratio) == (
        3,
        7,
        0.5,
        0.25,
    )
    assert world.worker.submits[0].terms.priority_class == 3


async def test_without_a_shared_cache_no_two_requests_have_one_salt(world: World) -> None:
    world.keys.change_plan(KEY, cache_policy=CachePolicy.OFF)
    for _ in range(2):
        assert (await complete(world)).status_code == 200
    assert len({submit.terms.cache_salt for submit in world.worker.submits}) == 2
