"""Engines over the fake runner, once with each lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratos.common.clock import Clock
from stratos.engine.core import EngineCore
from stratos.engine.engine import StepResult
from stratos.engine.fake import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.engine.step_loop import StepLoop


@pytest.fixture(params=[0, 1], ids=["lag0", "lag1"])
def lag(request: pytest.FixtureRequest) -> int:
    """Steps in flight between two calls."""
    return int(request.param)


ONE_LAG = {
    "test_step_lag.py": "is about lag 1, or compares both",
    "test_kv_memory_bench.py": "measures a published benchmark, which has no runner to wait for",
    "test_a_hand_off_starts_from_what_the_host_holds": "with lag 1 a hand-off does not wait for host memory",
}
"""Test files and tests that step an engine with one lag, and why."""


@pytest.fixture(autouse=True)
def _runs_with_either_lag(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse a test that steps an engine and does not run once with each lag."""
    steps, step = [], StepLoop.step

    def counted(self: StepLoop) -> StepResult:
        steps.append(self)
        return step(self)

    monkeypatch.setattr(StepLoop, "step", counted)
    yield
    node = request.node
    name, is_machine = node.name.partition("[")[0], "Machine" in node.nodeid or node.name == "runTest"
    has_lag = "lag" in getattr(getattr(node, "callspec", None), "params", {})
    is_exempt = name in ONE_LAG or node.path.name in ONE_LAG or is_machine
    assert has_lag or is_exempt or not steps, f"{name} steps engines: it must run with lag 0 and 1"


@pytest.fixture
def make_engine(lag: int) -> Callable[..., EngineCore]:
    """Makes engines of one lag; with lag 1 the fake runner executes a plan as late as the contract allows."""

    def make(config: SchedulerConfig | None = None, clock: Clock | None = None, **fake: Any) -> EngineCore:
        return EngineCore(FakeRunner(FakeConfig(**{"lag": lag, **fake})), config or SchedulerConfig(), clock)

    return make
