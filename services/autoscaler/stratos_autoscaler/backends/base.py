"""The backend contract, and the backend of an autoscaler that only looks on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import Overloaded
from stratos.core.placement import WorkerRole
from stratos.planning.settings import PoolBounds, PoolKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendWorker:
    """A worker as its owner knows it."""

    worker_id: str
    role: WorkerRole
    model_digest: str = ""
    """Empty where the deployment has one model."""
    model_name: str = ""
    """Name for people, where the backend knows one."""
    is_draining: bool = False
    is_starting: bool = False
    """It was started and does not serve yet."""


@dataclass(frozen=True, slots=True)
class NotedDigest:
    """Digest of a model as the backend has kept it."""

    digest: str
    is_doubted: bool = False
    """Its workers start from something else by now."""


class Backend(ABC):
    """Starts and drains workers. Every call raises ``StratosError`` when it did not succeed.

    One autoscaler acts at a time: the one that holds the backend's lease.  ``start`` and ``drain`` are refused with
    ``Overloaded`` to any other, so that one which was held up and still believes in its lease does no harm.
    """

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Coroutines that run beside the control loop for as long as the process does, by name."""
        return {}

    @abstractmethod
    async def hold_lease(self) -> bool:
        """Whether this autoscaler has the lease; takes or extends it where no task does."""

    @abstractmethod
    async def workers(self) -> tuple[BackendWorker, ...]:
        """Every worker that has not ended."""

    def known_pools(self) -> Sequence[PoolBounds] | None:
        """All pools, as the last ``workers`` found them; ``None`` where they are those of the settings for good."""
        return None

    @abstractmethod
    async def start(self, pool: PoolKey) -> str:
        """Start one worker of a pool.

        Returns:
            Its id once it serves; or "" at once where ``workers`` shows it, as starting, from now on.
        """

    @abstractmethod
    async def drain(self, worker_id: str) -> None:
        """Let one worker finish or hand over what it has, and end; returns when that has begun."""

    async def mark(self, loads: Mapping[str, int]) -> None:  # noqa: B027
        """Say which workers should leave first where another scaler chooses: those with the least load.

        Args:
            loads: sequences by worker id.
        """

    async def digests(self) -> Mapping[str, NotedDigest]:
        """Digests by name of models, as far as they were ever noted."""
        return {}

    async def note_digest(self, model_name: str, digest: str) -> None:  # noqa: B027
        """Keep the digest of a model, since at zero no worker shows it."""

    @abstractmethod
    async def close(self) -> None:
        """Release what the backend holds."""


class Observer(Backend):
    """Nothing can start workers. It never holds the lease, so that no decision but holding is made."""

    async def hold_lease(self) -> bool:
        return False

    async def workers(self) -> tuple[BackendWorker, ...]:
        return ()

    async def start(self, pool: PoolKey) -> str:
        raise Overloaded("this autoscaler only looks on")

    async def drain(self, worker_id: str) -> None:
        raise Overloaded("this autoscaler only looks on")

    async def close(self) -> None:
        """Nothing is held."""
