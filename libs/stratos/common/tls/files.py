"""The newest valid certificate, key and CAs of this process, from files that another process replaces.

The files are looked at whenever a connection is made, so a rotation needs no restart and no signal.  What cannot be
used (half written, a key of another certificate, expired, of another platform) is logged once, and the last good ones
stay in use: connections must not fail because a writer is in the middle of its work.
"""

from __future__ import annotations

import datetime
import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from stratos.common.tls.identity import Identity, InvalidCertificate, parse_identity
from stratos.common.tls.settings import TlsConfig

_log = logging.getLogger(__name__)
_Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """Contents of the files, checked."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes
    identity: Identity
    not_after: datetime.datetime


class TlsFiles:
    """Thread-safe: gRPC asks from threads of its own.

    Args:
        config: where they are.

    Raises:
        InvalidCertificate: they cannot be used; the message says why.
    """

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._problem = ""
        self._signature = _signature(config)
        self._material = read_material(config)

    def current(self) -> TlsMaterial:
        """The newest ones that can be used; the same object as long as nothing changed."""
        with self._lock:
            try:
                signature = _signature(self.config)
                if signature != self._signature:
                    self._material = read_material(self.config)  # a failure leaves the signature: the next call tries
                    self._signature = signature
                    self._problem = ""
                    _log.info("new certificate of %s, valid until %s", self.identity.uri, self._material.not_after)
            except InvalidCertificate as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    _log.error("%s; the certificate of before stays in use", error)
            return self._material

    @property
    def identity(self) -> Identity:
        """Who this process is to its peers."""
        return self._material.identity


def read_material(config: TlsConfig) -> TlsMaterial:
    """Read and check the files.

    Raises:
        InvalidCertificate: a file is missing or malformed, they do not belong together, the certificate has expired,
            or names no role of this platform.
    """
    certificate, key, ca = (_read(path) for path in (config.certificate_path, config.key_path, config.ca_path))
    leaf, identity = read_identity(certificate, config.certificate_path)
    if identity.domain != config.domain:
        raise InvalidCertificate(
            f"{config.certificate_path} is a certificate of the platform {identity.domain!r}, not {config.domain!r}"
        )
    if leaf.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise InvalidCertificate(f"{config.certificate_path} has expired, at {leaf.not_valid_after_utc}")
    _check_key(leaf, key, config)
    _load_certificates(ca, config.ca_path)
    return TlsMaterial(certificate=certificate, key=key, ca=ca, identity=identity, not_after=leaf.not_valid_after_utc)


def read_identity(certificate: bytes, path: Path) -> tuple[x509.Certificate, Identity]:
    """The first certificate of a PEM file, and whom it names. Raises ``InvalidCertificate`` if it names no role."""
    leaf = _load_certificates(certificate, path)[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise InvalidCertificate(f"{path} has no alternative names, so it names no role") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    identity = parse_identity(uris[0]) if len(uris) == 1 else None
    if identity is None:
        found = ", ".join(uris) or "no URI"
        raise InvalidCertificate(f"{path} must name one role, as spiffe://stratosserve/DOMAIN/ROLE; it has {found}")
    return leaf, identity


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidCertificate(f"cannot read {path}: {error.strerror}") from None


def _load_certificates(content: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise InvalidCertificate(f"{path} holds no PEM certificate") from None


def _check_key(leaf: x509.Certificate, key: bytes, config: TlsConfig) -> None:
    try:
        public = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):
        raise InvalidCertificate(f"{config.key_path} holds no PEM private key without a password") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if public.public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise InvalidCertificate(f"{config.key_path} is not the key of {config.certificate_path}")


def _signature(config: TlsConfig) -> _Signature:
    """Changes whenever a file is replaced or written."""
    found = []
    for path in (config.certificate_path, config.key_path, config.ca_path):
        try:
            stat = path.stat()
        except OSError as error:
            raise InvalidCertificate(f"cannot read {path}: {error.strerror}") from None
        found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(found)
