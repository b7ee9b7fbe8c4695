"""The row of a scenario holds what went wrong, also where the platform does not come back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.cli.chaos import scenario
from stratos.cli.chaos.faults import Fault
from stratos.cli.chaos.scenario import run_scenario
from stratos.cli.chaos.streams import StreamResult
from stratos.common.errors import DependencyDown


class FakeRun:
    """Streams that are all right."""

    error: Exception | None = None

    def __init__(self, *_: object) -> None:
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

    def moved(self, name: str) -> set[str]:
        return set()


@pytest.mark.parametrize("error", [None, TimeoutError()])
async def test_whatever_fails_is_a_problem_of_the_row(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    monkeypatch.setattr(scenario, "StreamRun", FakeRun)
    monkeypatch.setattr(FakeRun, "error", error)
    target: Any = FakeTarget()
    row = await run_scenario(target, [Fault("stop", "router-0")], {"0": StreamResult("0")})
    assert not row.passed
    problems = " ".join(row.problems)
    assert "FileNotFoundError" in problems
    assert "not every process has come back" in problems
    assert ("not every stream began" in problems) == (error is not None)
