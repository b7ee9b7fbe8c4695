"""Engines over the fake runner, without and with overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stratos.common.clock import Clock
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig


@pytest.fixture(params=[False, True], ids=["no-overlap", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """A step is in flight between two calls."""
    return bool(request.param)


@pytest.fixture
def make_engine(overlap: bool) -> Callable[..., EngineCore]:
    """Makes engines; with overlap the fake runner executes a plan as late as the contract allows."""

    def make(config: SchedulerConfig | None = None, clock: Clock | None = None, **fake: Any) -> EngineCore:
        return EngineCore(FakeRunner(FakeConfig(**{"overlap": overlap, **fake})), config or SchedulerConfig(), clock)

    return make
