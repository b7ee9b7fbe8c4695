"""Contract of a service with ``stratos.rpc.serve``: its resources, its servicers, its root tasks.

Order of calls: ``register`` and ``open`` -> the server listens, ``address`` is set -> ``tasks`` start ->
``warm_up`` -> SERVING -> ... -> ``begin_leave`` -> ``drain`` -> the server stops, tasks are cancelled -> ``close``.
``close`` is called also when ``open`` failed half-way, so it must stand resources that were never opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from typing import Any

import grpc.aio
from prometheus_client import CollectorRegistry

from stratos.rpc.clients.dialer import PLAIN, Dialer
from stratos.rpc.tracing import TRACING_OFF, Tracing


class Service(ABC):
    """One process' worth of servicers and the resources that they use."""

    name: str
    """Name in logs, metrics and traces, e.g. "router"."""
    address: str = ""
    """host:port that peers dial; set by the lifecycle before ``tasks`` and ``warm_up``."""
    metrics_address: str = ""
    """host:port of /metrics, /livez, /startedz and /readyz; set together with ``address``."""
    tracing: Tracing = TRACING_OFF
    """Makes the spans of this service's requests; set by the lifecycle before ``register``."""
    dialer: Dialer = PLAIN
    """Makes channels to peers, with the certificate of this process; set by the lifecycle before ``register``."""
    request_stop: Callable[[], None]
    """Ends the process with a drain, like a first signal but without counting as one; set by the lifecycle."""

    @cached_property
    def metrics(self) -> CollectorRegistry:
        """Registry of this service's metrics, shown at /metrics."""
        return CollectorRegistry()

    @abstractmethod
    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the servicers; returns the full names of their gRPC services, for health."""

    async def open(self) -> None:  # noqa: B027
        """Open resources; called before the server listens."""

    async def warm_up(self) -> None:  # noqa: B027
        """Do real work once; called after the server listens and before it is SERVING."""

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """Root tasks by name; one that ends before the stop is a fault of the process."""
        return {}

    def not_ready_reason(self) -> str:
        """Why no work should come now, "" when all is well. Called from the probe thread: quick, thread-safe."""
        return ""

    def begin_leave(self) -> None:  # noqa: B027
        """The process is no longer ready: called once, before the endpoint lag and ``drain``; quick."""

    async def drain(self) -> None:  # noqa: B027
        """Let open work end or move; called once, bounded by ``drain_timeout_s``."""

    async def close(self) -> None:  # noqa: B027
        """Close what ``open`` opened, in reverse."""
