"""Tokens that are what they say, and tokens that try to be more."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown, InvalidApiKey, PermissionDenied, StratosError
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.tenants import tenant_id
from stratos_gateway.oidc.fetching import FetchFailed
from stratos_gateway.oidc.issuer_keys import IssuerKeys
from stratos_gateway.oidc.key_set import KeySet, parse_key_set
from stratos_gateway.oidc.settings import OidcConfig, OidcIssuer
from stratos_gateway.oidc.token_check import TokenCheck, is_token
from tests.support.servers.oidc_issuer import AUDIENCE, SigningKey, claims_of

URL = "https://id.example"
DAY_S = 86400
ISSUER = OidcIssuer(issuer=URL, audience=AUDIENCE, roles={"ops": Role.ADMIN}, tenants=("*",))
EC, RSA = SigningKey("ec"), SigningKey("rsa", "RS256")
SET = json.dumps({"keys": [EC.public, RSA.public]}).encode()


class Tenants:
    """One tenant: acme."""

    def __init__(self, *, is_namesake: bool = False) -> None:
        self._one = Tenant(name="acme", id=tenant_id(b"salt"), cache_salt=b"salt", is_namesake=is_namesake)

    async def find(self, name: str) -> Tenant | None:
        return self._one if name == self._one.name else None

    async def find_id(self, tenant_id: str) -> Tenant | None:
        return self._one if tenant_id == self._one.id else None


async def make_check(issuer: OidcIssuer = ISSUER, content: bytes = SET, *, is_namesake: bool = False) -> TokenCheck:
    async def fetch(asked: OidcIssuer) -> KeySet:
        return parse_key_set(content, asked.algorithms)

    keys = IssuerKeys(issuer, fetch, FakeClock(), OidcConfig())
    await keys.refresh()
    return TokenCheck([keys], Tenants(is_namesake=is_namesake), leeway_s=30)


def part(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def good(key: SigningKey = EC, **changes: Any) -> str:
    return key.sign(claims_of(URL, **changes))


@pytest.mark.parametrize("key", [EC, RSA], ids=["ES256", "RS256"])
async def test_a_token_stands_for_its_tenant_and_role(key: SigningKey) -> None:
    check = await make_check()
    tenant = await check.authenticate(good(key, roles=["ops"], aud=["other", AUDIENCE]))
    assert (tenant.name, tenant.role, tenant.cache_salt) == ("acme", Role.ADMIN, b"salt")
    assert tenant.actor == tenant.key_id == f"jwt:{URL}#ann"


ID = tenant_id(b"salt")


@pytest.mark.parametrize("is_namesake", [False, True])
async def test_a_tenant_of_a_name_that_another_one_had_is_reached_by_its_id_alone(is_namesake: bool) -> None:
    by_name = await make_check(is_namesake=is_namesake)
    if is_namesake:
        with pytest.raises(PermissionDenied, match="another tenant had this name"):
            await by_name.authenticate(good())
    else:
        assert (await by_name.authenticate(good())).id == ID
    assert (await by_name.authenticate(good(tenant=ID))).id == ID, "the platform's issuer says which one"
    own = await make_check(replace(ISSUER, roles={}, tenants=(f"acme={ID}",)), is_namesake=is_namesake)
    assert (await own.authenticate(good())).id == ID, "or the operator does"


async def test_a_token_of_a_tenant_that_is_gone_reaches_no_other_one_of_its_name() -> None:
    first = tenant_id(b"before")
    check = await make_check(replace(ISSUER, roles={}, tenants=(f"acme={first}",)))
    with pytest.raises(PermissionDenied, match="does not exist"):
        await check.authenticate(good())


def hmac_with(secret: bytes, header: dict[str, Any]) -> str:
    body = f"{part(header)}.{part(claims_of(URL))}"
    return f"{body}.{part(hmac.new(secret, body.encode(), hashlib.sha256).digest())}"


PEM = RSA.private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
STRANGER = SigningKey("ec")
NESTED = b'{"iss":"' + URL.encode() + b'","x":' + b"[" * 3000 + b"]" * 3000 + b"}"
HOSTILE = {
    "no signature": f"{part({'alg': 'none', 'kid': 'ec'})}.{part(claims_of(URL))}.",
    "no signature, other case": f"{part({'alg': 'nOnE', 'kid': 'ec'})}.{part(claims_of(URL))}.",
    "a signature cut off": good().rpartition(".")[0] + ".",
    "HS256 with the public key": hmac_with(PEM, {"alg": "HS256", "kid": "rsa", "typ": "JWT"}),
    "HS256 with the key set": hmac_with(json.dumps(RSA.public).encode(), {"alg": "HS256", "kid": "rsa"}),
    "the key of another issuer": STRANGER.sign(claims_of(URL)),
    "the key brought along": STRANGER.sign(claims_of(URL), jwk=STRANGER.public, kid="new"),
    "an address of keys": STRANGER.sign(claims_of(URL), jku="https://evil.example/keys", x5u="https://evil.example"),
    "a key id that there is not": EC.sign(claims_of(URL), kid="../../ec"),
    "a key id that is none": f"{part({'alg': 'ES256', 'kid': ['ec']})}.{part(claims_of(URL))}.AA",
    "an algorithm of another key": f"{part({'alg': 'RS256', 'kid': 'ec'})}.{good().partition('.')[2]}",
    "an algorithm that is not set": f"{part({'alg': 'PS256', 'kid': 'rsa'})}.{good(RSA).partition('.')[2]}",
    "a critical extension": EC.sign(claims_of(URL), crit=["x"], x=1),
    "other claims": f"{good().split('.')[0]}.{part(claims_of(URL, tenant='other'))}.{good().split('.')[2]}",
    "expired": good(lives_s=-31),
    "not yet valid": good(nbf=time.time() + DAY_S),
    "from the future": good(iat=time.time() + DAY_S),
    "another audience": good(aud="other"),
    "no audience": good(aud=None),
    "no expiry": good(exp=None),
    "no subject": good(sub=None),
    "another issuer": good(iss="https://evil.example"),
    "no issuer": good(iss=None),
    "an issuer that is none": good(iss=["https://id.example"]),
    "an expiry that is none": EC.sign(claims_of(URL) | {"exp": "soon"}),
    "a number as header": f"{part(7)}.{part(claims_of(URL))}.AA",
    "a list as claims": EC.sign(b"[1]"),
    "claims of great depth": EC.sign(NESTED),
    "a header of great depth": f"{part(b'[' * 4000)}.{part(claims_of(URL))}.AA",
    "an infinite expiry": EC.sign(json.dumps(claims_of(URL)).encode().replace(b'"exp": ', b'"exp": 1e999, "e": ')),
    "nothing": "..",
    "no base64": "\x00.\u00e9.!",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_token_that_tries_to_be_more_is_no_token(name: str) -> None:
    with pytest.raises(InvalidApiKey) as refused:
        await (await make_check()).authenticate(HOSTILE[name])
    assert "acme" not in refused.value.message


async def test_within_the_leeway_clocks_may_differ() -> None:
    check = await make_check()
    for token in (good(lives_s=-20), good(nbf=time.time() + 20), good(iat=time.time() + 20)):
        assert (await check.authenticate(token)).name == "acme"


async def test_a_tenant_that_does_not_exist_is_not_made() -> None:
    with pytest.raises(PermissionDenied):
        await (await make_check()).authenticate(good(tenant="unknown"))


async def test_without_keys_nothing_can_be_said() -> None:
    async def fetch(_: OidcIssuer) -> KeySet:
        raise FetchFailed("no answer")

    keys = IssuerKeys(ISSUER, fetch, FakeClock(), OidcConfig())
    await keys.refresh()
    with pytest.raises(DependencyDown):
        await TokenCheck([keys], Tenants(), leeway_s=30).authenticate(good())


def test_api_keys_are_no_tokens() -> None:
    assert not is_token("sk-0123456789ab-" + "0" * 40 + "-01234567")
    assert is_token(good())


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "tenant", "roles", "jti"])


@given(changes=st.dictionaries(names, json_values, max_size=4))
async def test_any_signed_claims_are_taken_or_refused(changes: dict[str, Any]) -> None:
    """The issuer itself may be wrong: what it signed is no bug of ours either."""
    body = json.dumps(claims_of(URL) | changes).encode()
    token = EC.sign(body)
    try:
        tenant = await (await make_check()).authenticate(token)
    except StratosError as error:
        assert error.http_status in (401, 403)  # noqa: PT017
    else:
        assert (tenant.name, tenant.role) in [("acme", Role.TENANT), ("acme", Role.ADMIN)]


@given(header=st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk"]), json_values, max_size=4))
async def test_any_header_is_refused_unless_it_is_the_right_one(header: dict[str, Any]) -> None:
    text = f"{part(header)}.{good().partition('.')[2]}"
    with pytest.raises(InvalidApiKey):
        await (await make_check()).authenticate(text)
