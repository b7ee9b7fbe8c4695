"""Facts that a running platform leaves for the other commands: the content of ``platform.json``."""

from __future__ import annotations

import dataclasses
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFacts:
    """Addresses and names of one run; holds secrets, so its file is readable by its owner alone."""

    run_id: str
    pid: int
    base_url: str
    """Address of the OpenAI API, with /v1."""
    admin_url: str
    """Address of the admin port, without a path."""
    api_key: str = dataclasses.field(repr=False)
    model: str
    adapters: tuple[str, ...]
    router_addresses: tuple[str, ...]
    registry_address: str
    supervisor_address: str
    redis_url: str = dataclasses.field(repr=False)
    object_store_url: str
    s3_endpoint_url: str
    model_path: str
    tls_folder: str = ""
    """Certificates by role, with mTLS."""
    prometheus_url: str = ""
    """Address of the Prometheus beside the platform, where there is one."""

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The facts that the file holds."""
        lists = {name: tuple(content[name]) for name in ("adapters", "router_addresses")}
        return cls(**{**content, **lists})
