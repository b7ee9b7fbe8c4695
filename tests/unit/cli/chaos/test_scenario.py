"""The row of a scenario holds what went wrong, also where the platform does not come back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from stratos.cli.chaos import local_target, scenario
from stratos.cli.chaos.faults.contract import BROKEN
from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.local_target import ChaosTarget
from stratos.cli.chaos.scenario import run_scenario
from stratos.cli.chaos.streams import StreamResult
from stratos.common.errors import DependencyDown, NotFound


class FakeRun:
    """Streams that are all right."""

    error: Exception | None = None
    fields: Mapping[str, int] = MappingProxyType({})

    def __init__(self, *_: object, **__: object) -> None:
        self.name, self.results = "run", {"0": StreamResult("0-greedy-base", **self.fields)}

    def num_open(self) -> int:
        return 1

    async def run(self, disturb: Any) -> None:
        await disturb(asyncio.Event())
        if self.error is not None:
            raise self.error


class FakeTarget:
    """A platform that stays away."""

    base_url, models, without, num_tokens = "", (), (), 1

    def __init__(self, *, moved: int = 0) -> None:
        self.num_moved = moved

    async def new_key(self) -> str:
        return "key"

    async def pid_of(self, name: str) -> int:
        raise FileNotFoundError(name)

    async def wait_whole(self) -> None:
        raise DependencyDown("not every process has come back")

    async def strike(self, fault: Fault, in_effect: asyncio.Event) -> Any:
        target: Any = self
        return await fault.strike(target, in_effect)

    async def is_busy(self, names: Any) -> bool:
        return bool(names - {"prefill-0", "decode-0"})

    async def moved(self, name: str) -> set[str]:
        return {f"{name}-{index}" for index in range(self.num_moved)}


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
    ("victim", "is_felt"), [("prefill-0", False), ("prefill-1", True), ("redis", True), ("gateway-0", False)]
)
async def test_a_fault_of_an_idle_worker_is_not_felt(
    monkeypatch: pytest.MonkeyPatch, victim: str, is_felt: bool
) -> None:
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    target: Any = FakeTarget()
    row = await run_scenario(target, [Fault("stop", victim)], {"0": StreamResult("0")})
    assert row.is_felt is is_felt


@pytest.mark.parametrize("num_broken", [0, 2])
async def test_a_source_whose_hand_offs_broke_felt_its_fault(monkeypatch: pytest.MonkeyPatch, num_broken: int) -> None:
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    target: Any = FakeTarget()

    async def strike(*_: object) -> dict[str, int]:
        return {BROKEN: num_broken}

    monkeypatch.setattr(target, "strike", strike)
    row = await run_scenario(target, [Fault("kill", "prefill-0")], {"0": StreamResult("0")})
    assert row.is_felt is (num_broken > 0)


@pytest.mark.parametrize("second", ["", "kill prefill-1"])
@pytest.mark.parametrize("num_moved", [0, 3])
async def test_a_worker_that_streams_moved_away_from_felt_its_fault(
    monkeypatch: pytest.MonkeyPatch, num_moved: int, second: str
) -> None:
    """It may have had nothing to do when routers were asked, just before; where nothing moved, that is no problem."""
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    target: Any = FakeTarget(moved=num_moved)
    faults = [Fault("drain", "decode-0"), *([Fault.parse(second)] if second else [])]
    row = await run_scenario(target, faults, {"0": StreamResult("0")})
    assert row.is_felt is (num_moved > 0)
    assert not any("had to move" in problem for problem in row.problems)


@pytest.mark.parametrize(
    ("faults", "counts", "is_felt", "is_problem"),
    [
        ("kill gateway-0", {}, False, False),
        ("kill gateway-0", {"num_returns": 2}, False, False),
        ("kill gateway-0", {"num_returns": 2, "num_resumed": 1}, True, False),
        ("stop gateway-0", {"num_returns": 1, "num_begun_anew": 1}, False, True),
        ("partition gateway-0", {"num_returns": 1}, False, False),
        ("cut-redis gateway-0", {}, True, False),
        ("drain gateway-0", {}, True, False),
        ("kill gateway-0 and kill redis", {"num_returns": 1, "num_begun_anew": 1}, False, False),
    ],
)
async def test_a_gateway_is_lost_for_nothing_only_where_clients_get_the_rest_of_their_records(
    monkeypatch: pytest.MonkeyPatch, faults: str, counts: dict[str, int], is_felt: bool, is_problem: bool
) -> None:
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    monkeypatch.setattr(FakeRun, "fields", counts)
    target: Any = FakeTarget()
    row = await run_scenario(target, [Fault.parse(one) for one in faults.split(" and ")], {"0": StreamResult("0")})
    assert row.is_felt is is_felt
    assert any("billed again" in problem for problem in row.problems) is is_problem


async def test_tenants_are_deleted_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    async def remove(_: object, *, tenant: str) -> None:
        gone.append(tenant)
        if tenant == "a":
            raise NotFound("no such tenant")

    monkeypatch.setattr(local_target, "remove_tenant", remove)
    facts: Any = None
    target = ChaosTarget(facts, Path())
    target.tenants += ["a", "b"]
    await target.remove_tenants()
    assert gone == ["b", "a"]
    assert not target.tenants
