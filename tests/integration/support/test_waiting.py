"""Rounds that take luck end by themselves, and say what they wait for."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.local.supervisor import MAX_CRASHES
from tests.support.waiting import rounds, while_running
from tests.support.worlds import platform_process
from tests.support.worlds.platform_process import PlatformProcess


def test_rounds_end_before_their_test_does_and_say_what_did_not_come() -> None:
    seconds = itertools.count(0.0, 10.0)
    made = rounds("a stream that moved", 25.0, now=lambda: next(seconds))
    assert list(itertools.islice(made, 3)) == [0, 1, 2]
    with pytest.raises(AssertionError, match="not in 3 rounds within 25 s: a stream that moved"):
        next(made)


def test_a_round_that_takes_longer_than_all_of_them_may_is_still_made() -> None:
    assert next(rounds("anything", 0.0)) == 0


async def test_a_wait_for_tasks_ends_with_them() -> None:
    quick = asyncio.create_task(asyncio.sleep(0))
    assert not await while_running([quick], lambda: False, "what never comes")
    assert await while_running([quick], lambda: True, "what is there")


async def test_a_wait_for_tasks_fails_with_the_first_that_does() -> None:
    async def fail() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await while_running([asyncio.create_task(fail())], lambda: False, "what never comes")


class Scripted(PlatformProcess):
    """One whose processes are as a script says, look by look."""

    def __init__(self, *looks: dict[str, Any]) -> None:
        super().__init__(None, Path(), ["decode-0 crashed\n"], threading.Thread(), queue.Queue())
        self.looks = list(looks)

    def processes(self) -> dict[str, dict[str, Any]]:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return {"decode-0": {"name": "decode-0", **look}, "redis": {"name": "redis", "state": "stopped"}}


def test_a_process_that_stays_stopped_fails_the_test_at_once() -> None:
    platform = Scripted({"state": "stopped", "num_restarts": MAX_CRASHES})
    with pytest.raises(AssertionError, match="decode-0 crashed too often in a row and stays stopped"):
        platform.until_killable("decode-")
    with pytest.raises(AssertionError, match="decode-0 crashed too often"):
        platform.is_back({"name": "decode-0", "num_restarts": 0})


def test_a_process_is_killed_again_once_it_serves() -> None:
    platform = Scripted({"state": "starting", "num_restarts": 1}, {"state": "serving", "num_restarts": 1})
    platform.until_killable("decode-")
    assert len(platform.looks) == 1


def test_a_process_that_crashed_often_serves_until_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    often = {"state": "serving", "num_restarts": MAX_CRASHES}
    platform, times = Scripted(often), itertools.count(0.0, 25.0)
    monkeypatch.setattr(platform_process, "monotonic", lambda: next(times))
    platform.until_killable("decode-")
    assert next(times) == 100.0, "looks at 0, 25, 50 and 75 s"
    platform.looks = [often | {"num_restarts": 2 * MAX_CRASHES - 1}]
    platform.until_killable("decode-")
    assert next(times) == 150.0, "the first look is enough"
