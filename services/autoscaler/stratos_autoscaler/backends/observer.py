"""No backend: where nothing can start workers, the autoscaler looks on, as a standby does."""

from __future__ import annotations

from stratos.common.errors import Overloaded
from stratos.planning.settings import PoolKey
from stratos_autoscaler.backends.base import Backend, BackendWorker


class Observer(Backend):
    """Never holds the lease, so that no decision but holding is made."""

    async def hold_lease(self, ttl_s: float) -> bool:
        return False

    async def workers(self) -> tuple[BackendWorker, ...]:
        return ()

    async def start(self, pool: PoolKey) -> str:
        raise Overloaded("this autoscaler only looks on")

    async def drain(self, worker_id: str) -> None:
        raise Overloaded("this autoscaler only looks on")

    async def close(self) -> None:
        """Nothing is held."""
