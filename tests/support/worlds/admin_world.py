"""A gateway with its admin port over a real Redis, in front of a decode worker that obeys the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from stratos.core.tenancy.plan import STANDARD
from stratos.core.tenancy.roles import Role
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.serving.process import serve_async
from stratos.store.keys import KeyTerms
from stratos.store.redis import open_redis
from stratos_gateway.backends import open_backends
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.parts import Backends
from stratos_gateway.service import GatewayService
from stratos_gateway.settings import GatewaySettings
from tests.support.fakes.router import FakeRouter
from tests.support.paths import BASE_MODEL
from tests.support.servers.plain_http import plain_client
from tests.support.servers.record_stores import PEPPERS, MarkedStore, marked_store
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.gateway_world import FakeDecodeWorker

PATIENCE_S = 60
"""With a worker's first answer, in place of the product's 2 s: where gateways, their clients and workers share one
event loop, a busy machine keeps them from an answer for longer, and they would take it for lost."""


@dataclass
class AdminWorld:
    """Callers of one gateway: "admin" of the platform, "owner" and "user" of acme, "stranger" who owns other."""

    service: GatewayService
    http: httpx.AsyncClient
    """Of the admin port."""
    public: httpx.AsyncClient
    keys: dict[str, str]
    worker: FakeDecodeWorker
    router: FakeRouter

    async def call(
        self, method: str, path: str, body: Any = None, *, by: str = "admin", **query: str
    ) -> httpx.Response:
        """One call of the admin API."""
        headers = {"authorization": f"Bearer {self.keys[by]}"}
        return await self.http.request(method, f"/admin/v1{path}", json=body, headers=headers, params=query or None)

    async def status(self, key: str) -> int:
        """What a client with this key gets for its models."""
        return (await self.public.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code

    async def refused_with(self, key: str, status: int) -> None:
        """Wait until a client with this key gets a status."""
        await eventually(lambda: self._has(key, status), f"{status}")

    async def _has(self, key: str, status: int) -> bool:
        return await self.status(key) == status


async def four_keys(store: MarkedStore, plan: str) -> dict[str, str]:
    """A key for each caller."""
    return {
        "admin": await store.keys.create_key("platform", "root", terms=KeyTerms(role=Role.ADMIN)),
        "owner": await store.keys.create_key("acme", "owner", first_plan=plan, terms=KeyTerms(role=Role.TENANT_ADMIN)),
        "user": await store.keys.create_key("acme", "user"),
        "stranger": await store.keys.create_key(
            "other", "owner", first_plan=plan, terms=KeyTerms(role=Role.TENANT_ADMIN)
        ),
    }


@asynccontextmanager
async def admin_world(
    redis_url: str, folder: Path, plan: str = STANDARD.name, **overrides: Any
) -> AsyncIterator[AdminWorld]:
    """Start all of it, with tenants of a plan; fields of ``GatewaySettings`` may be overridden."""
    async with open_redis(redis_url) as redis:
        keys = await four_keys(await marked_store(redis, folder / "objects"), plan)
    worker = FakeDecodeWorker("decode-0")
    await worker.server.start()
    router = FakeRouter([worker])

    async def backends(
        settings: GatewaySettings, models: ModelSet, stack: AsyncExitStack, metrics: GatewayMetrics, dialer: Dialer
    ) -> Backends:
        opened = await open_backends(settings, models, stack, metrics, dialer)
        assert opened.admin is not None
        assert opened.admin.models is not None
        opened.admin.models.known_workers = router.known_workers
        return replace(opened, routers=router)

    values: dict[str, Any] = {
        "http_listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0", "forget_after_s": 0.5},
        "router_addresses": ("127.0.0.1:9",),
        "redis_url": redis_url,
        "key_pepper": PEPPERS.current,
        "sessions": {"connect_timeout_s": PATIENCE_S},
        "snapshot": {"poll_s": 0.02},
        "drain_timeout_s": 1.0,
        "model": {"path": BASE_MODEL},
        **overrides,
    }
    service, stop = GatewayService(GatewaySettings(**values), backends), asyncio.Event()
    run = asyncio.create_task(serve_async(service, GatewaySettings(**values), stop=stop))
    await eventually(lambda: service.address or run.done(), "the gateway listens")
    await eventually(lambda: not service.not_ready_reason(), "tenants and keys are loaded")
    try:
        async with (
            plain_client(f"http://{service.admin_address}", timeout=LIMIT_S) as http,
            plain_client(f"http://{service.http_address}", timeout=LIMIT_S) as public,
        ):
            yield AdminWorld(service, http, public, keys, worker, router)
    finally:
        stop.set()
        assert await run == 0
        await worker.die()
