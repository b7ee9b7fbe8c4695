"""Faults of processes, each with a proof that it took effect."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import psutil

from stratos.cli.chaos.waking import woken_in_the_end
from stratos.common.errors import BadRequest

Kind = Literal["kill", "stop", "slow"]
NOTHING = "nothing"
POLL_S = 0.05
EFFECT_TIMEOUT_S = 5.0
STILL_S, MOVING_S = 0.09, 0.01
"""A slow process stands still for nine tenths of the time."""

PidOf = Callable[[str], Awaitable[int]]
"""Finds the process of a name; raises ``StratosError`` where there is none."""


class NoEffect(Exception):
    """The fault did not do what its name says."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``kill`` is SIGKILL; ``stop`` is SIGSTOP for ``lasting_s``, then SIGCONT; ``slow`` is both by turns."""

    kind: Kind
    target: str
    """Name of a process of the platform, or ``NOTHING``."""
    lasting_s: float = 4.0

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """A fault from its name, e.g. "kill decode-0".

        Raises:
            BadRequest: it is none.
        """
        kind, _, target = text.strip().partition(" ")
        if kind not in get_args(Kind) or not target.strip():
            raise BadRequest(f"{text!r} is no fault; write one of {', '.join(get_args(Kind))}, and a process's name")
        return cls(kind, target.strip())  # type: ignore[arg-type]

    async def strike(self, pid_of: PidOf, in_effect: asyncio.Event) -> dict[str, Any]:
        """Inject and wait for the fault's end; returns the proof.

        Raises:
            NoEffect: there is none.
        """
        process = _process(ended_pid() if self.target == NOTHING else await pid_of(self.target))
        try:
            if self.kind == "kill":
                return await _kill(process, in_effect)
            still = _stop if self.kind == "stop" else _slow
            with woken_in_the_end(process.pid):
                return await still(process, self.lasting_s, in_effect)
        except (psutil.Error, OSError) as error:
            raise NoEffect(f"process {process.pid} could not be disturbed to the end: {error!r}") from error


def ended_pid() -> int:
    """Process id that belongs to no process any more."""
    process = subprocess.Popen(["true"])  # noqa: S607
    process.wait()
    return process.pid


async def _kill(process: psutil.Process, in_effect: asyncio.Event) -> dict[str, Any]:
    os.kill(process.pid, signal.SIGKILL)
    await _until(lambda: _is_gone(process), f"process {process.pid} is alive after SIGKILL")
    in_effect.set()
    return {"pid": process.pid, "ended": True}


async def _stop(process: psutil.Process, lasting_s: float, in_effect: asyncio.Event) -> dict[str, Any]:
    pid = process.pid
    os.kill(pid, signal.SIGSTOP)
    await _until(lambda: _stands_still(pid), f"process {pid} runs after SIGSTOP")
    in_effect.set()
    before_s = _cpu_s(process)
    await asyncio.sleep(lasting_s)
    used_s, state = _cpu_s(process) - before_s, process.status()
    if state != psutil.STATUS_STOPPED or used_s > 0:
        raise NoEffect(f"process {pid} computed for {used_s:.2f} s while it should have stood still")
    return {"pid": pid, "stopped_s": lasting_s, "cpu_s": used_s}


async def _slow(process: psutil.Process, lasting_s: float, in_effect: asyncio.Event) -> dict[str, Any]:
    pid, num_turns = process.pid, round(lasting_s / (STILL_S + MOVING_S))
    for _ in range(num_turns):
        os.kill(pid, signal.SIGSTOP)
        await _until(lambda: _stands_still(pid), f"process {pid} runs after SIGSTOP")
        in_effect.set()
        before_s = _cpu_s(process)
        await asyncio.sleep(STILL_S)
        if (used_s := _cpu_s(process) - before_s) > 0:
            raise NoEffect(f"process {pid} computed for {used_s:.2f} s while it should have stood still")
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(MOVING_S)
    return {"pid": pid, "turns": num_turns, "still_s": round(num_turns * STILL_S, 2)}


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


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        raise NoEffect(f"there is no process {pid} to disturb") from None


async def _until(is_so: Callable[[], bool], otherwise: str) -> None:
    for _ in range(int(EFFECT_TIMEOUT_S / POLL_S)):
        if is_so():
            return
        await asyncio.sleep(POLL_S)
    raise NoEffect(otherwise)
