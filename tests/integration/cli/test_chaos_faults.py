"""Faults of a process of the test's own: each proves its effect, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import psutil
import pytest

from stratos.cli.chaos.faults.contract import NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import Fault
from tests.support.chaos.places import OneProcess
from tests.support.waiting import LIMIT_S, eventually


@pytest.mark.parametrize("kind", ["kill", "stop", "slow"])
async def test_a_fault_proves_its_effect_and_one_aimed_at_nothing_does_not(kind: str) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    in_effect = asyncio.Event()
    try:
        proof = await Fault(kind, "sleep", lasting_s=0.2).strike(OneProcess(process.pid), in_effect)
        assert proof["pid"] == process.pid
        assert in_effect.is_set()
        if kind == "kill":
            assert await asyncio.wait_for(process.wait(), LIMIT_S) == -signal.SIGKILL
        assert (process.returncode is None) == (kind != "kill")
        with pytest.raises(NoEffect, match="no process"):
            await Fault(kind, NOTHING).strike(OneProcess(process.pid), asyncio.Event())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


STRIKE = """
import asyncio, os, sys
from stratos.cli.chaos.command import _run_until_signalled
from stratos.cli.chaos.faults.fault import Fault
from tests.support.chaos.places import OneProcess

for victim in sys.argv[1:]:
    if not (child := os.fork()):
        try:
            strike = Fault("stop", "sleep", lasting_s=600).strike(OneProcess(int(victim)), asyncio.Event())
            asyncio.run(_run_until_signalled(strike))
        finally:
            os._exit(0)
    print(child, flush=True)
for _ in sys.argv[1:]:
    os.wait()
"""
"""A process for each victim, that all come of one: what they import is slow to load."""
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


async def test_whoever_ends_the_command_leaves_no_process_that_stands_still() -> None:
    victims = [await asyncio.create_subprocess_exec("sleep", "600") for _ in ENDS]
    pids = [str(victim.pid) for victim in victims]
    first = await asyncio.create_subprocess_exec(sys.executable, "-c", STRIKE, *pids, stdout=asyncio.subprocess.PIPE)
    strikers: list[int] = []
    try:
        for number, victim in zip(ENDS, victims, strict=True):
            strikers.append(int(await asyncio.wait_for(first.stdout.readline(), LIMIT_S)))
            process = psutil.Process(victim.pid)
            await eventually(lambda one=process: one.status() == psutil.STATUS_STOPPED, "it stands still")
            os.kill(strikers[-1], number)
            await eventually(lambda one=process: one.status() != psutil.STATUS_STOPPED, "it goes on")
        await asyncio.wait_for(first.wait(), LIMIT_S)
    finally:
        for child in (first, *victims):
            if child.returncode is None:
                for pid in strikers if child is first else ():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                child.kill()
            await child.wait()


async def test_a_process_that_ends_while_it_stands_still_is_no_effect_and_no_crash() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    in_effect = asyncio.Event()
    strike = asyncio.create_task(Fault("stop", "sleep", lasting_s=0.2).strike(OneProcess(process.pid), in_effect))
    await asyncio.wait_for(in_effect.wait(), LIMIT_S)
    process.kill()
    await process.wait()
    with pytest.raises(NoEffect):
        await strike
