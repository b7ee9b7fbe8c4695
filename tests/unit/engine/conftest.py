"""Engines over the fake runner, once with each lag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stratos.common.clock import Clock
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig


@pytest.fixture(params=[0, 1], ids=["lag0", "lag1"])
def lag(request: pytest.FixtureRequest) -> int:
    """Steps in flight between two calls."""
    return int(request.param)


@pytest.fixture
def make_engine(lag: int) -> Callable[..., EngineCore]:
    """Makes engines of one lag; with lag 1 the fake runner executes a plan as late as the contract allows."""

    def make(config: SchedulerConfig | None = None, clock: Clock | None = None, **fake: Any) -> EngineCore:
        return EngineCore(FakeRunner(FakeConfig(**{"lag": lag, **fake})), config or SchedulerConfig(), clock)

    return make
