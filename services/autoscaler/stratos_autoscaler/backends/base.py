"""The backend contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from stratos.core.placement import WorkerRole


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendWorker:
    """A worker as its owner knows it."""

    worker_id: str
    role: WorkerRole
    is_draining: bool = False


class Backend(ABC):
    """Starts and drains workers. Every call raises ``StratosError`` when it did not succeed."""

    @abstractmethod
    async def workers(self) -> tuple[BackendWorker, ...]:
        """Every worker that has not ended."""

    @abstractmethod
    async def start(self, role: WorkerRole) -> str:
        """Start one worker; returns its id once it serves."""

    @abstractmethod
    async def drain(self, worker_id: str) -> None:
        """Let one worker finish or hand over what it has, and end; returns when that has begun."""

    @abstractmethod
    async def close(self) -> None:
        """Release what the backend holds."""
