"""Faults of a process of the test's own: each proves its effect."""

from __future__ import annotations

import asyncio

import pytest

from stratos.cli.chaos.faults import NOTHING, Fault, NoEffect


@pytest.mark.parametrize("kind", ["kill", "stop", "slow"])
async def test_a_fault_proves_its_effect_and_one_aimed_at_nothing_does_not(kind: str) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")

    async def pid_of(_: str) -> int:
        return process.pid

    in_effect = asyncio.Event()
    try:
        proof = await Fault(kind, "sleep", lasting_s=0.2).strike(pid_of, in_effect)  # type: ignore[arg-type]
        assert proof["pid"] == process.pid
        assert in_effect.is_set()
        assert (process.returncode is None) == (kind != "kill")
        with pytest.raises(NoEffect, match="no process"):
            await Fault(kind, NOTHING).strike(pid_of, asyncio.Event())  # type: ignore[arg-type]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
