"""The autoscaler as a service. It serves nothing but health and metrics."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import grpc.aio

from stratos.common.clock import Clock
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.rpc.clients.router import RouterClient
from stratos.rpc.serving.service import Service
from stratos_autoscaler.backends.base import Backend
from stratos_autoscaler.backends.local import LocalBackend
from stratos_autoscaler.backends.observer import Observer
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.routers import RouterFleets
from stratos_autoscaler.scaler import Scaler
from stratos_autoscaler.settings import AutoscalerSettings


class AutoscalerApp(Service):
    """One autoscaler process."""

    name = "autoscaler"

    def __init__(self, settings: AutoscalerSettings, clock: Clock) -> None:
        self._routers = RouterFleets(PeerAddresses(settings.router_addresses, clock).now, self._connect)
        self._backend = _open_backend(settings, lambda: self.dialer)
        self._scaler = Scaler(self._routers, self._backend, settings, AutoscalerMetrics(self.metrics), clock)

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """No servicers of its own."""
        return []

    def _connect(self, address: str) -> RouterClient:
        return RouterClient(address, dialer=self.dialer)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """The control loop."""
        return {"scaler": self._scaler.run()}

    def not_ready_reason(self) -> str:
        """A peer that has been gone for long."""
        return self._scaler.not_ready_reason()

    async def close(self) -> None:
        """Stop looking; workers stay as they are."""
        await self._scaler.close()
        await self._backend.close()
        await self._routers.close()


def _open_backend(settings: AutoscalerSettings, dialer: Callable[[], Dialer]) -> Backend:
    """What the settings name."""
    if settings.supervisor_address:
        return LocalBackend(settings.supervisor_address, settings.start_timeout_s, dialer)
    return Observer()
