"""Clients of servers without TLS: making a client loads the CAs of the system, which takes longer than most tests."""

from __future__ import annotations

import ssl
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

NO_CAS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no server."""


def plain_client(base_url: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, verify=NO_CAS, trust_env=False, **options)


def plain_openai(base_url: str, api_key: str, timeout_s: float) -> AsyncOpenAI:
    """The SDK without retries; ``base_url`` is that of the gateway."""
    client = DefaultAsyncHttpxClient(base_url=f"{base_url}/v1", verify=NO_CAS, trust_env=False, timeout=timeout_s)
    return AsyncOpenAI(base_url=f"{base_url}/v1", api_key=api_key, max_retries=0, timeout=timeout_s, http_client=client)
