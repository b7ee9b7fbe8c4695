"""Which tenant's batch a gateway takes a slice of."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.store.sealed.batch_store import BatchBacklog
from stratos_gateway.batches.runs import BatchRuns
from stratos_gateway.batches.settings import BatchesConfig
from stratos_gateway.metrics import GatewayMetrics


class Store:
    """Batches without an end, in the order of the last look at each; those of "busy" are all at other gateways."""

    def __init__(self, **num_batches: int) -> None:
        names = [(tenant, f"{tenant}-{place}") for tenant, num in num_batches.items() for place in range(num)]
        self.looks = dict.fromkeys(names, 0)
        self.claimed: Counter[str] = Counter()

    async def backlog(self) -> BatchBacklog:
        return BatchBacklog()

    async def open_batches(self, most: int) -> list[tuple[str, str]]:
        return sorted(self.looks, key=lambda name: self.looks[name])[:most]

    async def claim(self, tenant_id: str, batch_id: str, lease_s: float) -> tuple[int, int] | None:
        self.looks[tenant_id, batch_id] = max(self.looks.values()) + 1
        if tenant_id == "busy":
            return None
        self.claimed[tenant_id] += 1
        return 0, 1

    async def find(self, tenant_id: str, batch_id: str) -> None:
        """The input is gone: a slice ends at once."""

    async def finish(self, *told: Any, **problem: Any) -> bool:
        return True


async def claims(store: Store, num_turns: int) -> Counter[str]:
    nothing: Any = None
    metrics = GatewayMetrics(CollectorRegistry())
    runs = BatchRuns(cast("Any", store), nothing, nothing, BatchesConfig(), 60.0, FakeClock(), metrics)
    for _ in range(num_turns):
        await runs.turn()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
    return store.claimed


async def test_a_tenant_with_many_batches_takes_no_turn_of_another_one() -> None:
    found = await claims(Store(many=300, few=3, one=1), 30)
    assert sum(found.values()) == 60
    assert set(found.values()) == {20}


async def test_batches_that_others_compute_hold_up_no_tenant() -> None:
    found = await claims(Store(busy=300, one=1), 5)
    assert found["one"] == 10


class SlowStore(Store):
    """Slices end one by one, when they are told to."""

    def __init__(self, **num_batches: int) -> None:
        super().__init__(**num_batches)
        self.ends = asyncio.Semaphore(0)

    async def find(self, tenant_id: str, batch_id: str) -> None:
        await self.ends.acquire()

    async def renew(self, *told: Any) -> str:
        return "fenced"


async def test_looks_without_room_forget_no_turn() -> None:
    store, nothing = SlowStore(many=300, one=1), cast("Any", None)
    metrics = GatewayMetrics(CollectorRegistry())
    runs = BatchRuns(cast("Any", store), nothing, nothing, BatchesConfig(), 60.0, FakeClock(), metrics)
    for _ in range(20):
        await runs.turn()  # takes what is free
        await runs.turn()  # there is no room any more
        store.ends.release()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    await runs.leave()
    assert abs(store.claimed["many"] - store.claimed["one"]) <= 1
