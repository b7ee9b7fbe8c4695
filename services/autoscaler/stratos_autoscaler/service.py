"""The autoscaler as a service: the control loop, its decisions for people, and its numbers for other scalers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc.aio

from stratos.api.autoscaler.v1 import autoscaler_pb2, autoscaler_pb2_grpc
from stratos.api.keda.v1 import externalscaler_pb2, externalscaler_pb2_grpc
from stratos.common.clock import Clock
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.rpc.clients.router import RouterClient
from stratos.rpc.serving.service import Service
from stratos_autoscaler.backends.base import Backend, Observer
from stratos_autoscaler.backends.kubernetes import KubernetesBackend
from stratos_autoscaler.backends.local import LocalBackend
from stratos_autoscaler.board import LoadBoard
from stratos_autoscaler.keda import KedaServicer
from stratos_autoscaler.kubernetes.api import ApiServer
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.metrics_api.server import MetricsApi
from stratos_autoscaler.metrics_api.settings import MetricsApiConfig
from stratos_autoscaler.model_resources.cluster import ModelCluster
from stratos_autoscaler.model_resources.drains import Drains
from stratos_autoscaler.model_resources.reconciler import ModelReconciler
from stratos_autoscaler.routers import RouterFleets
from stratos_autoscaler.scaler import Scaler
from stratos_autoscaler.servicer import AutoscalerServicer
from stratos_autoscaler.settings import AutoscalerSettings
from stratos_autoscaler.turns import DialedWorkers, SharedDevice


class AutoscalerApp(Service):
    """One autoscaler process."""

    name = "autoscaler"

    def __init__(self, settings: AutoscalerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._api = ApiServer(settings.kubernetes.api_server) if settings.kubernetes.namespace else None
        self._board = LoadBoard(settings.board, clock, settings.kubernetes.release)
        self._routers = RouterFleets(PeerAddresses(settings.router_addresses, clock).now, self._connect)
        self._backend = _open_backend(settings, self._api, clock, lambda: self.dialer)
        self._instruments = AutoscalerMetrics(self.metrics)
        calls = DialedWorkers(lambda: self.dialer)
        devices = [
            SharedDevice(models, settings.turns, calls, self._instruments, clock) for models in settings.shared_devices
        ]
        self._scaler = Scaler(self._routers, self._backend, settings, self._instruments, self._board, clock, devices)
        self._metrics_api: MetricsApi | None = None
        self._models = self._open_models()

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Decisions for people, numbers for KEDA."""
        autoscaler_pb2_grpc.add_AutoscalerServiceServicer_to_server(
            AutoscalerServicer(self._scaler, self._clock), server
        )
        keda = KedaServicer(self._board, self._settings.kubernetes.namespace)
        externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(keda, server)
        return [
            autoscaler_pb2.DESCRIPTOR.services_by_name["AutoscalerService"].full_name,
            externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"].full_name,
        ]

    async def open(self) -> None:
        """Listen for the cluster's API server."""
        config = _with_own_certificate(self._settings)
        if self._api is not None and config.listen:
            namespace = self._settings.kubernetes.namespace
            self._metrics_api = MetricsApi(
                config, self._api, namespace, self._board, self._instruments.asked, self._clock
            )

    def _connect(self, address: str) -> RouterClient:
        return RouterClient(address, dialer=self.dialer)

    def _open_models(self) -> ModelReconciler | None:
        """Reconciler of Models of the cluster, where the settings name their templates."""
        config, backend = self._settings.kubernetes, self._backend
        if self._api is None or not config.model_templates or not isinstance(backend, KubernetesBackend):
            return None
        cluster = ModelCluster(self._api, config, backend.workloads, backend.lease.check)
        drains = Drains(self._routers.num_requests, config.model_drain_s, self._clock)
        return ModelReconciler(cluster, backend.lease, drains, self._instruments)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """The control loop, what the backend follows, Models of the cluster, and the metrics API."""
        own: dict[str, Coroutine[Any, Any, Any]] = {"scaler": self._scaler.run(), **self._backend.tasks()}
        if self._models is not None:
            own |= self._models.tasks()
        if self._metrics_api is not None:
            own["metrics-api"] = self._metrics_api.run()
        return own

    def not_ready_reason(self) -> str:
        """A peer that has been gone for long."""
        return self._scaler.not_ready_reason()

    async def close(self) -> None:
        """Stop looking; workers stay as they are."""
        if self._metrics_api is not None:
            self._metrics_api.close()
        await self._scaler.close()
        await self._backend.close()
        await self._routers.close()
        if self._api is not None:
            await self._api.close()


def _open_backend(
    settings: AutoscalerSettings, api: ApiServer | None, clock: Clock, dialer: Callable[[], Dialer]
) -> Backend:
    """The backend that the settings name."""
    if api is not None:
        return KubernetesBackend(
            api, settings.kubernetes, settings.pools, settings.start_timeout_s, settings.lease_ttl_s, clock, dialer
        )
    if settings.supervisor_address:
        return LocalBackend(settings.supervisor_address, settings.start_timeout_s, settings.lease_ttl_s, dialer)
    return Observer()


def _with_own_certificate(settings: AutoscalerSettings) -> MetricsApiConfig:
    """The metrics API shows the process's certificate of mTLS, unless it has one of its own."""
    config, tls = settings.metrics_api, settings.tls
    if config.certificate_path is not None or tls is None:
        return config
    return replace(
        config, certificate_path=tls.certificate_path, key_path=tls.key_path, ca_path=config.ca_path or tls.ca_path
    )
