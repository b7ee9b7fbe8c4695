"""What workers of both roles cache of a deleted tenant goes, through a real router process; neighbours keep theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.placement import WorkerRole
from stratos.rpc.clients.router import RouterClient
from tests.support.worlds.router_world import router_process, until_live
from tests.support.worlds.worker_world import Gateway, Worker, open_world

PROMPT = list(range(100, 180))


async def ask(gateway: Gateway, tenant: str, name: str, prefill: Worker) -> int:
    """Run the prompt for a tenant; returns how many of its tokens the decode worker had cached."""
    stream: Any = await gateway.submit(
        PROMPT, request_id=name, tenant=tenant, cache_salt=tenant.encode(), prefill=(prefill,)
    )
    return int((await stream.over()).receipt.num_cached_tokens)


async def cached(worker: Worker, tenant: str) -> int:
    engine = worker.process.opened.context.engine
    return await engine.match(tuple(PROMPT), "", tenant.encode())


async def test_all_workers_drop_a_tenant_and_one_that_is_away_is_told_of(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        decode, prefill = await world.start(WorkerRole.DECODE), await world.start(WorkerRole.PREFILL)
        places = [worker.process.address for worker in (decode, prefill)]
        static = f"static://decode@{places[0]},prefill@{places[1]}"
        async with router_process(tmp_path, static) as client:
            await until_live(client, *places)
            gateway = await world.gateway(decode)
            first = [await ask(gateway, tenant, f"{tenant}-1", prefill) for tenant in ("acme", "other")]
            assert first == [0, 0]
            assert await ask(gateway, "acme", "acme-2", prefill) > 0, "control: a probe with the same salt hits"
            before = [(await cached(w, "acme"), await cached(w, "other")) for w in (decode, prefill)]
            assert all(min(pair) > 0 for pair in before)
            free = decode.process.status().engine.blocks.free
            assert await client.forget_tenant("acme")
            after = [(await cached(w, "acme"), await cached(w, "other")) for w in (decode, prefill)]
            assert after == [(0, other) for _, other in before]
            assert decode.process.opened.context.engine.status().blocks.free > free
            assert await ask(gateway, "acme", "acme-3", prefill) == 0
            assert await ask(gateway, "other", "other-2", prefill) > 0
            await refused_and_told_of(client, prefill)


async def refused_and_told_of(client: RouterClient, gone: Worker) -> None:
    with pytest.raises(BadRequest):
        await client.forget_tenant("")
    gone.stop.set()
    await gone.exit_code
    assert not await client.forget_tenant("acme"), "the caller asks again"
