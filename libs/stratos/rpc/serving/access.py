"""Which role may call which method: the one table, asked by the one interceptor.

A method without a line is refused to all.  Without mTLS there are no roles and nothing is asked.
"""

from __future__ import annotations

import logging
from typing import Any

from stratos.common.errors import PeerRefused
from stratos.common.tls.identity import WORKER_ROLES, PeerRole
from stratos.rpc.serving.tls import caller_identity

_GATEWAY, _ROUTER = frozenset({PeerRole.GATEWAY}), frozenset({PeerRole.ROUTER})
_AUTOSCALER, _ADMIN = frozenset({PeerRole.AUTOSCALER}), frozenset({PeerRole.ADMIN})
_SUPERVISOR = frozenset({PeerRole.SUPERVISOR})
_METRICS_READER = frozenset({PeerRole.METRICS_READER})
_EVERYONE = frozenset(PeerRole)
MAX_TOLD = 256
"""Refusals that a process logs: a caller chooses the method that it names."""
_log = logging.getLogger(__name__)

ACCESS: dict[str, frozenset[PeerRole]] = {
    "/stratos.api.worker.v1.DecodeService/Session": _GATEWAY,
    "/stratos.api.worker.v1.EmbedService/Embed": _GATEWAY,
    "/stratos.api.worker.v1.WorkerService/WatchStatus": _ROUTER | WORKER_ROLES,
    "/stratos.api.worker.v1.WorkerService/Drain": _AUTOSCALER | _SUPERVISOR,
    "/stratos.api.worker.v1.WorkerService/WaitDrained": _SUPERVISOR,
    "/stratos.api.worker.v1.WorkerService/Sleep": _AUTOSCALER | _SUPERVISOR,
    "/stratos.api.worker.v1.WorkerService/Wake": _AUTOSCALER | _SUPERVISOR,
    "/stratos.api.worker.v1.CacheService/WatchCache": _ROUTER,
    "/stratos.api.worker.v1.CacheService/ForgetTenant": _ROUTER,
    "/stratos.api.kv.v1.KvSourceService/Fetch": WORKER_ROLES,
    "/stratos.api.kv.v1.KvSourceService/Invalidate": WORKER_ROLES,
    "/stratos.api.router.v1.RouterService/Session": _GATEWAY,
    "/stratos.api.router.v1.RouterService/Schedule": _GATEWAY,
    "/stratos.api.router.v1.RouterService/Complete": _GATEWAY,
    "/stratos.api.router.v1.RouterService/ExchangeConvictions": _GATEWAY,
    "/stratos.api.router.v1.RouterService/ForgetTenant": _GATEWAY,
    "/stratos.api.router.v1.RouterService/ReportLoad": _GATEWAY,
    "/stratos.api.router.v1.RouterService/GetFleet": _GATEWAY | _AUTOSCALER | _SUPERVISOR,
    # It hands out MACs of keys and cache salts.
    "/stratos.api.gateway.v1.SnapshotService/FetchSnapshot": _GATEWAY,
    "/stratos.api.gateway.v1.LimitsService/ExchangeGateways": _GATEWAY,
    # Gateways read adapters in Redis.
    "/stratos.api.lora.v1.RegistryService/ListAdapters": _ADMIN,
    "/stratos.api.lora.v1.RegistryService/RegisterAdapter": _ADMIN,
    "/stratos.api.lora.v1.RegistryService/DeleteAdapter": _ADMIN,
    # `stratos status` and `stratos drain` ask with the supervisor's own certificate.
    "/stratos.api.supervisor.v1.SupervisorService/ListProcesses": _AUTOSCALER | _SUPERVISOR,
    "/stratos.api.supervisor.v1.SupervisorService/HoldLease": _AUTOSCALER,
    "/stratos.api.supervisor.v1.SupervisorService/StartWorker": _AUTOSCALER,
    "/stratos.api.supervisor.v1.SupervisorService/DrainWorker": _AUTOSCALER | _SUPERVISOR,
    "/stratos.api.autoscaler.v1.AutoscalerService/ListDecisions": _SUPERVISOR | _ADMIN,
    "/externalscaler.ExternalScaler/IsActive": _METRICS_READER,
    "/externalscaler.ExternalScaler/StreamIsActive": _METRICS_READER,
    "/externalscaler.ExternalScaler/GetMetricSpec": _METRICS_READER,
    "/externalscaler.ExternalScaler/GetMetrics": _METRICS_READER,
    "/grpc.health.v1.Health/Check": _EVERYONE,
    "/grpc.health.v1.Health/Watch": _EVERYONE,
}


class Access:
    """Decides by the certificate of a call's peer, and logs once what it refuses to whom: callers may go on without.

    Args:
        domain: of this platform; certificates of another one are refused, also when one CA signed both.
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._refused: set[str] = set()

    def check_caller(self, method: str, context: Any) -> None:
        """Pass, or raise ``PeerRefused``.

        Args:
            method: full name, "/package.Service/Method".
            context: of the call.
        """
        identity = caller_identity(context)
        if identity is None or identity.domain != self._domain:
            self._refuse(f"{method} is for processes of the platform {self._domain!r}")
        elif identity.role not in ACCESS.get(method, frozenset()):
            self._refuse(f"{method} is not for the role {identity.role}")

    def _refuse(self, why: str) -> None:
        if why not in self._refused and len(self._refused) < MAX_TOLD:
            self._refused.add(why)
            _log.warning("a call was refused, and so are others like it: %s", why)
        raise PeerRefused(why)
