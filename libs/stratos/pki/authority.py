"""Keys and signatures: a CA of one platform, and certificates that name its roles. Knows no policy and no clock."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stratos.common.tls.identity import TRUST_DOMAIN, Identity

CLOCK_SKEW = datetime.timedelta(minutes=5)
"""Certificates are valid from a little before they are made: clocks of nodes differ."""
MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its key, both as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    def load(self) -> x509.Certificate:
        """The certificate. Raises ``ValueError`` when it is malformed."""
        return x509.load_pem_x509_certificate(self.certificate)


def new_authority(domain: str, lifetime: datetime.timedelta, now: datetime.datetime) -> KeyPair:
    """A CA that signs certificates of processes, and no other CA."""
    key = generate_private_key(SECP256R1())
    serial = x509.random_serial_number()
    # Two CAs of one platform need different names: a verifier finds the issuer by its name.
    text = f"{TRUST_DOMAIN} {domain}"[: MAX_NAME_CHARS - 9] + f" {serial % 16**8:08x}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def issue(
    authority: KeyPair,
    identity: Identity,
    lifetime: datetime.timedelta,
    now: datetime.datetime,
    more_names: Sequence[str] = (),
) -> KeyPair:
    """A certificate for both ends of a connection, with a new key; it does not outlive its CA.

    Args:
        authority: signs it.
        identity: whom it names.
        lifetime: of the certificate.
        now: with a time zone.
        more_names: DNS names beside those of the identity.
    """
    issuer, issuer_key = authority.load(), _load_key(authority.key)
    key = generate_private_key(SECP256R1())
    names = [
        x509.UniformResourceIdentifier(identity.uri),
        *(x509.DNSName(dns_name) for dns_name in (*identity.dns_names, *more_names)),
    ]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder(
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(identity.role))]),
            issuer_name=issuer.subject,
            public_key=key.public_key(),
        )
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - CLOCK_SKEW, issuer.not_valid_before_utc))
        .not_valid_after(min(now + lifetime, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(_authority_key(issuer), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """The authority's key made the signature."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _authority_key(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    known = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _load_key(pem: bytes) -> EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("the key of the CA is of a kind that this command does not make")
    return key


def _pair(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> KeyPair:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(certificate.public_bytes(Encoding.PEM), pem)
