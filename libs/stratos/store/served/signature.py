"""Signatures of S3 requests, AWS Signature Version 4, as a server checks them.

The client signs method, path, query, some headers and the digest of the body, with a key that is derived from its
secret, the day, the region and the service.
Specification: "Signature calculations for the Authorization header" of Amazon S3.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_SKEW = datetime.timedelta(minutes=15)
_TIME = "%Y%m%dT%H%M%SZ"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key_id>[^/,]+)/(?P<scope>\d{8}/[^/,]+/s3/aws4_request), ?"
    r"SignedHeaders=(?P<headers>[a-z0-9;_-]+), ?Signature=(?P<signature>[0-9a-f]{64})\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """A request as it came over the wire: all that its signature is about."""

    method: str
    path: str
    """Percent-encoded."""
    query: str
    headers: Mapping[str, str]
    """By name in lower case."""


def is_signed(request: SignedRequest, key_id: str, secret: str, now: datetime.datetime) -> bool:
    """Whether the owner of ``secret`` signed the request, with the digest of its body, within the last minutes."""
    found = _AUTHORIZATION.match(request.headers.get("authorization", ""))
    if found is None or found["key_id"] != key_id:
        return False
    signed = found["headers"].split(";")
    if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(signed):
        return False
    if not _is_recent(request.headers.get("x-amz-date", ""), found["scope"], now):
        return False
    expected = _signature(secret, found["scope"], request.headers["x-amz-date"], _canonical(request, signed))
    return hmac.compare_digest(expected, found["signature"])


def _is_recent(text: str, scope: str, now: datetime.datetime) -> bool:
    try:
        signed_at = datetime.datetime.strptime(text, _TIME).replace(tzinfo=datetime.UTC)
    except ValueError:
        return False
    return text.startswith(scope[:8]) and abs(now - signed_at) <= MAX_SKEW


def _canonical(request: SignedRequest, signed: list[str]) -> str:
    # A parameter without a value is signed as "name=".
    pairs = sorted(pair if "=" in pair else f"{pair}=" for pair in request.query.split("&") if pair)
    headers = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in signed)
    digest = request.headers.get("x-amz-content-sha256", "")
    return "\n".join([request.method, request.path, "&".join(pairs), headers, ";".join(signed), digest])


def _signature(secret: str, scope: str, signed_at: str, canonical: str) -> str:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{signed_at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    return hmac.digest(key, text.encode(), "sha256").hex()
