"""Faults of a process of the test's own: each proves its effect, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import psutil
import pytest

from stratos.cli.chaos.faults.contract import NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import Fault
from tests.support.chaos.places import OneProcess
from tests.support.waiting import eventually


@pytest.mark.parametrize("kind", ["kill", "stop", "slow"])
async def test_a_fault_proves_its_effect_and_one_aimed_at_nothing_does_not(kind: str) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    in_effect = asyncio.Event()
    try:
        proof = await Fault(kind, "sleep", lasting_s=0.2).strike(OneProcess(process.pid), in_effect)
        assert proof["pid"] == process.pid
        assert in_effect.is_set()
        if kind == "kill":
            assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
        assert (process.returncode is None) == (kind != "kill")
        with pytest.raises(NoEffect, match="no process"):
            await Fault(kind, NOTHING).strike(OneProcess(process.pid), asyncio.Event())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


STRIKE = """
import asyncio, sys
from stratos.cli.chaos.command import _run_until_signalled
from stratos.cli.chaos.faults.fault import Fault
from tests.support.chaos.places import OneProcess

place = OneProcess(int(sys.argv[1]))
asyncio.run(_run_until_signalled(Fault("stop", "sleep", lasting_s=600).strike(place, asyncio.Event())))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_whoever_ends_the_command_leaves_no_process_that_stands_still(number: signal.Signals) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", "600")
    striker = await asyncio.create_subprocess_exec(sys.executable, "-c", STRIKE, str(victim.pid))
    try:
        process = psutil.Process(victim.pid)
        await eventually(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still", timeout_s=60)
        os.kill(striker.pid, number)
        await eventually(lambda: process.status() != psutil.STATUS_STOPPED, "it goes on", timeout_s=60)
        await asyncio.wait_for(striker.wait(), 60)
    finally:
        for child in (striker, victim):
            if child.returncode is None:
                child.kill()
            await child.wait()


async def test_a_process_that_ends_while_it_stands_still_is_no_effect_and_no_crash() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    in_effect = asyncio.Event()
    strike = asyncio.create_task(Fault("stop", "sleep", lasting_s=0.2).strike(OneProcess(process.pid), in_effect))
    await asyncio.wait_for(in_effect.wait(), 30)
    process.kill()
    await process.wait()
    with pytest.raises(NoEffect):
        await strike
