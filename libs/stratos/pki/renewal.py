"""Steps that are due at a time: new certificates, and those by which one CA replaces another. Pure but for keys.

Life of a CA, in runs that come every hour or day:

1. It is *announced*: every process gets it in its bundle, beside the one in use.
2. After ``overlap`` all processes have read that bundle: it *signs*, and every certificate is issued again by it.
3. After another ``overlap`` all processes show such a certificate: the older CAs leave the bundle.

So at any time every process trusts every certificate that another one may show.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cryptography import x509

from stratos.common.tls.identity import Identity, PeerRole
from stratos.pki.authority import KeyPair, is_signed_by, issue, new_authority


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityPolicy:
    """How long things are valid."""

    lifetime: datetime.timedelta = datetime.timedelta(days=30)
    """Validity of a process's certificate; it is renewed when a third of this is left."""
    ca_lifetime: datetime.timedelta = datetime.timedelta(days=1825)
    """Validity of a CA; its successor is announced when a fifth of this is left."""
    overlap: datetime.timedelta = datetime.timedelta(hours=24)
    """Within this time every process has read new files: a run, and what a kubelet needs for a Secret."""
    dns_names: Mapping[PeerRole, tuple[str, ...]] = field(default_factory=dict)
    """More DNS names of roles: what callers outside of the platform know them by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A CA of the platform."""

    pair: KeyPair
    announced_at: datetime.datetime
    signs_since: datetime.datetime | None = None
    """``None`` while it is only announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalWishes:
    """Steps to take beyond those that are due."""

    rotate_ca: bool = False
    reissue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """All CAs, oldest first, and the certificate of every role."""

    domain: str
    authorities: tuple[Authority, ...] = ()
    leaves: Mapping[PeerRole, KeyPair] = field(default_factory=dict)

    @property
    def bundle(self) -> bytes:
        """CA bundle that every process trusts."""
        return b"".join(authority.pair.certificate for authority in self.authorities)


def renew(
    known: Certificates,
    roles: Sequence[PeerRole],
    policy: ValidityPolicy,
    now: datetime.datetime,
    wishes: RenewalWishes,
) -> Certificates:
    """The certificates as they should be from now on; what is not due is kept byte for byte."""
    authorities = _authorities(known, policy, now, wishes)
    signer = _signer(authorities)
    leaves = dict(known.leaves)
    for role in roles:
        identity, held = Identity(known.domain, role), known.leaves.get(role)
        if held is None or wishes.reissue or _is_due(held, identity, signer.pair.load(), policy, now):
            leaves[role] = issue(signer.pair, identity, policy.lifetime, now, policy.dns_names.get(role, ()))
    return replace(known, authorities=authorities, leaves=leaves)


def _authorities(
    known: Certificates, policy: ValidityPolicy, now: datetime.datetime, wishes: RenewalWishes
) -> tuple[Authority, ...]:
    found = [a for a in known.authorities if a.pair.load().not_valid_after_utc > now]
    if not any(authority.signs_since for authority in found):
        # Nothing that is trusted can sign: there is no overlap to wait for.
        found.append(Authority(pair=_new(known, policy, now), announced_at=now, signs_since=now))
    elif found[-1].signs_since and (wishes.rotate_ca or _ends_soon(found[-1], policy, now)):
        found.append(Authority(pair=_new(known, policy, now), announced_at=now))
    if found[-1].signs_since is None and now - found[-1].announced_at >= policy.overlap:
        found[-1] = replace(found[-1], signs_since=now)
    signer = _signer(found)
    assert signer.signs_since is not None
    if now - signer.signs_since >= policy.overlap:
        found = found[found.index(signer) :]
    return tuple(found)


def _signer(authorities: Sequence[Authority]) -> Authority:
    return [authority for authority in authorities if authority.signs_since][-1]


def _new(known: Certificates, policy: ValidityPolicy, now: datetime.datetime) -> KeyPair:
    return new_authority(known.domain, policy.ca_lifetime, now)


def _ends_soon(authority: Authority, policy: ValidityPolicy, now: datetime.datetime) -> bool:
    return authority.pair.load().not_valid_after_utc - now < policy.ca_lifetime / 5


def _is_due(
    held: KeyPair, identity: Identity, signer: x509.Certificate, policy: ValidityPolicy, now: datetime.datetime
) -> bool:
    try:
        leaf = held.load()
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return True
    left = leaf.not_valid_after_utc - now
    has_names = names.get_values_for_type(x509.UniformResourceIdentifier) == [identity.uri] and set(
        names.get_values_for_type(x509.DNSName)
    ) == {*identity.dns_names, *policy.dns_names.get(identity.role, ())}
    return not has_names or not is_signed_by(leaf, signer) or left < policy.lifetime / 3
