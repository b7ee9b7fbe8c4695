"""The wait of a start for routers that call all workers live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stratos.cli.local.process import wait_for_fleet
from stratos.common.errors import DependencyDown, WorkerLost


async def test_a_start_waits_through_calls_that_fail() -> None:
    answers: list[Any] = [WorkerLost("the router did not answer"), 1, WorkerLost("the router did not answer"), 2]

    async def ask() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(workers=[SimpleNamespace(is_well=True)] * answer)

    await wait_for_fleet(ask, 2, 60.0)
    assert answers == []


async def test_a_start_that_waited_in_vain_says_the_last_reason() -> None:
    async def ask() -> Any:
        raise WorkerLost("the router did not answer")

    with pytest.raises(DependencyDown, match=r"within 0\.01 s: the router did not answer"):
        await wait_for_fleet(ask, 1, 0.01)
