"""Which keys of a key set are taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from stratos_gateway.oidc.key_set import parse_key_set
from tests.support.servers.oidc_issuer import SigningKey

ALL = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
EC = SigningKey("ec").public


def taken(*entries: Any) -> set[tuple[str, str]]:
    return set(parse_key_set(json.dumps({"keys": entries}).encode(), ALL))


def test_each_key_is_there_for_the_signatures_of_its_type_and_curve() -> None:
    rsa_key = SigningKey("rsa", "RS256").public
    p384 = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True) | {"kid": "p384"}
    found = taken(EC, rsa_key, p384)
    assert found == {("ec", "ES256"), ("rsa", "RS256"), ("rsa", "PS256"), ("p384", "ES384")}
    assert taken(rsa_key | {"alg": "PS256"}) == {("rsa", "PS256")}


def test_what_cannot_check_a_signature_is_left_out() -> None:
    short = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"}
    assert (
        taken(short, secret, EC | {"use": "enc"}, EC | {"x": "AA"}, EC | {"crv": "P-384"}, {"kty": []}, None, 7)
        == set()
    )


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_key_set_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        parse_key_set(content, ALL)
    with pytest.raises(ValueError, match="at most"):
        parse_key_set(json.dumps({"keys": [EC] * 65}).encode(), ALL)
