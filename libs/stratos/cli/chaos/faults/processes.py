"""Faults of a process: it ends, stands still, or is slow."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike, until
from stratos.cli.chaos.faults.waking import woken_in_the_end

STILL_S, MOVING_S = 0.09, 0.01
"""A slow process stands still for nine tenths of the time."""


async def kill(strike: Strike) -> Proof:
    """SIGKILL."""
    process = await strike.process()
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: _is_gone(process), f"process {process.pid} is alive after SIGKILL")
    strike.in_effect.set()
    return {"pid": process.pid, "ended": True}


async def stop(strike: Strike) -> Proof:
    """SIGSTOP, then SIGCONT."""
    process = await strike.process()
    with woken_in_the_end(process.pid):
        await hold_still(process)
        strike.in_effect.set()
        used_s = await _stand_still(process, strike.lasting_s)
    return {"pid": process.pid, "stopped_s": strike.lasting_s, "cpu_s": used_s}


async def slow(strike: Strike) -> Proof:
    """Both by turns."""
    process, num_turns = await strike.process(), max(1, round(strike.lasting_s / (STILL_S + MOVING_S)))
    with woken_in_the_end(process.pid):
        for _ in range(num_turns):
            await hold_still(process)
            strike.in_effect.set()
            await _stand_still(process, STILL_S)
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.sleep(MOVING_S)
    return {"pid": process.pid, "turns": num_turns, "still_s": round(num_turns * STILL_S, 2)}


async def hold_still(process: psutil.Process) -> None:
    """SIGSTOP, and wait for its effect."""
    os.kill(process.pid, signal.SIGSTOP)
    await until(lambda: _stands_still(process.pid), f"process {process.pid} runs after SIGSTOP")


async def _stand_still(process: psutil.Process, seconds: float) -> float:
    """Returns the processor time that it used, which is none."""
    before_s = _cpu_s(process)
    await asyncio.sleep(seconds)
    used_s, state = _cpu_s(process) - before_s, process.status()
    if state != psutil.STATUS_STOPPED or used_s > 0:
        raise NoEffect(f"process {process.pid} computed for {used_s:.2f} s while it should have stood still")
    return used_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _stands_still(pid: int) -> bool:
    """Whether every thread is stopped; the state of a process is that of its first one."""
    states = set[str]()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            states.add(path.read_text().rpartition(")")[2].split()[0])
    return states == {"T"}
