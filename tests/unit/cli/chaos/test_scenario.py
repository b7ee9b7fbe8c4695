"""The row of a scenario holds what went wrong, also where the platform does not come back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.cli.chaos import scenario
from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.scenario import ChaosTarget, run_scenario
from stratos.cli.chaos.streams import StreamResult
from stratos.common.errors import DependencyDown, NotFound


class FakeRun:
    """Streams that are all right."""

    error: Exception | None = None

    def __init__(self, *_: object, are_recorded: bool) -> None:
        self.name, self.results = "run", {"0": StreamResult("0")}

    def num_open(self) -> int:
        return 1

    async def run(self, disturb: Any) -> None:
        await disturb(asyncio.Event())
        if self.error is not None:
            raise self.error


class FakeTarget:
    """A platform that stays away."""

    facts, models = SimpleNamespace(base_url=""), ()

    async def new_key(self) -> str:
        return "key"

    async def pid_of(self, name: str) -> int:
        raise FileNotFoundError(name)

    async def wait_whole(self) -> None:
        raise DependencyDown("not every process has come back")

    async def is_busy(self, names: Any) -> bool:
        return names != {"prefill-0"}

    def moved(self, name: str) -> set[str]:
        return set()


@pytest.mark.parametrize("error", [None, TimeoutError()])
async def test_whatever_fails_is_a_problem_of_the_row(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    monkeypatch.setattr(FakeRun, "error", error)
    target: Any = FakeTarget()
    row = await run_scenario(target, [Fault("stop", "router-0")], {"0": StreamResult("0")})
    assert not row.passed
    assert not row.had_effect
    problems = " ".join(row.problems)
    assert "FileNotFoundError" in problems
    assert "not every process has come back" in problems
    assert ("not every stream began" in problems) == (error is not None)


@pytest.mark.parametrize(
    ("victim", "is_felt"), [("prefill-0", False), ("prefill-1", True), ("redis", True), ("gateway-0", True)]
)
async def test_a_fault_of_an_idle_worker_is_not_felt(
    monkeypatch: pytest.MonkeyPatch, victim: str, is_felt: bool
) -> None:
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    target: Any = FakeTarget()
    row = await run_scenario(target, [Fault("stop", victim)], {"0": StreamResult("0")})
    assert row.is_felt is is_felt


async def test_a_gateway_that_is_lost_without_a_client_that_came_back_is_not_felt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    target: Any = FakeTarget()
    row = await run_scenario(target, [Fault("kill", "gateway-0")], {"0": StreamResult("0")})
    assert not row.is_felt


async def test_tenants_are_deleted_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    async def remove(_: object, *, tenant: str) -> None:
        gone.append(tenant)
        if tenant == "a":
            raise NotFound("no such tenant")

    monkeypatch.setattr(scenario, "remove_tenant", remove)
    facts: Any = None
    target = ChaosTarget(facts, Path())
    target.tenants += ["a", "b"]
    await target.remove_tenants()
    assert gone == ["b", "a"]
    assert not target.tenants
