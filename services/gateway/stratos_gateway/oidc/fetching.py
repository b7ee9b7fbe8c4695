"""Fetches an issuer's keys: from the address that is set, or from the one that its discovery document names."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable

import httpx

from stratos_gateway.oidc.key_set import KeySet, parse_key_set
from stratos_gateway.oidc.settings import OidcIssuer, check_url

MAX_BYTES = 1 << 20
Fetch = Callable[[OidcIssuer], Awaitable[KeySet]]
"""Raises ``FetchFailed``."""


class FetchFailed(Exception):
    """An issuer gave no keys; the message is for operators."""


async def fetch_keys(issuer: OidcIssuer, timeout_s: float) -> KeySet:
    """The keys that an issuer has now.

    Args:
        issuer: whose keys.
        timeout_s: longest time for all of it: a document that drips would pass every bound of a single read.

    Raises:
        FetchFailed: it does not answer in time, or with something else.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _fetch(issuer, timeout_s)
    except TimeoutError:
        raise FetchFailed(f"it did not answer within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise FetchFailed(f"{type(error).__name__}: {error}"[:300]) from error


async def _fetch(issuer: OidcIssuer, timeout_s: float) -> KeySet:
    ca_path = None if issuer.ca_path is None else str(issuer.ca_path)
    # Reading the authorities of the system takes tens of milliseconds, in which no stream could go on.
    verify = await asyncio.to_thread(ssl.create_default_context, cafile=ca_path)
    async with httpx.AsyncClient(timeout=timeout_s, verify=verify) as client:
        url = issuer.jwks_url or await _discover(client, issuer)
        return parse_key_set(await _get(client, url), issuer.algorithms)


async def _discover(client: httpx.AsyncClient, issuer: OidcIssuer) -> str:
    content = await _get(client, f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration")
    try:
        document = json.loads(content)
    except RecursionError:
        document = None
    if not isinstance(document, dict) or document.get("issuer") != issuer.issuer:
        raise ValueError("its discovery document is that of another issuer")
    return check_url(str(document.get("jwks_uri", "")))


async def _get(client: httpx.AsyncClient, url: str) -> bytes:
    """One document; no redirect is followed."""
    async with client.stream("GET", url, headers={"accept": "application/json"}) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"{url} answers with status {answer.status_code}")
        content = b""
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MAX_BYTES:
                raise ValueError(f"{url} answers with more than {MAX_BYTES} bytes")
        return content
