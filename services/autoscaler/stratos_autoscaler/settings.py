"""Settings of the autoscaler, read from ``STRATOS_AUTOSCALER_*``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field, field_validator

from stratos.core.placement import WorkerRole
from stratos.planning.settings import PlannerConfig, PoolBounds, PoolConfig, check_pools
from stratos.planning.turns import TurnConfig
from stratos.rpc.clients.peer_addresses import split_address
from stratos.rpc.settings import ServiceSettings
from stratos_autoscaler.board import BoardConfig
from stratos_autoscaler.kubernetes.settings import KubernetesConfig
from stratos_autoscaler.metrics_api.settings import MetricsApiConfig


class AutoscalerSettings(ServiceSettings):
    """Where to look, where to act, and the bounds of the pools."""

    env_prefix = "STRATOS_AUTOSCALER_"

    router_addresses: tuple[str, ...] = Field(min_length=1)
    """host:port of the routers: queue depths and worker states come from all of them; a host name, such as that of a
    headless Service, stands for all its addresses."""
    supervisor_address: str = ""
    """host:port of the supervisor of ``stratos up``, which starts and drains workers. Without it, and without
    `kubernetes.namespace`, the autoscaler only looks on."""
    poll_interval_s: float = 1.0
    """Time between two decisions."""

    pools: tuple[PoolBounds, ...] = (PoolBounds(role=WorkerRole.DECODE, min_workers=1, max_workers=2),)
    """Scaled pools: role, min_workers, max_workers, mode (hpa, planner, external, none), on Kubernetes the deployment,
    and where a role has several models the model_digest or model_name of each; served_name is what metrics call the
    model. Other pools are left alone."""
    shared_devices: tuple[tuple[str, ...], ...] = ()
    """Digests of models that share a device, for each such device: one of them is awake at a time, by demand. Their
    workers are there from the start, and sleep by turns; see `turns`."""
    lease_ttl_s: float = Field(10.0, gt=0)
    """The one of several autoscalers that holds the backend's lease acts; one that is gone loses it after this time."""

    start_timeout_s: float = 180.0
    """A worker that does not serve by then counts as failed."""
    not_ready_after_s: float = 10.0
    """Without router or supervisor for so long the autoscaler reports itself not ready; it goes on trying. In a
    cluster it stays ready: an API of the cluster must not be away because routers are, its numbers are errors then."""

    planner: PlannerConfig = PlannerConfig()
    turns: TurnConfig = TurnConfig()
    board: BoardConfig = BoardConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    metrics_api: MetricsApiConfig = MetricsApiConfig()

    @field_validator("pools")
    @classmethod
    def _check_pools(cls, value: tuple[PoolBounds, ...]) -> tuple[PoolBounds, ...]:
        check_pools(value)
        return value

    @field_validator("shared_devices")
    @classmethod
    def _check_devices(cls, value: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        models = [model for device in value for model in device]
        if "" in models or len(set(models)) < len(models) or any(len(device) < 2 for device in value):
            raise ValueError("a shared device has two models or more, and a model one device")
        return value

    @field_validator("router_addresses")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            split_address(entry)
        return value

    def pool_configs(self, pools: Sequence[PoolBounds]) -> tuple[PoolConfig, ...]:
        """Pools with the numbers of their planners."""
        # Three polls at least: a planner that decides rarely sees no gaps between its decisions.
        planner = replace(self.planner, max_gap_s=max(self.planner.max_gap_s, 3 * self.poll_interval_s))
        return tuple(PoolConfig(bounds=bounds, planner=planner) for bounds in pools)
