"""What waits in batches, told to whoever scales by it, and no longer once nobody knows."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.store.sealed.batch_store import BatchBacklog
from stratos_gateway.batches.runs import BatchRuns
from stratos_gateway.batches.settings import BatchesConfig
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.observe.recent_load import BACKLOG_KEPT_S


class Store:
    is_away = False

    async def backlog(self) -> BatchBacklog:
        if self.is_away:
            raise DependencyDown
        return BatchBacklog(num_lines=70, num_due=7, left_s=100.0)

    async def open_batches(self, most: int) -> list[tuple[str, str]]:
        return []


async def test_the_backlog_is_told_while_it_is_known() -> None:
    clock, store, registry, told = FakeClock(), Store(), CollectorRegistry(), list[tuple[int, int]]()
    nothing: Any = None
    runs = BatchRuns(
        cast("Any", store), nothing, nothing, BatchesConfig(), 60.0, clock, GatewayMetrics(registry),
        lambda num_lines, num_due: told.append((num_lines, num_due)),
    )  # fmt: skip

    def shown() -> float:
        return registry.get_sample_value("stratos_batch_lines_due") or 0.0

    await runs.turn()
    assert (told, shown()) == ([(70, 7)], 7.0)
    store.is_away = True
    for after_s, is_known in ((BACKLOG_KEPT_S / 2, True), (BACKLOG_KEPT_S, False)):
        clock.advance(after_s)
        with pytest.raises(DependencyDown):
            await runs.turn()
        assert math.isnan(shown()) != is_known
    assert told == [(70, 7)]
    store.is_away = False
    clock.advance(BACKLOG_KEPT_S)
    await runs.turn()
    assert (told, shown()) == ([(70, 7)] * 2, 7.0)
