"""Arguments of a fault: where it strikes, for how long, and who is told that it took effect."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from stratos.cli.drain.worker import DrainOutcome

NOTHING = "nothing"
POLL_S = 0.05
EFFECT_TIMEOUT_S = 5.0
BROKEN = "handoffs_broken"
"""Part of a proof: hand-offs that ended otherwise than they should while the fault went on."""
Proof = dict[str, Any]


class NoEffect(Exception):
    """The fault did not do what its name says."""


class Breakable(Protocol):
    """A running platform. Every method raises ``StratosError`` where it does not know."""

    async def pid_of(self, name: str) -> int:
        """The process of a name."""

    async def metric(self, name: str, metric: str, reasons: Collection[str] = ()) -> float:
        """Sum over the series of a metric that a process shows, of ``reasons`` alone where there are any.

        A metric that the process does not know is no 0.
        """

    async def clock_ahead_s(self, name: str) -> float:
        """Seconds that the wall clock of a process is ahead of the true one, as it says itself."""

    async def metrics_address(self, name: str) -> str:
        """Where a process answers probes, host:port."""

    async def drain(self, name: str) -> DrainOutcome:
        """Let a worker leave, and wait for its end."""

    def store_path(self) -> Path:
        """Folder of the object store."""

    def kv_path(self, name: str) -> Path:
        """Folder of a worker's KV on disk; there is none where it has no disk tier."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault that is about to happen."""

    target: str
    """Name of what is disturbed, or ``NOTHING``."""
    lasting_s: float
    place: Breakable
    in_effect: asyncio.Event
    """Set once the fault took effect."""

    async def process(self) -> psutil.Process:
        """The process that is disturbed.

        Raises:
            NoEffect: there is none.
        """
        pid = ended_pid() if self.target == NOTHING else await self.place.pid_of(self.target)
        try:
            return psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise NoEffect(f"there is no process {pid} to disturb") from None


def ended_pid() -> int:
    """Process id that belongs to no process any more."""
    process = subprocess.Popen(["true"])  # noqa: S607
    process.wait()
    return process.pid


@contextmanager
def only_one(pid: int, what: object) -> Iterator[socket.socket]:
    """Place of the one fault that may change a thing of a process: a second one would take its value for the true one.

    A name of the kernel's, no file; it is free again when each process that has the socket has closed it.
    """
    with socket.socket(socket.AF_UNIX) as place:
        try:
            place.bind(f"\0stratos-chaos-{pid}-{what}")
        except OSError:
            raise NoEffect(f"another fault holds the same limit or clock of process {pid}") from None
        yield place


async def until(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait for the effect of a fault.

    Raises:
        NoEffect: it does not come.
    """
    for _ in range(int(EFFECT_TIMEOUT_S / POLL_S)):
        if is_so():
            return
        await asyncio.sleep(POLL_S)
    raise NoEffect(otherwise)
