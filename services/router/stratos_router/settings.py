"""Settings of the router, read from ``STRATOS_ROUTER_*``."""

from __future__ import annotations

from pydantic import field_validator

from stratos.core.requests.convictions import ConvictionConfig
from stratos.routing.policy.policies import check_policies
from stratos.routing.policy.settings import PoliciesConfig
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig, SuspectConfig
from stratos.rpc.settings import ServiceSettings
from stratos_router.discovery import open_discovery


class RouterSettings(ServiceSettings):
    """Where workers are found, and the numbers of the routing rules."""

    env_prefix = "STRATOS_ROUTER_"

    discovery: str
    """"file:///path/workers.json", re-read when it changes, "folder:///path" of such files, or "static://decode@host:port,prefill@host:port"."""
    discovery_interval_s: float = 0.2
    """How often the file is looked at; a rewrite is noticed by modification time, size and inode."""
    status_interval_ms: int = 100
    """Longest silence asked of a worker's status stream; short, because placement is as good as its view."""
    redial_after_s: float = 5.0
    """A stream that has been silent for so long is opened again; the worker is out well before that."""

    queue: QueueConfig = QueueConfig()
    admission: AdmissionConfig = AdmissionConfig()
    liveness: LivenessConfig = LivenessConfig()
    bookings: BookingConfig = BookingConfig()
    suspects: SuspectConfig = SuspectConfig()
    convictions: ConvictionConfig = ConvictionConfig()
    policies: PoliciesConfig = PoliciesConfig()

    @field_validator("discovery")
    @classmethod
    def _check_discovery(cls, value: str) -> str:
        open_discovery(value)
        return value

    @field_validator("policies")
    @classmethod
    def _check_policies(cls, value: PoliciesConfig) -> PoliciesConfig:
        check_policies(value)
        return value
