"""Faults of processes, each with a proof that it took effect."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from tests.support.worlds.platform_process import PlatformProcess, gone

Kind = Literal["kill", "stop"]
NOTHING = "nothing"
POLL_S = 0.05


class NoEffect(AssertionError):
    """The fault did not do what its name says."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``kill`` is SIGKILL; ``stop`` is SIGSTOP for ``stop_s``, then SIGCONT."""

    kind: Kind
    target: str
    """Name of a process of the platform, or ``NOTHING``."""
    stop_s: float = 4.0

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"

    async def strike(self, platform: PlatformProcess, in_effect: asyncio.Event) -> dict[str, Any]:
        """Inject and wait for the fault's end; returns the proof.

        Raises:
            NoEffect: there is none.
        """
        pid = ended_pid() if self.target == NOTHING else (await views(platform))[self.target]["pid"]
        return await (_kill(pid, in_effect) if self.kind == "kill" else _stop(pid, self.stop_s, in_effect))


def ended_pid() -> int:
    """Process id that belongs to no process any more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


async def views(platform: PlatformProcess) -> dict[str, dict[str, Any]]:
    """Processes of the platform by name."""
    return await asyncio.to_thread(platform.processes)


async def _kill(pid: int, in_effect: asyncio.Event) -> dict[str, Any]:
    process = _process(pid)
    os.kill(pid, signal.SIGKILL)
    await _until(lambda: gone([process]), f"process {pid} is alive after SIGKILL")
    in_effect.set()
    return {"pid": pid, "ended": True}


async def _stop(pid: int, stop_s: float, in_effect: asyncio.Event) -> dict[str, Any]:
    process = _process(pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        await _until(lambda: _stands_still(pid), f"process {pid} runs after SIGSTOP")
        in_effect.set()
        before = process.cpu_times()
        await asyncio.sleep(stop_s)
        after, state = process.cpu_times(), process.status()
    finally:
        os.kill(pid, signal.SIGCONT)
    used_s = (after.user + after.system) - (before.user + before.system)
    if state != psutil.STATUS_STOPPED or used_s > 0:
        raise NoEffect(f"process {pid} computed for {used_s:.2f} s while it should have stood still")
    return {"pid": pid, "stopped_s": stop_s, "cpu_s": used_s}


def _stands_still(pid: int) -> bool:
    """Whether every thread is stopped; the state of a process is that of its first one."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        raise NoEffect(f"there is no process {pid} to disturb") from None


async def _until(is_so: Callable[[], bool], otherwise: str) -> None:
    for _ in range(int(5 / POLL_S)):
        if is_so():
            return
        await asyncio.sleep(POLL_S)
    raise NoEffect(otherwise)
