"""Drain of a process: no fault, but what an upgrade does; its streams must end, or go on elsewhere, all the same."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import psutil

from stratos.cli.chaos.faults.contract import POLL_S, NoEffect, Proof, Strike

LEAVE_S = 90.0
"""Most time of a gateway: its own bound of a drain, and a busy machine."""


async def drain(strike: Strike) -> Proof:
    """Drain a worker as by ``stratos drain``, a gateway as by SIGTERM; the supervisor starts another one."""
    process = await strike.process()
    if strike.target.startswith("gateway"):
        return await _let_leave(strike, process)
    strike.in_effect.set()
    outcome = await strike.place.drain(strike.target)
    if not outcome.has_left or process.is_running():
        raise NoEffect(f"process {process.pid} has not left")
    return {"pid": process.pid, **dataclasses.asdict(outcome)}


async def _let_leave(strike: Strike, process: psutil.Process) -> Proof:
    began_s = time.monotonic()
    process.terminate()
    strike.in_effect.set()
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() - began_s > LEAVE_S:
            raise NoEffect(f"process {process.pid} has not left")
        await asyncio.sleep(POLL_S)
    return {"pid": process.pid, "left_after_s": round(time.monotonic() - began_s, 2)}
