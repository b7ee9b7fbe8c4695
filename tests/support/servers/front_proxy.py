"""Certificates as a cluster has them for an aggregated API: of the API server's client side, and of the API itself."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class ProxyAuthority:
    """A CA, and what it signs; files are in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority of {folder.name}")
        builder = self._builder(self._name, self._key.public_key())
        self._root = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.ca_path = folder / "ca.crt"
        self.ca_path.write_bytes(self._root.public_bytes(serialization.Encoding.PEM))

    @property
    def ca(self) -> str:
        return self.ca_path.read_text()

    def issue(self, common_name: str, dns_name: str = "localhost") -> tuple[Path, Path]:
        """Certificate and key, replaced by each call of the same name."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(common_name), key.public_key())
        names = x509.SubjectAlternativeName([x509.DNSName(dns_name)])
        certificate = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        pair = self._folder / f"{common_name}.crt", self._folder / f"{common_name}.key"
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        for path, content in zip(pair, (certificate.public_bytes(serialization.Encoding.PEM), pem), strict=True):
            staged = path.with_suffix(".new")
            staged.write_bytes(content)
            staged.replace(path)
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _DAY,
            not_valid_after=now + _DAY,
        )


def client_context(trusts: ProxyAuthority, shows: tuple[Path, Path] | None) -> ssl.SSLContext:
    """As the API server dials: it checks the API's certificate and shows its own."""
    context = ssl.create_default_context(cafile=str(trusts.ca_path))
    if shows is not None:
        context.load_cert_chain(*shows)
    return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
