"""Where a process finds its certificate; the group of settings that every service has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """mTLS with the other processes of a platform; without this group they speak plain text."""

    certificate_path: Path
    """PEM file: this process's certificate, then intermediate ones if there are any. Read again when it changes."""
    key_path: Path
    """PEM file: the private key of the certificate. Read again when it changes."""
    ca_path: Path
    """PEM file: the CAs whose certificates peers may show; two of them while one replaces the other."""
    domain: str = "stratos"
    """Name of the platform in its certificates, spiffe://stratosserve/DOMAIN/ROLE; peers of another one are refused."""
