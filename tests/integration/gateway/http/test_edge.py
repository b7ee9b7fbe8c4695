"""What browsers, proxies and generic HTTP clients expect of the edge."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import AsyncIterator

import pytest

from stratos_gateway.settings import GatewaySettings
from tests.support.worlds.gateway_world import World, gateway_world

URL = "/v1/completions"
BODY = {"model": "base", "prompt": "x"}
PAGE = "https://app.example.com"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


async def test_methods_are_named(world: World) -> None:
    wrong = await world.http.delete(URL)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST, OPTIONS")
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    asked = await world.http.options("/v1/models")
    assert (asked.status_code, asked.content) == (204, b"")
    assert set(asked.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
    assert asked.headers["x-request-id"]
    assert (await world.http.options("/nothing")).status_code == 404


@pytest.mark.parametrize("header", ["", "Bearer sk-no", "Basic dTpw"])
async def test_who_is_not_known_is_told_how_to_authenticate(world: World, header: str) -> None:
    for answer in (
        await world.http.post(URL, json=BODY, headers={"authorization": header}),
        await world.http.get("/v1/models", headers={"authorization": header}),
    ):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="StratosServe"')


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x" * 500])
async def test_compressed_bodies_are_refused_by_name(world: World, encoding: str) -> None:
    packed = gzip.compress(json.dumps(BODY).encode())
    headers = {"content-type": "application/json", "content-encoding": encoding}
    answer = await world.http.post(URL, content=packed, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (415, "unsupported_content_encoding")
    assert encoding[:40] in error["message"]
    assert len(error["message"]) < 200
    assert answer.headers["accept-encoding"] == "identity"
    assert world.worker.submits == []
    plain = await world.http.post(URL, json=BODY, headers={"content-encoding": "Identity"})
    assert plain.status_code == 200


async def test_without_a_setting_no_page_may_call(world: World) -> None:
    preflight = {"origin": PAGE, "access-control-request-method": "POST"}
    for answer in (
        await world.http.options(URL, headers=preflight),
        await world.http.get("/v1/models", headers=preflight),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_pages_of_allowed_origins_may_call_and_read_errors_and_streams() -> None:
    async with gateway_world(edge={"cors_origins": [PAGE]}) as world:
        preflight = {
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        asked = await world.http.options(URL, headers=preflight)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "authorization" in asked.headers["access-control-allow-headers"]
        assert asked.headers["x-request-id"]
        for method in ("GET", "DELETE"):  # files and kept responses are deleted
            asked = await world.http.options(URL, headers={**preflight, "access-control-request-method": method})
            assert asked.status_code == 200
        origin = {"origin": PAGE}
        for answer, status in (
            (await world.http.post(URL, json=BODY, headers=origin), 200),
            (await world.http.post(URL, json={**BODY, "stream": True}, headers=origin), 200),
            (await world.http.post(URL, json={}, headers=origin), 400),
            (await world.http.get("/nothing", headers=origin), 404),
            (await world.http.delete(URL, headers=origin), 405),
        ):
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        other = await world.http.options(URL, headers={**preflight, "origin": "https://evil.example.com"})
        assert (other.status_code, other.json()["error"]["code"]) == (403, "permission_denied")
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("trusted", "forwarded", "seen"),
    [
        ((), "203.0.113.9", "127.0.0.1"),
        (("10.0.0.0/8",), "203.0.113.9", "127.0.0.1"),
        (("127.0.0.1",), "203.0.113.9", "203.0.113.9"),
        (("127.0.0.1", "10.0.0.0/8"), "198.51.100.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        (("127.0.0.1",), "", "127.0.0.1"),
    ],
)
async def test_the_client_is_whom_the_last_trusted_proxy_saw(caplog, trusted, forwarded, seen) -> None:
    caplog.set_level(logging.INFO, "stratos.access")
    async with gateway_world(edge={"trusted_proxies": trusted}) as world:
        headers = {"x-forwarded-for": forwarded, "x-request-id": "mine"} if forwarded else {"x-request-id": "mine"}
        assert (await world.http.get("/v1/models", headers=headers)).status_code == 200
    lines = [record.__dict__ for record in caplog.records if record.name == "stratos.access"]
    assert [(line["request_id"], line["client"]) for line in lines] == [("mine", seen)]


@pytest.mark.parametrize(
    "edge",
    [{"trusted_proxies": ["proxy"]}, {"trusted_proxies": ["10.0.0.1/8"]}, {"cors_origins": ["app.example.com"]},
     {"cors_origins": ["https://app.example.com/"]}],
)  # fmt: skip
def test_what_is_no_network_or_no_origin_is_refused_at_the_start(edge) -> None:
    with pytest.raises(ValueError, match="edge"):
        GatewaySettings(
            router_addresses=("r:1",), redis_url="redis://x", key_pepper="p" * 20, model={"path": "/x"}, edge=edge
        )
