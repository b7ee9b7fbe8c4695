"""TLS of the OpenAI API, and what its edge grants to browsers and proxies."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTlsConfig:
    """Certificate of the API; both files are read again when they change."""

    certificate_path: Path
    """PEM: the certificate and the intermediate ones that lead to its root."""
    key_path: Path
    """PEM: its private key, without a pass phrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeConfig:
    """Other origins and hops."""

    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the API, e.g. ["https://app.example.com"], or ["*"]; none: CORS is off."""
    trusted_proxies: tuple[str, ...] = ()
    """IP addresses and networks of proxies whose X-Forwarded-For tells the client's address; no other's is read."""


def check_edge(config: EdgeConfig) -> None:
    """Check what pydantic does not see.

    Raises:
        ValueError: an entry is no network, or no origin.
    """
    for proxy in config.trusted_proxies:
        ipaddress.ip_network(proxy)
    for origin in config.cors_origins:
        if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.count("/") != 2):
            raise ValueError(f"{origin!r} is no origin: scheme://host or scheme://host:port, or *")
