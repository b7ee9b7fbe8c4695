"""Stand-ins for a platform, to aim faults at."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from stratos.cli.drain.worker import DrainOutcome
from stratos.common.errors import NotFound


@dataclass(frozen=True, slots=True)
class OneProcess:
    """A platform of one process, whatever it is called."""

    pid: int
    count: Callable[[], float] | None = None
    """Its metrics, each of them; it has none without."""
    store: Path = Path("/nonexistent")
    kv: Path = Path("/nonexistent")
    address: str = ""
    """Where it answers probes."""
    redis: int = 0
    """Process that is its Redis, where that is another one."""

    async def pid_of(self, name: str) -> int:
        return self.redis if name == "redis" and self.redis else self.pid

    async def metric(self, name: str, metric: str, reasons: Collection[str] = ()) -> float:
        if self.count is None:
            raise NotFound(metric)
        return self.count()

    async def clock_ahead_s(self, name: str) -> float:
        return 0.0

    async def metrics_address(self, name: str) -> str:
        if not self.address:
            raise NotFound(name)
        return self.address

    async def drain(self, name: str) -> DrainOutcome:
        return DrainOutcome(worker_id=name, seconds=0.1, has_left=True, is_known=True)

    def store_path(self) -> Path:
        return self.store

    def kv_path(self, name: str) -> Path:
        return self.kv
