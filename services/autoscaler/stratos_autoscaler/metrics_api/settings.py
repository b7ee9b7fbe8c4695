"""Settings of the metrics API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsApiConfig:
    """Where it listens, and with which certificate."""

    listen: str = ""
    """host:port of `external.metrics.k8s.io`; empty serves none. Needs `kubernetes.namespace`."""
    certificate_path: Path | None = None
    """PEM: its certificate, which names the Service; empty takes that of `tls`. Read again when it changes."""
    key_path: Path | None = None
    """PEM: its private key."""
    ca_path: Path | None = None
    """PEM: the CA that signed it, written into the APIService, as it changes."""
    api_service: str = ""
    """Name of the APIService whose caBundle this autoscaler keeps; empty keeps none."""
    service_name: str = ""
    """Service that the APIService must name for that."""
    access_ttl_s: float = 10.0
    """How long an answer about who may ask is remembered."""
    refresh_s: float = 60.0
    """How often the CA of the API server's client certificate, and the caBundle, are looked at."""
