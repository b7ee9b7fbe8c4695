"""An issuer's public keys: each by its id and by the one signature that it is used for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jwt import PyJWK
from jwt.exceptions import PyJWTError

MAX_KEYS = 64
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
MIN_RSA_BITS = 2048

KeySet = Mapping[tuple[str, str], PyJWK]
"""(key id, algorithm) -> key."""


def parse_key_set(content: bytes, algorithms: Sequence[str]) -> KeySet:
    """The keys of a JWKS that can check one of these signatures; others, and those that cannot be read, are left out.

    Raises:
        ValueError: it is no JWKS, or there are too many keys.
    """
    try:
        entries = json.loads(content)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("the answer is no key set") from None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"a key set is a list of at most {MAX_KEYS} keys")
    found: dict[tuple[str, str], PyJWK] = {}
    for entry in entries:
        for algorithm in algorithms if isinstance(entry, dict) else ():
            if (key := _key(entry, algorithm)) is not None:
                found[str(entry.get("kid", "")), algorithm] = key
    return found


def _key(entry: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    """The key for one algorithm; ``None`` where it is of another type, curve or use."""
    wanted = "OKP" if algorithm == "EdDSA" else "EC" if algorithm.startswith("ES") else "RSA"
    if entry.get("kty") != wanted or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
        return None
    if entry.get("crv") != _CURVES.get(algorithm):
        return None
    try:
        key = PyJWK({name: value for name, value in entry.items() if name != "d"}, algorithm)
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    return None if wanted == "RSA" and key.key.key_size < MIN_RSA_BITS else key
