"""``stratos certificates check``: would a process start with these files, and would its peers accept it?"""

from __future__ import annotations

import datetime
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from stratos.common.tls.files import read_material
from stratos.common.tls.identity import Identity, InvalidCertificate, PeerRole
from stratos.common.tls.settings import TlsConfig
from stratos.pki.authority import is_signed_by


def check_files(config: TlsConfig, role: PeerRole | None, min_left: datetime.timedelta) -> str:
    """One line about files that are in order.

    Args:
        config: the files and the platform's name.
        role: that the certificate must name; ``None`` takes any.
        min_left: shortest time for which it must still be valid.

    Raises:
        InvalidCertificate: what is wrong, with the file's name.
    """
    material = read_material(config)
    path = config.certificate_path
    if role is not None and material.identity.role is not role:
        raise InvalidCertificate(f"{path} is a certificate of the role {material.identity.role}, not {role}")
    chain = x509.load_pem_x509_certificates(material.certificate)
    _check_chain(chain, x509.load_pem_x509_certificates(material.ca), config)
    _check_names(chain[0], material.identity, path)
    if material.not_after - datetime.datetime.now(datetime.UTC) < min_left:
        raise InvalidCertificate(f"{path} expires soon, at {material.not_after}")
    return f"{material.identity.uri} is in order, valid until {material.not_after}"


def _check_chain(chain: list[x509.Certificate], authorities: list[x509.Certificate], config: TlsConfig) -> None:
    # Intermediate certificates lead from the leaf to one of the CAs.
    for below, above in pairwise(chain):
        if not is_signed_by(below, above):
            raise InvalidCertificate(f"{config.certificate_path} is not a chain: {above.subject} did not sign")
    if not any(is_signed_by(chain[-1], authority) for authority in authorities):
        raise InvalidCertificate(f"no CA in {config.ca_path} signed {config.certificate_path}")


def _check_names(leaf: x509.Certificate, identity: Identity, path: Path) -> None:
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = set(identity.dns_names) - set(names.get_values_for_type(x509.DNSName))
    if missing:
        raise InvalidCertificate(f"{path} lacks DNS names that callers expect: {', '.join(sorted(missing))}")
    try:
        usages = set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return  # usable for everything
    wanted = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    if not wanted <= usages:
        raise InvalidCertificate(f"{path} must be usable for both ends of a connection (server and client)")
