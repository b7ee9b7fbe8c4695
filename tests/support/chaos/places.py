"""Stand-ins for a platform, to aim faults at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stratos.cli.drain.worker import DrainOutcome


@dataclass(frozen=True, slots=True)
class OneProcess:
    """A platform of one process, whatever it is called."""

    pid: int
    count: Callable[[], float] = lambda: 0.0
    """Its metrics, each of them."""
    store: Path = Path("/nonexistent")

    async def pid_of(self, name: str) -> int:
        return self.pid

    async def metric(self, name: str, metric: str) -> float:
        return self.count()

    async def drain(self, name: str) -> DrainOutcome:
        return DrainOutcome(worker_id=name, seconds=0.1, has_left=True, is_known=True)

    def store_path(self) -> Path:
        return self.store
