"""One run over a store: read what there is, make what is due, write what changed. Running it again changes nothing.

The CAs are written before the certificates that they signed: a run that is cut off leaves nothing that is not trusted.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest, NotFound
from stratos.common.tls.identity import PeerRole, check_domain
from stratos.pki.authority import KeyPair
from stratos.pki.renewal import Authority, Certificates, RenewalWishes, ValidityPolicy, renew
from stratos.pki.stores import CA, CERTIFICATE, KEY, CertificateStore

CA_DOCUMENT = "ca"
AUTHORITIES = "authorities.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Result of one run."""

    written: tuple[str, ...]
    num_authorities: int
    next_expiry: datetime.datetime
    """Earliest end of validity among the certificates of all roles."""


def keep(
    store: CertificateStore,
    domain: str,
    roles: Sequence[PeerRole],
    policy: ValidityPolicy,
    now: datetime.datetime,
    *,
    wishes: RenewalWishes | None = None,
    must_exist: bool = False,
) -> RunReport:
    """Bring a store up to date.

    Args:
        store: where the certificates are kept.
        domain: name of the platform.
        roles: that need a certificate.
        policy: how long things are valid.
        now: with a time zone.
        wishes: what to do beyond what is due.
        must_exist: refuse to make the first CA: what is empty may be the wrong place.

    Raises:
        NotFound: there is no CA, and there must be one.
        BadRequest: the domain is malformed, or the CAs that are kept cannot be read.
    """
    try:
        check_domain(domain)
    except ValueError as error:
        raise BadRequest(f"{error}", param="--domain") from None
    held = {role: store.read(role) for role in roles}
    known = Certificates(
        domain=domain,
        authorities=read_authorities(store),
        leaves={role: KeyPair(files[CERTIFICATE], files[KEY]) for role, files in held.items() if _is_whole(files)},
    )
    if must_exist and not known.authorities:
        raise NotFound("there is no CA here to renew certificates of; `stratos certificates issue` makes one")
    made = renew(known, roles, policy, now, wishes or RenewalWishes())
    written = []
    if made.authorities != known.authorities:
        store.write(CA_DOCUMENT, {AUTHORITIES: _to_json(made.authorities), CA: made.bundle})
        written.append(CA_DOCUMENT)
    for role in roles:
        leaf = made.leaves[role]
        files = {CERTIFICATE: leaf.certificate, KEY: leaf.key, CA: made.bundle}
        if {name: held[role].get(name) for name in files} != files:
            store.write(role, files)
            written.append(str(role))
    expiry = min(made.leaves[role].load().not_valid_after_utc for role in roles)
    return RunReport(written=tuple(written), num_authorities=len(made.authorities), next_expiry=expiry)


def read_authorities(store: CertificateStore) -> tuple[Authority, ...]:
    """The CAs that a store keeps, oldest first. Raises ``BadRequest`` when they cannot be read."""
    content = store.read(CA_DOCUMENT).get(AUTHORITIES)
    if content is None:
        return ()
    try:
        return tuple(_authority(entry) for entry in json.loads(content))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"the CAs in the document {CA_DOCUMENT!r} cannot be read: {error}") from None


def _is_whole(files: dict[str, bytes]) -> bool:
    return bool(files.get(CERTIFICATE) and files.get(KEY))


def _to_json(authorities: Sequence[Authority]) -> bytes:
    entries = [
        {
            "certificate": authority.pair.certificate.decode(),
            "key": authority.pair.key.decode(),
            "announced_at": authority.announced_at.isoformat(),
            "signs_since": authority.signs_since.isoformat() if authority.signs_since else None,
        }
        for authority in authorities
    ]
    return json.dumps(entries, indent=1).encode()


def _authority(entry: dict[str, Any]) -> Authority:
    since = entry["signs_since"]
    return Authority(
        pair=KeyPair(entry["certificate"].encode(), entry["key"].encode()),
        announced_at=datetime.datetime.fromisoformat(entry["announced_at"]),
        signs_since=datetime.datetime.fromisoformat(since) if since else None,
    )
