"""Drain of a worker: no fault, but what an upgrade does; its streams must go on elsewhere all the same."""

from __future__ import annotations

import dataclasses

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike


async def drain(strike: Strike) -> Proof:
    """Drain as by ``stratos drain``; the supervisor starts another process in its place."""
    process = await strike.process()
    strike.in_effect.set()
    outcome = await strike.place.drain(strike.target)
    if not outcome.has_left or process.is_running():
        raise NoEffect(f"process {process.pid} has not left")
    return {"pid": process.pid, **dataclasses.asdict(outcome)}
