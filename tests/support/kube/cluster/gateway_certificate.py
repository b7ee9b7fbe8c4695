"""A certificate for the gateways' Service, signed by itself, as a Secret of a namespace."""

from __future__ import annotations

import base64
import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.kube.cluster.commands import Kubectl

SECRET = "gateway-certificate"


def provide_certificate(kubectl: Kubectl, host: str) -> str:
    """Makes the Secret; returns what a client has to trust, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(
            issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=1), not_valid_after=now + datetime.timedelta(days=1),
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    data = {"tls.crt": base64.b64encode(pem).decode(), "tls.key": base64.b64encode(secret).decode()}
    metadata = {"name": SECRET, "namespace": kubectl.namespace}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data}
    )
    return pem.decode()
