"""Steps of a run by its time: months pass by a date that is an argument."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from stratos.common.tls.identity import Identity, PeerRole
from stratos.pki.authority import KeyPair, is_signed_by
from stratos.pki.renewal import Certificates, RenewalWishes, ValidityPolicy, renew

DAY = datetime.timedelta(days=1)
START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
POLICY = ValidityPolicy(lifetime=30 * DAY, ca_lifetime=200 * DAY, overlap=2 * DAY)
ROLES = (PeerRole.GATEWAY, PeerRole.DECODE_WORKER)


def run(
    known: Certificates, day: float, wishes: RenewalWishes | None = None, roles: Sequence[PeerRole] = ROLES
) -> Certificates:
    return renew(known, roles, POLICY, START + day * DAY, wishes or RenewalWishes())


@pytest.fixture(scope="module")
def first() -> Certificates:
    return run(Certificates(domain="prod"), 0)


def trusts(made: Certificates, leaf: KeyPair) -> bool:
    return any(is_signed_by(leaf.load(), authority.pair.load()) for authority in made.authorities)


def test_a_certificate_names_its_role_and_serves_both_ends(first: Certificates) -> None:
    leaf = first.leaves[PeerRole.DECODE_WORKER].load()
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://stratosserve/prod/decode-worker"]
    assert names.get_values_for_type(x509.DNSName) == ["decode-worker.prod.stratosserve", "worker.prod.stratosserve"]
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert leaf.not_valid_after_utc == START + 30 * DAY


@pytest.mark.parametrize("day", [0, 1, 19.9])
def test_what_is_not_due_is_kept_byte_for_byte(first: Certificates, day: float) -> None:
    assert run(first, day) == first


def test_a_certificate_is_renewed_when_a_third_is_left(first: Certificates) -> None:
    later = run(first, 20.1)
    assert later.authorities == first.authorities
    assert not set(later.leaves.values()) & set(first.leaves.values())
    assert later.leaves[PeerRole.GATEWAY].load().not_valid_after_utc == START + 50.1 * DAY


def test_a_role_that_is_added_or_broken_gets_a_certificate(first: Certificates) -> None:
    broken = Certificates(
        domain="prod",
        authorities=first.authorities,
        leaves={**first.leaves, PeerRole.GATEWAY: KeyPair(b"garbage", b"garbage")},
    )
    made = run(broken, 1, roles=(*ROLES, PeerRole.ROUTER))
    assert made.leaves[PeerRole.DECODE_WORKER] == first.leaves[PeerRole.DECODE_WORKER]
    assert trusts(made, made.leaves[PeerRole.GATEWAY])
    assert trusts(made, made.leaves[PeerRole.ROUTER])


def test_another_domain_takes_new_certificates(first: Certificates) -> None:
    moved = Certificates(domain="other", authorities=first.authorities, leaves=first.leaves)
    uri = Identity("other", PeerRole.GATEWAY).uri
    names = (
        run(moved, 1).leaves[PeerRole.GATEWAY].load().extensions.get_extension_for_class(x509.SubjectAlternativeName)
    )
    assert names.value.get_values_for_type(x509.UniformResourceIdentifier) == [uri]


def test_a_new_ca_is_announced_then_signs_and_the_old_one_leaves(first: Certificates) -> None:
    announced = run(first, 3, RenewalWishes(rotate_ca=True))
    assert [bool(a.signs_since) for a in announced.authorities] == [True, False]
    assert announced.leaves == first.leaves
    assert run(announced, 4, RenewalWishes(rotate_ca=True)) == announced, "a second wish changes nothing"

    signs = run(announced, 5)
    assert len(signs.authorities) == 2
    assert all(is_signed_by(leaf.load(), signs.authorities[1].pair.load()) for leaf in signs.leaves.values())
    assert run(signs, 6.9) == signs

    alone = run(signs, 7)
    assert alone.authorities == signs.authorities[1:]
    assert alone.leaves == signs.leaves


@pytest.mark.parametrize("pause", [0.7, 3, 9])
def test_at_any_time_every_process_trusts_every_certificate_that_another_may_show(pause: float) -> None:
    """Over 400 days, with 200 days of a CA: a process reads new files up to one overlap late."""
    state, day = run(Certificates(domain="prod"), 0), 0.0
    states = [(day, state)]
    while day < 400:
        day += pause
        state = run(state, day)
        assert all(leaf.load().not_valid_after_utc > START + day * DAY for leaf in state.leaves.values())
        if state != states[-1][1]:
            states.append((day, state))
    for number, (day, _) in enumerate(states):
        # In use at this moment: what is newest, and all that was newest less than an overlap ago.
        later = [begin for begin, _ in states[1:]] + [day + 3]
        used = [s for (_, s), end in zip(states[: number + 1], later, strict=False) if end > day - 2]
        assert all(trusts(reader, leaf) for reader in used for shown in used for leaf in shown.leaves.values())
    assert len({a.pair for _, s in states for a in s.authorities}) >= 3


def test_expired_cas_are_replaced_at_once(first: Certificates) -> None:
    made = run(first, 201)
    assert len(made.authorities) == 1
    assert made.authorities[0].signs_since == START + 201 * DAY
    assert all(trusts(made, leaf) for leaf in made.leaves.values())
