"""Certificates of servers on loopback, signed by an authority of the test's own."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for 127.0.0.1.

    Args:
        folder: for the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
        self._serial = 1
        root = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.ca_path = folder / "ca.pem"
        self.ca_path.write_bytes(root.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self.certificate_path, self.key_path = folder / "tls.crt", folder / "tls.key"

    def issue(self) -> int:
        """Replace both files, the key by another one; returns the serial number."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = self._builder(subject, key).add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        self._replace(self.certificate_path, certificate.public_bytes(serialization.Encoding.PEM))
        self._replace(
            self.key_path,
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        return self._serial

    def client_context(self) -> ssl.SSLContext:
        """Trusts this authority alone."""
        return ssl.create_default_context(cafile=str(self.ca_path))

    def server_context(self) -> ssl.SSLContext:
        """Shows what was issued last."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_path, self.key_path)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        self._serial += 1
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=self._serial,
            not_valid_before=now - _DAY,
            not_valid_after=now + _DAY + self._serial * datetime.timedelta(minutes=1),  # each its own
        )

    def not_after_unix_s(self) -> float:
        """Of what was issued last."""
        return x509.load_pem_x509_certificate(self.certificate_path.read_bytes()).not_valid_after_utc.timestamp()

    def _replace(self, path: Path, content: bytes) -> None:
        staged = path.with_suffix(".new")
        staged.write_bytes(content)
        staged.replace(path)
