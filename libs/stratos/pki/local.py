"""Certificates of a platform of this machine: made in its run's folder at the start, and gone with it.

``stratos certificates renew --folder`` on that folder replaces them under a running platform.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from stratos.common.errors import BadRequest
from stratos.common.tls.files import TlsFiles
from stratos.common.tls.identity import InvalidCertificate, PeerRole
from stratos.common.tls.settings import TlsConfig
from stratos.pki.keeper import keep
from stratos.pki.renewal import ValidityPolicy
from stratos.pki.stores import CA, CERTIFICATE, KEY, FolderStore
from stratos.rpc.clients.dialer import PLAIN, Dialer

LOCAL_DOMAIN = "local"
LIFETIME = datetime.timedelta(days=365)
"""A platform on a laptop has no job that renews; it lives as long as its terminal."""


def make_certificates(folder: Path) -> None:
    """Certificates for every role, under a new CA."""
    policy = ValidityPolicy(lifetime=LIFETIME)
    keep(FolderStore(folder), LOCAL_DOMAIN, list(PeerRole), policy, datetime.datetime.now(datetime.UTC))


def tls_config(folder: Path, role: PeerRole, domain: str = LOCAL_DOMAIN) -> TlsConfig:
    """The settings of a process with this role."""
    return role_config(folder / role, domain)


def role_config(folder: Path, domain: str) -> TlsConfig:
    """The settings for a folder with the three files, as a pod mounts it."""
    return TlsConfig(certificate_path=folder / CERTIFICATE, key_path=folder / KEY, ca_path=folder / CA, domain=domain)


def tls_environment(config: TlsConfig) -> dict[str, str]:
    """The same as variables, without the service's prefix."""
    return {
        "TLS__CERTIFICATE_PATH": str(config.certificate_path),
        "TLS__KEY_PATH": str(config.key_path),
        "TLS__CA_PATH": str(config.ca_path),
        "TLS__DOMAIN": config.domain,
    }


def dialer_of(config: TlsConfig | None) -> Dialer:
    """Connects with a certificate, or in plain text without one.

    Raises:
        BadRequest: the certificate cannot be used.
    """
    if config is None:
        return PLAIN
    try:
        return Dialer(TlsFiles(config))
    except InvalidCertificate as error:
        raise BadRequest(f"{error}") from None


def dial_as(tls_folder: str, role: PeerRole) -> Dialer:
    """Connects to a platform of this machine; ``tls_folder`` is empty where it speaks plain text."""
    return dialer_of(tls_config(Path(tls_folder), role) if tls_folder else None)
