"""Which tenant and which role claims stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from stratos.common.errors import InvalidApiKey, PermissionDenied
from stratos.core.tenancy.roles import Role
from stratos.store.tenants import tenant_id
from stratos_gateway.oidc.claims import identity_of
from stratos_gateway.oidc.settings import OidcConfig, OidcIssuer, check_oidc

ISSUER = OidcIssuer(
    issuer="https://id.example",
    audience="stratos",
    role_claim="realm.roles",
    roles={"ops": Role.ADMIN, "owners": Role.TENANT_ADMIN},
    tenants=("acme", "team-*"),
)
PLATFORM = replace(ISSUER, tenants=("*",))


def identify(**claims: Any) -> Any:
    return identity_of({"sub": "ann", "tenant": "acme", **claims}, ISSUER)


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({}, Role.TENANT),
        ({"realm": {"roles": ["owners"]}}, Role.TENANT_ADMIN),
        ({"realm": {"roles": ["owners", "ops", "others"]}}, Role.TENANT_ADMIN),  # one of some tenants makes no admin
        ({"realm": {"roles": "ops"}}, Role.TENANT_ADMIN),
        ({"realm.roles": "owners", "realm": {"roles": "ops"}}, Role.TENANT_ADMIN),
        ({"realm": {"roles": ["admin", "tenant-admin"]}}, Role.TENANT),
        ({"realm": {"roles": [["ops"], None, 1, {"ops": 1}]}}, Role.TENANT),
        ({"realm": ["ops"]}, Role.TENANT),
        ({"roles": "ops"}, Role.TENANT),
    ],
)
def test_the_highest_role_that_is_mapped_counts_and_no_other_text_does(claims: dict[str, Any], role: Role) -> None:
    found = identify(**claims)
    assert (found.tenant, found.role, found.subject) == ("acme", role, "jwt:https://id.example#ann")


@pytest.mark.parametrize("tenant", ["other", "", "acme2", None, 1, ["acme"], {"acme": 1}])
def test_an_issuer_speaks_for_its_tenants_alone(tenant: object) -> None:
    with pytest.raises(PermissionDenied):
        identify(tenant=tenant)
    assert identify(tenant="team-7").tenant == "team-7"


FIRST, SECOND = tenant_id(b"one"), tenant_id(b"two")


@pytest.mark.parametrize(
    ("tenants", "claim", "found"),
    [
        (("*",), "acme", "acme"),
        (("*",), FIRST, FIRST),
        (("acme",), FIRST, None),  # whoever it is, it is not for this issuer to say
        (("t*",), FIRST, None),
        ((f"acme={FIRST}",), "acme", FIRST),
        (("*", f"acme={FIRST}"), "acme", FIRST),
        ((f"acme={FIRST}",), FIRST, FIRST),
        ((f"acme={FIRST}",), SECOND, None),
        ((f"acme={FIRST}",), f"acme={FIRST}", None),
        ((f"acme={FIRST}",), "other", None),
        (("team-*", f"acme={FIRST}"), "team-1", "team-1"),
    ],
)
def test_a_name_is_resolved_to_the_id_that_is_set_for_it(
    tenants: tuple[str, ...], claim: str, found: str | None
) -> None:
    issuer = replace(ISSUER, tenants=tenants)
    if found is None:
        with pytest.raises(PermissionDenied):
            identity_of({"sub": "ann", "tenant": claim}, issuer)
    else:
        assert identity_of({"sub": "ann", "tenant": claim}, issuer).tenant == found


@pytest.mark.parametrize("text", [f"={FIRST}", "acme=", "acme=tn_1", f"a*={FIRST}"])
def test_an_id_that_is_none_is_refused_at_the_start(text: str) -> None:
    check_oidc(OidcConfig(issuers=(replace(ISSUER, roles={}, tenants=(f"acme={FIRST}",)),)))
    with pytest.raises(ValueError, match="acme=tn_"):
        check_oidc(OidcConfig(issuers=(replace(ISSUER, roles={}, tenants=(text,)),)))


@pytest.mark.parametrize("subject", [None, "", 1, ["ann"], "x" * 257, "a\nb"])
def test_a_token_without_a_subject_is_none(subject: object) -> None:
    with pytest.raises(InvalidApiKey):
        identify(sub=subject)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "http://id.example"},
        {"issuer": "ftp://id.example"},
        {"issuer": "https://user@id.example"},
        {"issuer": "id.example"},
        {"jwks_url": "http://id.example/keys"},
    ],
)
def test_keys_come_over_https_or_from_this_machine(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="https"):
        check_oidc(
            OidcConfig(issuers=(OidcIssuer(**{"issuer": "https://x", "audience": "a", "tenants": ("a",), **changes}),))
        )
    local = replace(PLATFORM, issuer="http://127.0.0.1:1/x")
    check_oidc(OidcConfig(issuers=(local, PLATFORM)))
    with pytest.raises(ValueError, match="twice"):
        check_oidc(OidcConfig(issuers=(PLATFORM, PLATFORM)))


def test_the_platforms_admin_comes_from_an_issuer_of_every_tenant_by_word() -> None:
    with pytest.raises(ValueError, match="by word"):
        check_oidc(OidcConfig(issuers=(ISSUER,)))
    found = identity_of({"sub": "ann", "tenant": "other", "realm": {"roles": "ops"}}, PLATFORM)
    assert (found.tenant, found.role) == ("other", Role.ADMIN)
    with pytest.raises(ValidationError, match="tenants"):
        TypeAdapter(OidcConfig).validate_python({"issuers": [{"issuer": "https://x", "audience": "a"}]})
