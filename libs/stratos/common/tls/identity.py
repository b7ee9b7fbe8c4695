"""Who a certificate names: a role of one platform.

The identity is the certificate's only URI, ``spiffe://stratosserve/<domain>/<role>``.  A caller checks it by a DNS name
made of the same two words, since gRPC and most other TLS libraries compare DNS names alone; a worker's certificate has
one more of them, for callers that do not mind which of the two roles a worker has.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

TRUST_DOMAIN = "stratosserve"
_URI = re.compile(rf"spiffe://{TRUST_DOMAIN}/(?P<domain>[^/]+)/(?P<role>[a-z-]+)")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
MAX_DOMAIN_CHARS = 200
"""A DNS name has at most 253 characters; the role and our suffix take the rest."""


class PeerRole(enum.StrEnum):
    """Role of a process towards its peers."""

    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL_WORKER = "prefill-worker"
    DECODE_WORKER = "decode-worker"
    LORA_REGISTRY = "lora-registry"
    AUTOSCALER = "autoscaler"
    SUPERVISOR = "supervisor"
    ADMIN = "admin"
    METRICS_READER = "metrics-reader"
    """Another scaler of the cluster, such as KEDA: it reads numbers of the autoscaler and nothing else."""
    REDIS = "redis"
    """The Redis that a release has of its own; it calls nothing."""


WORKER_ROLES = frozenset({PeerRole.PREFILL_WORKER, PeerRole.DECODE_WORKER})
ANY_WORKER = "worker"
"""In place of a role, for callers that dial a worker of either one."""


class InvalidCertificate(ValueError):
    """A certificate, key or CA that cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A role of one platform."""

    domain: str
    role: PeerRole

    @property
    def uri(self) -> str:
        """The URI in the certificate."""
        return f"spiffe://{TRUST_DOMAIN}/{self.domain}/{self.role}"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """The DNS names in the certificate that callers check."""
        own = dns_name(self.domain, self.role)
        return (own, dns_name(self.domain, ANY_WORKER)) if self.role in WORKER_ROLES else (own,)


def dns_name(domain: str, role: str) -> str:
    """The name that a caller expects in the certificate of a peer of this role."""
    return f"{role}.{domain}.{TRUST_DOMAIN}"


def parse_identity(uri: str) -> Identity | None:
    """The identity that a URI names; ``None`` for any other URI, or a role that does not exist."""
    match = _URI.fullmatch(uri)
    if match is None or match["role"] not in set(PeerRole):
        return None
    return Identity(match["domain"], PeerRole(match["role"]))


def check_domain(domain: str) -> str:
    """The domain, if it can stand in a DNS name and in a URI.

    Raises:
        ValueError: it cannot.
    """
    if len(domain) > MAX_DOMAIN_CHARS or not _DOMAIN.fullmatch(domain):
        raise ValueError(f"{domain!r} is no domain: lower-case letters, digits, hyphens and dots, as in a DNS name")
    return domain
