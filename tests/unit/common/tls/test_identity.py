"""Names in certificates: what is read back is what was written, and nothing else is taken for a role."""

from __future__ import annotations

import pytest

from stratos.common.tls.identity import Identity, PeerRole, check_domain, dns_name, parse_identity


@pytest.mark.parametrize("role", PeerRole)
@pytest.mark.parametrize("domain", ["stratos", "release.name-space", "a"])
def test_a_uri_is_read_back(role: PeerRole, domain: str) -> None:
    identity = Identity(domain, role)
    assert parse_identity(identity.uri) == identity
    assert identity.dns_names[0] == dns_name(domain, role)
    assert ("worker." + domain + ".stratosserve" in identity.dns_names) == ("worker" in role)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://stratosserve/prod/root",
        "spiffe://stratosserve/prod/gateway/",
        "spiffe://stratosserve/prod/x/gateway",
        "spiffe://stratosserve//gateway",
        "spiffe://elsewhere/prod/gateway",
        "https://stratosserve/prod/gateway",
        "spiffe://stratosserve/prod/gateway\n",
        "xspiffe://stratosserve/prod/gateway",
    ],
)
def test_other_uris_name_no_role(uri: str) -> None:
    assert parse_identity(uri) is None


@pytest.mark.parametrize("domain", ["", "A", "a_b", "a/b", "-a", "a-", "a..b", ".a", "a b", "a" * 64, "a." * 101 + "a"])
def test_domains_that_fit_no_name(domain: str) -> None:
    with pytest.raises(ValueError, match="is no domain"):
        check_domain(domain)


def test_the_longest_release_and_namespace_fit() -> None:
    domain = check_domain("r" * 53 + "." + "n" * 63)
    assert all(len(name) <= 253 for role in PeerRole for name in Identity(domain, role).dns_names)
