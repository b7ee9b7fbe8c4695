"""Gateways over a real Redis: when they are ready, and what a new one serves while Redis is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.stores import StoreTarget, run_adopt
from stratos.rpc.clients.gateway import exchange_gateways
from stratos.rpc.serving.process import serve_async
from stratos.store.records.adoption import init_store
from stratos.store.records.record_store import RecordStore
from stratos.store.redis import open_redis
from stratos_gateway.backends import open_backends
from stratos_gateway.service import GatewayService
from stratos_gateway.settings import GatewaySettings
from stratos_lora_registry.service import LoraRegistryService
from stratos_lora_registry.settings import LoraRegistrySettings
from tests.support.paths import BASE_MODEL
from tests.support.servers.plain_http import plain_client
from tests.support.servers.record_stores import PEPPERS, key_store, manifests_in
from tests.support.servers.redis_server import RedisServer, redis_cluster
from tests.support.waiting import eventually


def gateway_settings(redis_url: str, **snapshot: Any) -> GatewaySettings:
    return GatewaySettings(
        http_listen="127.0.0.1:0", model={"path": BASE_MODEL}, router_addresses=("127.0.0.1:9",), redis_url=redis_url,
        key_pepper=PEPPERS.current, snapshot={"poll_s": 0.02, **snapshot}, drain_timeout_s=1.0,
    )  # fmt: skip


@asynccontextmanager
async def gateway(redis_url: str, **snapshot: Any) -> AsyncIterator[GatewayService]:
    """A whole gateway; no router answers, which models and keys do not need."""
    settings = gateway_settings(redis_url, **snapshot)
    service, stop = GatewayService(settings, open_backends), asyncio.Event()
    run = asyncio.create_task(serve_async(service, settings, stop=stop))
    try:
        await eventually(lambda: service.address or run.done(), "the gateway listens")
        yield service
    finally:
        stop.set()
        assert await run == 0


async def answer(service: GatewayService, path: str, key: str = "none") -> int:
    async with plain_client(f"http://{service.http_address}") as client:
        return (await client.get(path, headers={"authorization": f"Bearer {key}"})).status_code


async def is_ready(service: GatewayService) -> bool:
    return await answer(service, "/readyz") == 200


async def make_key(redis_url: str, folder: Path) -> str:
    async with open_redis(redis_url) as redis:
        records = RecordStore(redis)
        await init_store(records, manifests_in(folder))
        return await key_store(records).create_key("acme", "k")


async def test_a_gateway_is_ready_once_it_has_everything(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url) as service:
        assert await answer(service, "/readyz") == 503  # a store that was never set up has nothing to serve
        assert service.metrics.get_sample_value("stratos_snapshot_state", {"state": "empty"}) == 1
        key = await make_key(redis_url, tmp_path)
        await eventually(lambda: is_ready(service), "the gateway is ready")
        assert await answer(service, "/v1/models", key) == 200
        assert service.metrics.get_sample_value("stratos_snapshot_state", {"state": "following"}) == 1
        assert (service.metrics.get_sample_value("stratos_snapshot_age_seconds") or 0.0) < 10


async def test_a_new_gateway_takes_a_copy_from_another_while_redis_is_away(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    key = await make_key(redis_server.url, tmp_path)
    async with open_redis(redis_server.url) as redis:
        await redis.config_set("maxmemory", "64mb")
    async with gateway(redis_server.url) as first:
        await eventually(lambda: is_ready(first), "the first one is ready")
        await eventually(
            lambda: first.metrics.get_sample_value("stratos_redis_memory_ratio"), "Redis is looked at without traffic"
        )
        redis_server.kill()
        async with (
            gateway(redis_server.url) as alone,
            gateway(redis_server.url, peers=("127.0.0.1:9", first.address)) as second,
        ):
            await eventually(lambda: is_ready(second), "the second one is ready")
            assert await answer(second, "/v1/models", key) == 200
            assert (await answer(alone, "/readyz"), await answer(alone, "/v1/models", key)) == (503, 503)
            redis_server.start()
            await eventually(lambda: is_ready(alone), "the lonely one has loaded everything")
            assert await answer(alone, "/v1/models", key) == 200


async def test_a_new_gateway_learns_who_shares_the_limits_while_redis_is_away_and_is_counted(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    await make_key(redis_server.url, tmp_path)
    async with gateway(redis_server.url) as first:
        await eventually(lambda: is_ready(first), "the first one is ready")
        [name] = await exchange_gateways(first.address, [])
        redis_server.kill()
        async with gateway(redis_server.url, peers=("127.0.0.1:9", first.address)) as second:

            async def knows_both(address: str) -> bool:
                names = await exchange_gateways(address, [])
                return name in names and len(names) == 2

            await eventually(lambda: knows_both(second.address), "the second one has learned of the first one")
            await eventually(lambda: knows_both(first.address), "the first one counts the second one")


async def test_an_emptied_redis_is_filled_from_a_gateway_that_runs(redis_url: str, tmp_path: Path) -> None:
    key = await make_key(redis_url, tmp_path)
    target = StoreTarget(redis_url=redis_url, object_store_url=f"file://{tmp_path}")
    async with gateway(redis_url) as first:
        await eventually(lambda: is_ready(first), "it is ready")
        async with open_redis(redis_url) as redis:
            await redis.flushall()
        await run_adopt(target, (), (first.address,), replaces=False)
        async with gateway(redis_url) as second:
            await eventually(lambda: is_ready(second), "the second one is ready")
            assert await answer(second, "/v1/models", key) == 200


@pytest.mark.parametrize("peers", [("gateways",), ("host:port",)])
def test_peers_without_a_port_are_refused(peers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="host:port"):
        GatewaySettings(
            model={"path": BASE_MODEL}, router_addresses=("127.0.0.1:9",), redis_url="redis://unused", key_pepper="x",
            snapshot={"peers": peers},
        )  # fmt: skip


async def test_a_gateway_on_redis_cluster_does_not_start(tmp_path: Path, caplog) -> None:
    with redis_cluster(tmp_path) as url:
        settings = gateway_settings(url)
        assert await serve_async(GatewayService(settings, open_backends), settings) == 1
    assert "Redis Cluster is not supported" in caplog.text


async def test_a_registry_on_redis_cluster_does_not_start(tmp_path: Path, caplog) -> None:
    with redis_cluster(tmp_path) as url:
        settings = LoraRegistrySettings(redis_url=url, object_store={"url": f"file://{tmp_path}"})
        assert await serve_async(LoraRegistryService(settings), settings) == 1
    assert "Redis Cluster is not supported" in caplog.text
