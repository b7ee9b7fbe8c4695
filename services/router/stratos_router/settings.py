"""Settings of the router, read from ``STRATOS_ROUTER_*``."""

from __future__ import annotations

from pydantic import Field, field_validator

from stratos.common.clock import SystemClock
from stratos.core.requests.convictions import ConvictionConfig
from stratos.routing.dispatch.dispatcher import DispatchConfig
from stratos.routing.policy.policies import check_policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig, SuspectConfig
from stratos.rpc.settings import ServiceSettings
from stratos_router.discovery import open_discovery


class RouterSettings(ServiceSettings):
    """Where workers are found, and the numbers of the routing rules."""

    env_prefix = "STRATOS_ROUTER_"

    discovery: str
    """"file:///path/workers.json", re-read when it changes, "folder:///path" of such files,
    "static://decode@host:port,prefill@host:port", or "dns://decode@name:port,prefill@name:port" where every address
    of a name, such as that of a headless Service, is a worker."""
    discovery_interval_s: float = Field(0.2, gt=0)
    """How often a file is looked at; a rewrite is noticed by modification time, size and inode. Least time between two
    lookups of a name."""
    resolve_interval_s: float = Field(1.0, gt=0)
    """How often names of `dns://` are resolved; sooner when a worker's connection breaks."""
    status_interval_ms: int = 250
    """Longest silence asked of a worker's status stream; what changes there is told within 50 ms in any case."""
    redial_after_s: float = 5.0
    """A stream that has been silent for so long is opened again; the worker is out well before that."""

    queue: QueueConfig = QueueConfig()
    admission: AdmissionConfig = AdmissionConfig()
    liveness: LivenessConfig = LivenessConfig()
    bookings: BookingConfig = BookingConfig()
    suspects: SuspectConfig = SuspectConfig()
    convictions: ConvictionConfig = ConvictionConfig()
    policies: RoutingPoliciesConfig = RoutingPoliciesConfig()

    @property
    def dispatch(self) -> DispatchConfig:
        """The groups that the dispatcher takes."""
        return DispatchConfig(
            queue=self.queue,
            admission=self.admission,
            suspects=self.suspects,
            convictions=self.convictions,
            policies=self.policies,
        )

    @field_validator("discovery")
    @classmethod
    def _check_discovery(cls, value: str) -> str:
        open_discovery(value, SystemClock())
        return value

    @field_validator("policies")
    @classmethod
    def _check_policies(cls, value: RoutingPoliciesConfig) -> RoutingPoliciesConfig:
        check_policies(value)
        return value
