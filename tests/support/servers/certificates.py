"""Certificates of one platform in a folder, as a running platform has them, and ways to change them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratos.common.tls.files import TlsFiles
from stratos.common.tls.identity import PeerRole
from stratos.common.tls.settings import TlsConfig
from stratos.pki.keeper import RunReport, keep, read_authorities
from stratos.pki.renewal import Authority, RenewalWishes, ValidityPolicy
from stratos.pki.stores import CA, CERTIFICATE, KEY, FolderStore
from stratos.rpc.clients.dialer import Dialer


class CertificateFolder:
    """All roles of a platform, made unless they are there; ``run`` is one run of `renew`, in an hour of its own."""

    def __init__(self, path: Path, domain: str = "stratos") -> None:
        self.path = path
        self.domain = domain
        # Runs are hours apart and all of them in the past, or peers would call new certificates not valid yet.
        self.now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        self.pause = datetime.timedelta(hours=1)
        if not path.exists():
            self.run()

    @classmethod
    def of_platform(cls, path: Path) -> CertificateFolder:
        """That of a running `stratos up --mtls`; runs are a minute apart, the first one now."""
        folder = cls(path, "local")
        folder.now, folder.pause = datetime.datetime.now(datetime.UTC), datetime.timedelta(minutes=1)
        return folder

    def run(self, wishes: RenewalWishes | None = None) -> RunReport:
        policy = ValidityPolicy(overlap=self.pause)
        report = keep(FolderStore(self.path), self.domain, list(PeerRole), policy, self.now, wishes=wishes)
        self.now += self.pause
        return report

    def authorities(self) -> tuple[Authority, ...]:
        return read_authorities(FolderStore(self.path))

    def config(self, role: PeerRole) -> TlsConfig:
        folder = self.path / role
        return TlsConfig(
            certificate_path=folder / CERTIFICATE, key_path=folder / KEY, ca_path=folder / CA, domain=self.domain
        )

    def settings(self, role: PeerRole) -> Mapping[str, Any]:
        """For a settings class."""
        return {"tls": self.config(role)}

    def files(self, role: PeerRole) -> TlsFiles:
        return TlsFiles(self.config(role))

    def dialer(self, role: PeerRole) -> Dialer:
        return Dialer(self.files(role))
